//go:build linux

package supervise

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestMain is the supervised command, too: what it does is in COMMAND.
func TestMain(m *testing.M) {
	switch os.Getenv("COMMAND") {
	case "":
		os.Exit(m.Run())
	case "stubborn": // ignores TERM and says when it is there
		signal.Ignore(syscall.SIGTERM)
		os.Stdout.WriteString("ready\n")
		select {}
	case "signals": // names each signal that it gets, ends with 7 on TERM
		c := make(chan os.Signal, 16)
		signal.Notify(c, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGQUIT, syscall.SIGINT, syscall.SIGWINCH, syscall.SIGTERM)
		os.Stdout.WriteString("ready\n")
		for s := range c {
			os.Stdout.WriteString(strconv.Itoa(int(s.(syscall.Signal))) + "\n")
			if s == syscall.SIGTERM {
				os.Exit(7)
			}
		}
	case "parent": // leaves a stubborn child in its group and ends on TERM
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), "COMMAND=stubborn")
		out, _ := c.StdoutPipe()
		if err := c.Start(); err != nil {
			os.Exit(99)
		}
		bufio.NewReader(out).ReadString('\n')
		os.Stdout.WriteString(strconv.Itoa(c.Process.Pid) + "\n")
		select {}
	case "supervisor": // supervises a stubborn command, to be killed itself
		c := command("stubborn")
		c.Stdout = os.Stdout
		l := &fakeLease{deadline: time.Now().Add(time.Hour), lost: make(chan struct{})}
		res, _ := Run(l, c, Options{Grace: time.Second, Say: func(string, ...any) {}})
		os.Exit(res.Code)
	case "exit":
		n, _ := strconv.Atoi(os.Getenv("STATUS"))
		os.Exit(n)
	}
}

type fakeLease struct {
	mu       sync.Mutex
	deadline time.Time
	err      error
	lost     chan struct{}
}

func lease(d time.Duration) *fakeLease {
	return &fakeLease{deadline: time.Now().Add(d), lost: make(chan struct{})}
}

func (l *fakeLease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

func (l *fakeLease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && !time.Now().Before(l.deadline) {
		return errors.New("over")
	}
	return l.err
}

func (l *fakeLease) Lost() <-chan struct{} { return l.lost }

func (l *fakeLease) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = errors.New("released by an operator")
	close(l.lost)
}

func (l *fakeLease) renew(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = time.Now().Add(d)
}

func command(what string, env ...string) *exec.Cmd {
	c := exec.Command(os.Args[0])
	c.Env = append(append(os.Environ(), "COMMAND="+what), env...)
	return c
}

// lines starts reading what the command says.
func lines(t *testing.T, c *exec.Cmd) *bufio.Scanner {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout = w
	t.Cleanup(func() { r.Close(); w.Close() })
	return bufio.NewScanner(r)
}

func TestStatus(t *testing.T) {
	for _, want := range []int{0, 1, 42, 80, 255} {
		res, err := Run(lease(time.Hour), command("exit", "STATUS="+strconv.Itoa(want)), Options{Grace: time.Second})
		if err != nil || res.Code != want || res.Stop != NotStopped {
			t.Errorf("status %d: got %+v, %v", want, res, err)
		}
	}
	c := exec.Command("/bin/sh", "-c", "kill -9 $$")
	if res, err := Run(lease(time.Hour), c, Options{Grace: time.Second}); err != nil || res.Code != 128+9 || res.Stop != NotStopped {
		t.Errorf("killed: got %+v, %v", res, err)
	}
}

func TestDoesNotStart(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, notFound := range map[string]bool{"no-such-command-anywhere": true, plain + "-absent": true, plain: false} {
		var start *StartError
		if _, err := Find(name); !errors.As(err, &start) || start.NotFound != notFound {
			t.Errorf("find %s: %v", name, err)
		}
		if _, err := Run(lease(time.Hour), exec.Command(name), Options{}); !errors.As(err, &start) {
			t.Errorf("run %s: %v", name, err)
		}
	}
}

// A command that ignores TERM is dead before the deadline.
func TestGoneBeforeTheDeadline(t *testing.T) {
	l, c := lease(1200*time.Millisecond), command("stubborn")
	out := lines(t, c)
	deadline := l.Deadline()
	res, err := Run(l, c, Options{Grace: 500 * time.Millisecond})
	ended := time.Now()
	if err != nil || res.Stop != LeaseEnding || res.Code != 128+9 {
		t.Errorf("got %+v, %v", res, err)
	}
	if !out.Scan() || out.Text() != "ready" {
		t.Error("it never began")
	}
	if !ended.Before(deadline) {
		t.Errorf("it ended %v after the deadline", ended.Sub(deadline))
	}
	if early := deadline.Sub(ended); early > 400*time.Millisecond {
		t.Errorf("it was killed %v before the deadline", early)
	}
}

// The whole group goes, also what the command left behind.
func TestGroupGoesToo(t *testing.T) {
	l, c := lease(1200*time.Millisecond), command("parent")
	out := lines(t, c)
	res, err := Run(l, c, Options{Grace: 600 * time.Millisecond})
	if err != nil || res.Stop != LeaseEnding || res.Code != 128+15 {
		t.Errorf("got %+v, %v", res, err)
	}
	if !out.Scan() {
		t.Fatal("it never began")
	}
	pid, err := strconv.Atoi(out.Text())
	if err != nil {
		t.Fatal(err)
	}
	// It was killed; whoever inherited it may not have reaped it yet.
	if state := processState(t, pid); state != "" && state != "Z" {
		t.Errorf("the grandchild still runs, state %s", state)
	}
}

// processState is the letter that the kernel shows, "" for no such process.
func processState(t *testing.T, pid int) string {
	t.Helper()
	for range 200 {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			return ""
		}
		state := strings.Fields(string(b)[strings.LastIndexByte(string(b), ')')+1:])[0]
		if state == "Z" || state == "X" {
			return state
		}
		tick := time.NewTimer(5 * time.Millisecond)
		<-tick.C
	}
	return "running"
}

// Renewals move the deadline, and nothing is stopped.
func TestRenewalsKeepItRunning(t *testing.T) {
	l, c := lease(600*time.Millisecond), command("signals")
	out := lines(t, c)
	var told []time.Time
	signals := make(chan os.Signal, 1)
	go func() {
		out.Scan()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for range 10 {
			<-tick.C
			l.renew(600 * time.Millisecond)
		}
		signals <- syscall.SIGTERM
	}()
	res, err := Run(l, c, Options{Grace: 200 * time.Millisecond, Signals: signals, Renewed: func(d time.Time) { told = append(told, d) }})
	if err != nil || res.Stop != NotStopped || res.Code != 7 {
		t.Errorf("got %+v, %v", res, err)
	}
	if len(told) < 4 {
		t.Errorf("told of %d deadlines", len(told))
	}
}

// Every signal reaches the command; what it makes of them is its own affair.
func TestSignalsArePassedOn(t *testing.T) {
	c := command("signals")
	out := lines(t, c)
	signals := make(chan os.Signal)
	var got []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		out.Scan()
		for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGQUIT, syscall.SIGINT, syscall.SIGWINCH, syscall.SIGTERM} {
			signals <- s
			out.Scan()
			got = append(got, out.Text())
		}
	}()
	res, err := Run(lease(time.Hour), c, Options{Grace: time.Second, Signals: signals})
	<-done
	if err != nil || res.Stop != NotStopped || res.Code != 7 {
		t.Errorf("got %+v, %v", res, err)
	}
	if want := "1 10 12 3 2 28 15"; strings.Join(got, " ") != want {
		t.Errorf("got signals %v, want %s", got, want)
	}
}

// A lock that was lost early: TERM at once, KILL after the grace, not at the
// far deadline.
func TestLostEarly(t *testing.T) {
	l, c := lease(time.Hour), command("stubborn")
	out := lines(t, c)
	lost := make(chan time.Time, 1)
	go func() { out.Scan(); lost <- time.Now(); l.lose() }()
	res, err := Run(l, c, Options{Grace: 300 * time.Millisecond})
	took := time.Since(<-lost)
	if err != nil || res.Stop != LeaseLost || res.Cause == nil || res.Code != 128+9 {
		t.Errorf("got %+v, %v", res, err)
	}
	if took < 250*time.Millisecond || took > 3*time.Second {
		t.Errorf("it took %v with a grace of 300ms", took)
	}
}

// A deadline that has passed when it is first looked at: KILL without TERM.
func TestPassedAlready(t *testing.T) {
	began := time.Now()
	res, err := Run(lease(-time.Second), command("stubborn"), Options{Grace: 30 * time.Second})
	if err != nil || res.Stop != LeaseLost || res.Code != 128+9 {
		t.Errorf("got %+v, %v", res, err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestMaxHold(t *testing.T) {
	c := command("signals")
	out := lines(t, c)
	res, err := Run(lease(time.Hour), c, Options{Grace: 10 * time.Second, MaxHold: 500 * time.Millisecond})
	if err != nil || res.Stop != HeldTooLong || res.Code != 7 {
		t.Errorf("got %+v, %v", res, err)
	}
	out.Scan() // its first line says that it runs
	if !out.Scan() || out.Text() != "15" {
		t.Errorf("it was not asked with TERM: %q", out.Text())
	}
}

// It ended by itself, but the lease was over by then.
func TestEndedUnprotected(t *testing.T) {
	l := lease(time.Hour)
	l.lose()
	l.lost = make(chan struct{}) // not told yet
	res, err := Run(l, command("exit", "STATUS=0"), Options{Grace: 10 * time.Second})
	if err != nil || res.Stop != LeaseLost || res.Cause == nil {
		t.Errorf("got %+v, %v", res, err)
	}
}

// A supervisor that is killed takes its command with it.
func TestDiesWithItsParent(t *testing.T) {
	c := command("supervisor")
	out := lines(t, c)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if !out.Scan() {
		t.Fatal("it never began")
	}
	children, err := os.ReadFile("/proc/" + strconv.Itoa(c.Process.Pid) + "/task/" + strconv.Itoa(c.Process.Pid) + "/children")
	if err != nil {
		t.Skip("this kernel does not list children")
	}
	var pids []string
	pids = strings.Fields(string(children))
	if len(pids) == 0 {
		// The forking thread need not be the main one.
		tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(c.Process.Pid) + "/task/*/children")
		for _, task := range tasks {
			b, _ := os.ReadFile(task)
			pids = append(pids, strings.Fields(string(b))...)
		}
	}
	if len(pids) != 1 {
		t.Fatalf("children %v", pids)
	}
	pid, _ := strconv.Atoi(pids[0])
	c.Process.Kill()
	c.Wait()
	if state := processState(t, pid); state != "" && state != "Z" {
		t.Errorf("the command outlived its supervisor, state %s", state)
	}
}
