package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/mortise-lock/mortise/ops/cli/supervise"
	"github.com/spf13/cobra"
)

func newLockRun(a *app) *cobra.Command {
	f := &acquireFlags{}
	var grace, maxHold time.Duration
	c := &cobra.Command{
		Use:   "run [flags] NAME -- COMMAND [ARGUMENTS]",
		Short: "Run a command while holding a lock",
		Long: example(`
			mortise lock run invoice/7 -- ./pay.sh
			mortise lock run --try nightly -- ./backup.sh
			mortise lock run --permits 2/10 gpu -- ./train`) +
			`Acquires the lock, runs the command without a shell in a process group of its
own, and releases. The command is stopped before the lease can pass on: TERM at
the deadline less --grace, KILL at the deadline; the exit code is then 80. Its
environment has MORTISE_LOCK, MORTISE_TOKEN (the fencing token: give it to the
store), MORTISE_SEQUENCER, and MORTISE_DEADLINE_FILE, a file whose time is the
present deadline. INT, TERM, HUP, QUIT, USR1, USR2 and WINCH are passed on.
Otherwise the exit code is the command's own, or 128 + n if signal n killed it.
` + exits(69, 75, 77, 80, 125, 126, 127),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 || cmd.ArgsLenAtDash() != 1 {
				return usagef("mortise lock run NAME -- COMMAND", "mortise lock run takes one name, then -- and a command")
			}
			return nil
		},
	}
	f.add(c)
	c.Flags().DurationVar(&grace, "grace", 2*time.Second, "time between TERM and KILL when the lease ends")
	c.Flags().DurationVar(&maxHold, "max-hold", 0, "stop the command after this time, such as 1h; 0: never")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := f.request(cmd, args[0])
		switch {
		case err != nil:
			return err
		case grace < 0 || grace >= f.ttl:
			return usagef("mortise lock run --grace 2s NAME -- COMMAND", "--grace must be 0 or more and below --ttl (%v); %v is not", f.ttl, grace)
		case maxHold < 0:
			return usagef("mortise lock run --max-hold 1h NAME -- COMMAND", "--max-hold must be 0 or more; %v is not", maxHold)
		}
		return a.lockRun(cmd.Context(), f, r, args[1:], supervise.Options{Grace: grace, MaxHold: maxHold})
	}
	return c
}

func (a *app) lockRun(ctx context.Context, f *acquireFlags, r lockRequest, argv []string, o supervise.Options) error {
	path, err := supervise.Find(argv[0])
	if err != nil {
		return startError(err)
	}
	src, held, err := a.takeUntilSignal(ctx, f, r)
	if err != nil {
		return err
	}
	defer a.giveBack(src, held, f.ttl)
	deadlines, err := os.CreateTemp("", "mortise-deadline-")
	if err != nil {
		return &Error{Kind: NotStarted, Err: err}
	}
	deadlines.Close()
	defer os.Remove(deadlines.Name())
	cmd := exec.Command(path, argv[1:]...)
	cmd.Args[0] = argv[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.In, file(a.Out), file(a.Err)
	cmd.Env = append(append([]string{}, a.Environ...), "MORTISE_LOCK="+r.name, fmt.Sprintf("MORTISE_TOKEN=%d", held.Token()),
		"MORTISE_SEQUENCER="+held.Sequencer(), "MORTISE_DEADLINE_FILE="+deadlines.Name())
	o.Signals = a.Signals
	o.Terminal = supervise.Foreground(a.In)
	o.Say = a.sayf
	o.Renewed = func(d time.Time) { _ = os.Chtimes(deadlines.Name(), d, d) }
	res, err := supervise.Run(held, cmd, o)
	switch {
	case err != nil:
		return startError(err)
	case res.Stop == supervise.HeldTooLong, res.Stop == supervise.NotStopped:
		if res.Stop == supervise.HeldTooLong {
			a.sayf("the command was stopped: %v", res.Stop)
		}
		return &Error{Kind: CommandStatus, Code: res.Code}
	default:
		cause := res.Cause
		if cause == nil {
			cause = errors.New(res.Stop.String())
		}
		return &Error{Kind: LockLost, Err: fmt.Errorf("lock %s: the command was stopped because %w", r.name, cause), Next: "mortise lock show " + r.name}
	}
}

// file is the file behind a writer, for a child; nil discards.
func file(w io.Writer) *os.File {
	f, _ := w.(*os.File)
	return f
}

func startError(err error) error {
	e := &Error{Kind: NotStarted, Err: err}
	var s *supervise.StartError
	if errors.As(err, &s) {
		e.Kind = CantExecute
		if s.NotFound {
			e.Kind = NoCommand
		}
	}
	return e
}

// takeUntilSignal acquires; a signal that ends processes ends the wait.
func (a *app) takeUntilSignal(ctx context.Context, f *acquireFlags, r lockRequest) (lockSource, heldLock, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done, over := make(chan struct{}), make(chan struct{})
	code := 0
	go func() {
		defer close(over)
		for {
			select {
			case <-done:
				return
			case s := <-a.Signals:
				if n, ok := s.(syscall.Signal); ok && n != syscall.SIGWINCH && n != syscall.SIGUSR1 && n != syscall.SIGUSR2 {
					code = 128 + int(n)
					cancel()
					return
				}
			}
		}
	}()
	src, held, err := a.take(ctx, f, r)
	close(done)
	<-over
	if err != nil && code != 0 {
		return nil, nil, &Error{Kind: Interrupted, Code: code, Err: interrupted(r.name, err)}
	}
	if err == nil && code != 0 {
		a.giveBack(src, held, f.ttl)
		return nil, nil, &Error{Kind: Interrupted, Code: code}
	}
	return src, held, err
}

func newLockHold(a *app) *cobra.Command {
	f := &acquireFlags{}
	c := &cobra.Command{
		Use:   "hold NAME",
		Short: "Hold a lock until standard input ends or a signal comes",
		Long: example(`
			mortise lock hold invoice/7                  # until Ctrl-D or Ctrl-C
			sleep 60 | mortise lock hold invoice/7       # for a minute`) + `Acquires the lock, prints the grant as one JSON line, and holds until standard
input ends or a signal comes; then releases. If the lock is lost meanwhile, it
says so and exits with 80. The line has name, token (the fencing token), mode,
sequencer, lease_for_ms and pid.
` + exits(69, 75, 77, 80),
		Args: exactArgs(1, "one name"),
	}
	f.add(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := f.request(cmd, args[0])
		if err != nil {
			return err
		}
		return a.lockHold(cmd.Context(), f, r)
	}
	return c
}

// grantLine is what lock hold prints.
type grantLine struct {
	Name       string `json:"name"`
	Token      int64  `json:"token"`
	Mode       string `json:"mode"`
	Sequencer  string `json:"sequencer"`
	LeaseForMS int64  `json:"lease_for_ms"`
	PID        int    `json:"pid"`
}

func (a *app) lockHold(ctx context.Context, f *acquireFlags, r lockRequest) error {
	src, held, err := a.takeUntilSignal(ctx, f, r)
	if err != nil {
		return err
	}
	defer a.giveBack(src, held, f.ttl)
	if err := a.printJSON(grantLine{r.name, int64(held.Token()), held.Mode().String(), held.Sequencer(), time.Until(held.Deadline()).Milliseconds(), os.Getpid()}, ""); err != nil {
		return &Error{Kind: Failed, Err: err}
	}
	input := make(chan struct{})
	go func() {
		defer close(input)
		_, _ = io.Copy(io.Discard, a.In)
	}()
	// A timer may fire late after a pause; looking often costs nothing.
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-input:
			return nil
		case s := <-a.Signals:
			if n, ok := s.(syscall.Signal); ok && n != syscall.SIGWINCH {
				return nil
			}
		case <-held.Lost():
		case <-look.C:
		}
		if err := held.Err(); err != nil {
			return &Error{Kind: LockLost, Err: fmt.Errorf("lock %s is lost: %w", r.name, err), Next: "mortise lock show " + r.name}
		}
	}
}
