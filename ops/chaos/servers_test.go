package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// process is a program that this test started; it dies with the test.
type process struct {
	cmd  *exec.Cmd
	pid  int
	done chan struct{}
}

// starts is served by one goroutine that keeps its thread: the kernel ends the
// children of a thread that goes.
var starts = make(chan func())

func init() {
	go func() {
		runtime.LockOSThread()
		for f := range starts {
			f()
		}
	}()
}

func launch(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	starts <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, pid: cmd.Process.Pid, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(p.pid, s) }

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *process) kill() {
	if p.running() {
		p.signal(syscall.SIGKILL)
	}
	<-p.done
}

// server is one node on a host of its own, its data on a small disk of its own.
type server struct {
	t      *testing.T
	host   *host
	dir    string // where the disk is mounted
	config string
	proc   *process
}

// diskSize is that of a node's disk: enough to be above the bound under which
// a node refuses new locks.
const diskSize = "700m"

func newServer(t *testing.T, h *host, key string, peers []string) *server {
	t.Helper()
	s := &server{t: t, host: h, dir: filepath.Join(t.TempDir(), h.name)}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h.net.must("mount", "-t", "tmpfs", "-o", "size="+diskSize, "mortise", s.dir)
	t.Cleanup(func() {
		if err := h.net.try("umount", s.dir); err != nil {
			t.Error(err)
		}
	})
	s.config = filepath.Join(s.dir, "mortise.yaml")
	text := fmt.Sprintf("name: %s\ndata_dir: %s\ncluster_key_file: %s\nzone: %s\ninsecure: true\nlisten: %s:7600\ngossip:\n  listen: %s:7601\n  join: [%s]\n"+
		"gateway:\n  grpc: %s:7420\n  http: %s:7421\n", h.name, filepath.Join(s.dir, "data"), key, "z"+h.name, h.addr, h.addr, strings.Join(peers, ", "), h.addr, h.addr)
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.proc != nil {
			s.proc.signal(syscall.SIGCONT)
			s.proc.kill()
		}
	})
	return s
}

func (s *server) start() {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(filepath.Dir(s.dir), s.host.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	cmd := s.host.command(binary, "server", "run", "--config", s.config)
	cmd.Stdout, cmd.Stderr = log, log
	if s.proc, err = launch(cmd); err != nil {
		s.t.Fatal(err)
	}
}

// log is the end of what the server said.
func (s *server) log() string {
	b, err := os.ReadFile(filepath.Join(filepath.Dir(s.dir), s.host.name+".log"))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-3000):])
}

// fill leaves no byte free on the disk; the result frees it.
func (s *server) fill() func() {
	name := filepath.Join(s.dir, "filling")
	f, err := os.Create(name)
	if err != nil {
		s.t.Fatal(err)
	}
	for block := make([]byte, 1<<20); err == nil; {
		_, err = f.Write(block)
	}
	f.Close()
	return func() { _ = os.Remove(name) }
}

// cli runs the command line on a host against some gateway.
func cli(h *host, endpoint string, args ...string) (string, error) {
	out, err := h.command("timeout", append([]string{"10", binary, "--endpoints", endpoint}, args...)...).CombinedOutput()
	return string(out), err
}

// status is what `cluster status` says.
type status struct {
	Health      string `json:"health"`
	NodesDown   int    `json:"nodes_down"`
	ShardsNoOne int    `json:"shards_without_leader"`
	Holds       int64  `json:"holds"`
	Waits       int64  `json:"waits"`
}

func clusterStatus(h *host, endpoint string) (status, error) {
	var s status
	out, err := cli(h, endpoint, "cluster", "status", "-o", "json")
	if err != nil {
		return s, fmt.Errorf("%w: %s", err, out)
	}
	return s, json.Unmarshal([]byte(out), &s)
}

// eventually waits until f succeeds.
func eventually(t *testing.T, within time.Duration, what string, f func() error) {
	t.Helper()
	end := time.Now().Add(within)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s, for %v: %v", what, within, err)
		}
		<-time.After(200 * time.Millisecond)
	}
}
