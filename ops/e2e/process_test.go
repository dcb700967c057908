package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// process is a running program that this package started.
type process struct {
	name string
	pid  int
	// log is the file with its standard output and error.
	log  string
	done chan struct{} // closed when it has ended
	err  error         // set before done is closed
}

// starts is served by one goroutine that keeps its operating-system thread for
// ever: the kernel ends a child with SIGKILL when the thread that started it
// goes, so even a test run that is killed leaves no server behind.
var starts = make(chan func())

func init() {
	go func() {
		runtime.LockOSThread()
		for f := range starts {
			f()
		}
	}()
}

// start runs a program; it is killed at the end of the test.
func start(t *testing.T, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p, err := spawn(name, filepath.Join(t.TempDir(), "log"), cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("end of the log of %s (pid %d):\n%s", p.name, p.pid, tail(p.log, 6000))
		}
	})
	return p
}

func spawn(name, log string, cmd *exec.Cmd) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	if cmd.Stdout == nil {
		cmd.Stdout = out
	}
	cmd.Stderr = out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	starts <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p := &process{name: name, pid: cmd.Process.Pid, log: log, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// kill ends it with SIGKILL and waits until it is gone.
func (p *process) kill() {
	select {
	case <-p.done:
		return
	default:
	}
	_ = syscall.Kill(p.pid, syscall.SIGKILL) // it may have ended by itself just now
	<-p.done
}

// ended waits for its end and returns its exit status.
func (p *process) ended(t *testing.T, within time.Duration) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(within):
		t.Fatalf("%s (pid %d) still runs after %v; its log ends:\n%s", p.name, p.pid, within, tail(p.log, 4000))
	}
	var exit *exec.ExitError
	switch {
	case p.err == nil:
		return 0
	case errors.As(p.err, &exit):
		return exit.ExitCode()
	}
	t.Fatalf("%s: %v", p.name, p.err)
	return -1
}

// waitLog waits until the log matches a pattern, and returns the log.
func (p *process) waitLog(t *testing.T, pattern string, within time.Duration) string {
	t.Helper()
	var log []byte
	re := regexp.MustCompile(pattern)
	eventually(t, within, fmt.Sprintf("%q in the log of %s", pattern, p.name), func() error {
		log, _ = os.ReadFile(p.log)
		if re.Match(log) {
			return nil
		}
		select {
		case <-p.done:
			t.Fatalf("%s ended (%v) without %q in its log:\n%s", p.name, p.err, pattern, tail(p.log, 6000))
		default:
		}
		return errors.New("not yet")
	})
	return string(log)
}

// alive tells whether a process exists and is not a zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The state follows the name, which is in parentheses and may hold anything.
	after := stat[bytes.LastIndexByte(stat, ')')+1:]
	return len(after) > 1 && after[1] != 'Z' && after[1] != 'X'
}

// signal sends a signal to a process by its id, after making sure that it is
// the one whose command line contains word.
func signal(pid int, word string, sig syscall.Signal) error {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return err
	}
	if !bytes.Contains(cmdline, []byte(word)) {
		return fmt.Errorf("pid %d is not the process with %q in its command line, but %q", pid, word, cmdline)
	}
	return syscall.Kill(pid, sig)
}

// readPID reads a pid file.
func readPID(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// tail returns the end of a file, for messages.
func tail(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(b) > n {
		return "…" + string(b[len(b)-n:])
	}
	return string(b)
}

// eventually calls f until it returns nil.
func eventually(t *testing.T, within time.Duration, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s: %v", within, what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// output runs the program under test to its end and returns its standard
// output, standard error and exit status.
func output(t *testing.T, env []string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatalf("mortise %s: %v", strings.Join(args, " "), err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}
