package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// shared is one `mortise dev` in one process, for all tests that kill nothing.
var shared sharedDev

type sharedDev struct {
	once       sync.Once
	proc       *process
	dir        string
	grpc, http string
	startTime  time.Duration
	err        error
}

// use starts it the first time.
func (s *sharedDev) use(t *testing.T) *sharedDev {
	t.Helper()
	s.once.Do(func() {
		if s.dir, s.err = os.MkdirTemp("", "mortise-dev-"); s.err != nil {
			return
		}
		s.grpc, s.http = freeAddr(t), freeAddr(t)
		begun := time.Now()
		s.proc, s.err = spawn("mortise dev", filepath.Join(s.dir, "log"),
			exec.Command(binary, "dev", "--data", filepath.Join(s.dir, "data"), "--grpc", s.grpc, "--http", s.http))
		if s.err == nil {
			s.proc.waitLog(t, `\bready\b`, time.Minute)
			s.startTime = time.Since(begun)
		}
	})
	if s.err != nil || s.proc == nil {
		t.Fatalf("mortise dev did not start: %v", s.err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of the log of mortise dev:\n%s", tail(s.proc.log, 4000))
		}
	})
	return s
}

// env is what a client on the command line needs.
func (s *sharedDev) env() []string { return []string{"MORTISE_ENDPOINTS=" + s.grpc} }

func (s *sharedDev) stop() {
	if s.proc != nil {
		s.proc.kill()
	}
	if s.dir != "" {
		os.RemoveAll(s.dir)
	}
}

// session opens a session over HTTP.
func (s *sharedDev) session(t *testing.T, client string) string {
	t.Helper()
	_, o := call(t, s.http, "OpenSession", object{"client": client, "ttl_ms": 60000})
	return o.text(t, "session_id")
}
