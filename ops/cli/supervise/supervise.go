// Package supervise runs a command that may run only while a lease lasts: the
// heart of `mortise lock run`.
//
// The command gets a process group of its own and no shell. What ends it is
// planned backwards from the lease's local deadline, so that it is gone before
// anybody else can hold the lock:
//
//	deadline - grace   TERM to the group, unless a renewal moved the deadline
//	deadline - 50 ms   KILL to the group
//
// A lease that is lost earlier (an operator ended it, say) means TERM at once
// and KILL after the grace, or at the last known deadline if that is sooner. A
// deadline that has passed already when this process notices (it was stopped,
// or the host was suspended) means KILL at once.
package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Lease is what the command depends on. A *mortise.Grant is one.
type Lease interface {
	// Deadline is until when the lease is certain; renewals move it later.
	Deadline() time.Time
	// Err compares the clock: nil while the lease is certain.
	Err() error
	// Lost is closed when the lease is over.
	Lost() <-chan struct{}
}

const (
	// killLead is how long before the deadline KILL is sent: what a kernel needs
	// to end a process.
	killLead = 50 * time.Millisecond
	// look is how often the lease is looked at. Timers stand still while a host
	// is suspended, so one long timer would not do.
	look = 100 * time.Millisecond
	// renewalStep tells a renewal from the jitter between two clocks.
	renewalStep = 10 * time.Millisecond
	// groupLook is how often the group is asked for members when its leader has
	// ended and it must be empty before the deadline.
	groupLook = 5 * time.Millisecond
)

// Options are how to run and stop.
type Options struct {
	// Grace is the time between TERM and KILL.
	Grace time.Duration
	// MaxHold ends the command after this time even if the lease goes on; 0:
	// never.
	MaxHold time.Duration
	// Signals are passed on to the group.
	Signals <-chan os.Signal
	// Terminal is this process's controlling terminal if the command shall have
	// it in the foreground; nil when not interactive.
	Terminal *os.File
	// Renewed is told each new deadline, the first one included; may be nil.
	Renewed func(time.Time)
	// Say tells a person what happens; may be nil.
	Say func(format string, args ...any)
}

// Stop says why the command was stopped.
type Stop int

// Reasons to stop a command.
const (
	// NotStopped: it ended by itself.
	NotStopped Stop = iota
	// LeaseEnding: renewals were late and the deadline came near.
	LeaseEnding
	// LeaseLost: the lease was over.
	LeaseLost
	// HeldTooLong: MaxHold.
	HeldTooLong
)

func (s Stop) String() string {
	return [...]string{"ended by itself", "the lease was not renewed in time", "the lock was lost", "--max-hold ran out"}[s]
}

// Result is how it ended.
type Result struct {
	// Code is the command's status, or 128 + n if signal n killed it.
	Code int
	Stop Stop
	// Cause is the lease's error when it is over.
	Cause error
}

// StartError: the command did not begin. NotFound or the other reason.
type StartError struct {
	NotFound bool
	Err      error
}

func (e *StartError) Error() string { return e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// Find looks the command up as a shell would.
func Find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil || errors.Is(err, exec.ErrDot) {
		return path, nil
	}
	return "", &StartError{errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist), fmt.Errorf("command %s: %w", name, errors.Unwrap(err))}
}

// Run starts cmd and returns when it has ended and, if it had to be stopped,
// its whole group with it. cmd's files must be *os.File or nil.
func Run(lease Lease, cmd *exec.Cmd, o Options) (Result, error) {
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	if o.Renewed == nil {
		o.Renewed = func(time.Time) {}
	}
	cmd.SysProcAttr = attributes(o.Terminal)
	started, exited := make(chan error), make(chan error, 1)
	go func() {
		// The parent-death signal comes when the thread that forked ends, so that
		// thread must last as long as the command.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			exited <- cmd.Wait()
		}
		runtime.UnlockOSThread()
	}()
	if err := <-started; err != nil {
		return Result{}, &StartError{errors.Is(err, os.ErrNotExist), fmt.Errorf("command %s: %w", cmd.Path, err)}
	}
	r := &runner{lease: lease, o: o, group: cmd.Process.Pid, deadline: lease.Deadline()}
	if o.Terminal != nil {
		t := takeTerminal(o.Terminal, r.group)
		defer t.giveBack()
		r.stops = t.stops
		r.terminal = t
	}
	err := r.wait(exited)
	res := Result{Code: exitCode(cmd.ProcessState), Stop: r.stop, Cause: lease.Err()}
	if res.Stop == NotStopped && res.Cause != nil {
		// It ended by itself in the very moment in which the lease was over: what
		// it did last was not protected.
		res.Stop = LeaseLost
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return res, err
	}
	return res, nil
}

type runner struct {
	lease    Lease
	o        Options
	group    int
	deadline time.Time
	stop     Stop
	// killAt is set once TERM was sent.
	killAt   time.Time
	killed   bool
	terminal *terminal
	stops    <-chan os.Signal
}

// wait goes on until the command has ended.
func (r *runner) wait(exited <-chan error) error {
	r.o.Renewed(r.deadline)
	if left := time.Until(r.deadline); left < r.o.Grace {
		r.o.Say("only %v of the lease are left, less than the grace of %v: the command may be stopped at once", left.Round(time.Millisecond), r.o.Grace)
	}
	var tooLong <-chan time.Time
	if r.o.MaxHold > 0 {
		t := time.NewTimer(r.o.MaxHold)
		defer t.Stop()
		tooLong = t.C
	}
	lost := r.lease.Lost()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case err := <-exited:
			if r.stop != NotStopped {
				r.emptyGroup()
			}
			return err
		case s := <-r.o.Signals:
			if n, ok := s.(syscall.Signal); ok {
				r.signal(n)
			}
		case <-r.stops:
			r.terminal.commandStopped(func() { r.check() })
		case <-tooLong:
			r.begin(HeldTooLong)
		case <-lost:
			lost = nil
			r.check()
		case <-timer.C:
			r.check()
		}
		timer.Reset(r.next())
	}
}

// check looks at the clock and does what is due.
func (r *runner) check() {
	// The lease's clock goes on while the host is suspended, this process's does
	// not: after waking, the same deadline is nearer than it was. So it is taken
	// anew each time, and only a real step counts as a renewal.
	if d := r.lease.Deadline(); !d.IsZero() {
		renewed := d.Sub(r.deadline) > renewalStep
		r.deadline = d
		if renewed {
			r.o.Renewed(d)
		}
	}
	now := time.Now()
	switch {
	case r.lease.Err() != nil:
		r.begin(LeaseLost)
	case now.Add(r.o.Grace).After(r.deadline):
		r.begin(LeaseEnding)
	}
	if r.stop != NotStopped && r.deadline.Add(-killLead).Before(r.killAt) {
		r.killAt = r.deadline.Add(-killLead)
	}
	if r.stop != NotStopped && !r.killed && !now.Before(r.killAt) {
		r.killed = true
		r.o.Say("KILL to the command: it did not end in time")
		r.signal(syscall.SIGKILL)
	}
}

// begin stops the command with TERM, once.
func (r *runner) begin(why Stop) {
	if r.stop != NotStopped {
		if why == LeaseLost && r.stop != LeaseLost {
			r.stop = LeaseLost
		}
		return
	}
	r.stop = why
	now := time.Now()
	r.killAt = r.deadline.Add(-killLead)
	if grace := now.Add(r.o.Grace); why != LeaseEnding && grace.Before(r.killAt) {
		r.killAt = grace
	}
	if !now.Before(r.killAt) {
		r.o.Say("%v: the deadline has passed, KILL to the command", why)
		r.killed = true
		r.signal(syscall.SIGKILL)
		return
	}
	r.o.Say("%v: TERM to the command, KILL in %v", why, r.killAt.Sub(now).Round(time.Millisecond))
	r.signal(syscall.SIGTERM)
	// A stopped process acts on TERM only when it continues.
	r.signal(syscall.SIGCONT)
}

// next is how long nothing is due.
func (r *runner) next() time.Duration {
	at := r.deadline.Add(-r.o.Grace)
	if r.stop != NotStopped {
		at = r.killAt
		if r.killed {
			return look
		}
	}
	return max(0, min(look, time.Until(at)))
}

// emptyGroup waits for what the command left behind in its group, and kills it
// when the time has come.
func (r *runner) emptyGroup() {
	t := time.NewTicker(groupLook)
	defer t.Stop()
	for r.signal(0) == nil {
		if r.killed = r.killed || !time.Now().Before(r.killAt); r.killed {
			// Members that ended but were not reaped by their parent count as members
			// still, so once is enough.
			r.signal(syscall.SIGKILL)
			return
		}
		<-t.C
	}
}

func (r *runner) signal(s syscall.Signal) error { return syscall.Kill(-r.group, s) }

func exitCode(s *os.ProcessState) int {
	if s == nil {
		return 1
	}
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return s.ExitCode()
}
