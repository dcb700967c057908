package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	mortise "github.com/mortise-lock/mortise/sdk"
	"github.com/spf13/cobra"
)

func newLock(a *app) *cobra.Command {
	return group("lock", "Take locks and look at them", "use", `
		mortise lock run invoice/7 -- ./pay.sh       # run a command while holding a lock
		mortise lock hold invoice/7                  # hold until standard input ends
		mortise lock show invoice/7
		mortise lock ls invoice/`,
		newLockRun(a), newLockHold(a), newLockLs(a), newLockShow(a), newLockWatch(a), newLockRelease(a))
}

// lockConfig is what taking a lock needs.
type lockConfig struct {
	endpoints []string
	owner     string
	ttl       time.Duration
}

// lockSource takes one lock.
type lockSource interface {
	// acquire waits until ctx ends, or not at all with r.try.
	acquire(ctx context.Context, r lockRequest) (heldLock, error)
	close(ctx context.Context) error
}

// lockRequest is what to take.
type lockRequest struct {
	name      string
	try       bool
	shared    bool
	permits   mortise.Permits // zero: not counted
	lockDelay time.Duration
	queued    func(mortise.Queued)
}

// heldLock is a grant.
type heldLock interface {
	Token() mortise.Token
	Mode() mortise.Mode
	Sequencer() string
	Deadline() time.Time
	Err() error
	Lost() <-chan struct{}
	Release(ctx context.Context) error
}

// openSDK is the lock source of real life.
func openSDK(ctx context.Context, c lockConfig) (lockSource, error) {
	client, err := mortise.Open(ctx, mortise.Config{Endpoints: c.endpoints, Owner: c.owner, SessionTTL: c.ttl})
	if err != nil {
		return nil, err
	}
	return sdkSource{client}, nil
}

type sdkSource struct{ client *mortise.Client }

func (s sdkSource) acquire(ctx context.Context, r lockRequest) (heldLock, error) {
	var opts []mortise.AcquireOption
	if r.lockDelay > 0 {
		opts = append(opts, mortise.WithLockDelay(r.lockDelay))
	}
	if r.queued != nil {
		opts = append(opts, mortise.WithOnQueued(r.queued))
	}
	take := s.client.Lock
	switch {
	case r.permits.Of > 0:
		counted := s.client.Acquire
		if r.try {
			counted = s.client.TryAcquire
		}
		take = func(ctx context.Context, name string, opts ...mortise.AcquireOption) (*mortise.Grant, error) {
			return counted(ctx, name, r.permits, opts...)
		}
	case r.shared && r.try:
		take = s.client.TryRLock
	case r.shared:
		take = s.client.RLock
	case r.try:
		take = s.client.TryLock
	}
	g, err := take(ctx, r.name, opts...)
	if err != nil {
		return nil, err
	}
	return sdkGrant{g}, nil
}

func (s sdkSource) close(ctx context.Context) error { return s.client.Close(ctx) }

type sdkGrant struct{ *mortise.Grant }

// Lost closes when protection ends.
func (g sdkGrant) Lost() <-chan struct{} { return g.Context().Done() }

// acquireFlags are shared by run and hold.
type acquireFlags struct {
	try       bool
	timeout   time.Duration
	busyCode  int
	shared    bool
	permits   string
	lockDelay time.Duration
	ttl       time.Duration
	owner     string
	verbose   bool
}

func (f *acquireFlags) add(c *cobra.Command) {
	fl := c.Flags()
	fl.BoolVar(&f.try, "try", false, "do not wait for the lock")
	fl.DurationVar(&f.timeout, "timeout", 0, "wait at most this long, such as 30s; 0: without end")
	fl.IntVarP(&f.busyCode, "busy-code", "E", 0, "exit code when the lock is not acquired, instead of 75")
	fl.BoolVar(&f.shared, "shared", false, "share the lock with other shared holders")
	fl.StringVar(&f.permits, "permits", "", "take permits of a counted lock: 2/10 is two of ten")
	fl.DurationVar(&f.lockDelay, "lock-delay", 0, "if this session expires, nobody gets the lock for this long, such as 5s")
	fl.DurationVar(&f.ttl, "ttl", 10*time.Second, "how long the lock outlives this process's last heartbeat; 1s to 10m")
	fl.StringVar(&f.owner, "owner", "", "the name shown to others; unset: host and process")
	fl.BoolVar(&f.verbose, "verbose", false, "show the place in the queue on standard error")
}

// request checks the flags.
func (f *acquireFlags) request(cmd *cobra.Command, name string) (lockRequest, error) {
	r := lockRequest{name: name, try: f.try, shared: f.shared, lockDelay: f.lockDelay}
	path := cmd.CommandPath()
	switch {
	case f.try && f.timeout > 0:
		return r, usagef(path+" --timeout "+f.timeout.String()+" NAME", "--try does not wait, so --timeout has no use with it")
	case f.timeout < 0:
		return r, usagef(path+" --timeout 30s NAME", "--timeout must be 0 or more; %v is not", f.timeout)
	case f.lockDelay < 0:
		return r, usagef(path+" --lock-delay 5s NAME", "--lock-delay must be 0 or more; %v is not", f.lockDelay)
	case f.ttl < time.Second || f.ttl > 10*time.Minute:
		return r, usagef(path+" --ttl 10s NAME", "--ttl must be 1s to 10m; %v is not", f.ttl)
	case f.busyCode < 0 || f.busyCode > 255:
		return r, usagef(path+" -E 75 NAME", "-E must be 0 to 255; %d is not", f.busyCode)
	case f.shared && f.permits != "":
		return r, usagef(path+" --shared NAME", "--shared and --permits exclude each other")
	}
	if f.permits != "" {
		take, of, ok := strings.Cut(f.permits, "/")
		t, err1 := strconv.Atoi(take)
		n, err2 := strconv.Atoi(of)
		if !ok || err1 != nil || err2 != nil || t < 1 || n < t {
			return r, usagef(path+" --permits 2/10 NAME", "--permits must be TAKE/OF with 1 <= TAKE <= OF; %q is not", f.permits)
		}
		r.permits = mortise.Permits{Take: t, Of: n}
	}
	return r, nil
}

// take opens a session and acquires. The caller closes what it returns.
func (a *app) take(ctx context.Context, f *acquireFlags, r lockRequest) (lockSource, heldLock, error) {
	src, err := a.openLock(ctx, lockConfig{a.endpoints, f.owner, f.ttl})
	if err != nil {
		return nil, nil, a.sdkError(err, f, r.name)
	}
	if f.verbose {
		r.queued = func(q mortise.Queued) { a.sayf("waiting for %s: %d in front", r.name, q.Position) }
	}
	wait := ctx
	// Without a deadline a try would look for a leader for ever.
	if limit := f.timeout; limit > 0 || f.try {
		if limit == 0 {
			limit = 10 * time.Second
		}
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	held, err := src.acquire(wait, r)
	if err != nil {
		a.giveBack(src, nil, f.ttl)
		return nil, nil, a.sdkError(err, f, r.name)
	}
	return src, held, nil
}

// goodbye is how long giving back may take while the cluster might answer.
const goodbye = 3 * time.Second

// giveBack releases what is held, if anything, and ends the session. It takes
// no longer than goodbye and the session's time to live, whatever happens to
// the cluster: after that the service ends both by itself.
func (a *app) giveBack(src lockSource, held heldLock, ttl time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), min(goodbye, ttl))
	defer cancel()
	if held != nil && held.Err() == nil {
		released := make(chan error, 1)
		go func() { released <- held.Release(ctx) }() // it may take a little longer than ctx
		var err error
		select {
		case err = <-released:
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			a.sayf("the lock could not be released and ends with its session: %v", err)
		}
	}
	_ = src.close(ctx) // the session that can't be closed expires
}

// sdkError gives an error of the SDK its kind.
func (a *app) sdkError(err error, f *acquireFlags, name string) error {
	e := &Error{Kind: Failed, Err: err, Next: "mortise lock show " + name}
	var held *mortise.HeldError
	switch {
	case errors.As(err, &held), errors.Is(err, mortise.ErrHeld):
		e.Kind, e.Code = NotAcquired, f.busyCode
	case errors.Is(err, mortise.ErrInvalid):
		e.Kind, e.Next = Usage, "mortise lock run --help"
	case errors.Is(err, mortise.ErrDenied), errors.Is(err, mortise.ErrQuota):
		e.Kind = Denied
	case errors.Is(err, mortise.ErrUnavailable):
		e.Kind, e.Next = Unreachable, "mortise cluster status --endpoints "+strings.Join(a.endpoints, ",")
	case errors.Is(err, context.DeadlineExceeded):
		e.Kind, e.Code = NotAcquired, f.busyCode
		e.Err = fmt.Errorf("lock %s was not acquired in time: %w", name, err)
	case errors.Is(err, context.Canceled):
		e.Kind, e.Code, e.Err = Interrupted, 130, interrupted(name, err)
	}
	return e
}

// interrupted says what was waited for and, if the service refused it
// meanwhile, why.
func interrupted(name string, err error) error {
	why := ""
	if errors.Is(err, mortise.ErrQuota) || errors.Is(err, mortise.ErrUnavailable) {
		why = ": " + strings.TrimPrefix(err.Error(), context.Canceled.Error()+": ")
	}
	return fmt.Errorf("interrupted while waiting for %s%s", name, why)
}
