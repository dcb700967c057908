package mortise

import (
	"context"
	"database/sql/driver"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"github.com/mortise-lock/mortise/sdk/core"
)

// Token is a fencing token: it rises for each grant of a name and never
// repeats. Always above 0 and below 2^53.
type Token int64

// Value stores it as a BIGINT.
func (t Token) Value() (driver.Value, error) { return int64(t), nil }

// MarshalText writes it in decimal.
func (t Token) MarshalText() ([]byte, error) { return strconv.AppendInt(nil, int64(t), 10), nil }

// UnmarshalText reads it from decimal.
func (t *Token) UnmarshalText(b []byte) error {
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil || n <= 0 || n >= 1<<53 {
		return fmt.Errorf("%w: token must be 1 to 2^53-1 (is %q)", ErrInvalid, b)
	}
	*t = Token(n)
	return nil
}

// Mode says what other holders a hold tolerates.
type Mode int

// Modes.
const (
	Exclusive Mode = iota + 1
	Shared
	Counted
)

// String names it as the service does.
func (m Mode) String() string {
	switch m {
	case Exclusive:
		return "exclusive"
	case Shared:
		return "shared"
	case Counted:
		return "counted"
	}
	return "mode(" + strconv.Itoa(int(m)) + ")"
}

// Grant is one period of holding. It is single-use: once over, it stays over.
// Its methods are safe for concurrent use.
type Grant struct {
	s         *Session
	id        core.ID
	name      string
	mode      Mode
	onSuspect func(Suspect)
	asked     time.Duration

	// Written under Session.mu before ready is closed.
	ready  chan struct{}
	news   chan struct{} // capacity 1: queued changed; nil unless wanted
	result core.Result   // how the acquire went
	queued core.Result   // the newest ResultQueued
	refuse *lockv1.Failure
	token  Token
	cover  *cover
	own    time.Duration // deadline by the grant itself
	capAt  time.Duration // 0: none

	ctx    leaseContext
	cancel context.CancelCauseFunc

	// Releasing.
	releasing bool // under Session.mu
	relOnce   sync.Once
	relDone   chan struct{}
	relErr    error // before relDone is closed
}

// cover is the deadline that renewals of one registration have brought to all
// of its holds, in time.Duration of the session's clock; 0: none.
type cover struct{ deadline atomic.Int64 }

// Name is the lock's full name, its namespace included.
func (g *Grant) Name() string { return g.name }

// Mode is the mode that was asked for.
func (g *Grant) Mode() Mode { return g.mode }

// Token is the fencing token: hand it to whatever the lock protects.
func (g *Grant) Token() Token { return g.token }

// Sequencer is a printable proof of the hold for other services: name, mode
// and token. See ParseSequencer.
func (g *Grant) Sequencer() string {
	return "m1." + g.mode.String() + "." + strconv.FormatInt(int64(g.token), 10) + "." + url.PathEscape(g.name)
}

// ParseSequencer reads what Sequencer wrote.
func ParseSequencer(s string) (name string, mode Mode, token Token, err error) {
	p := strings.SplitN(s, ".", 4)
	if len(p) == 4 && p[0] == "m1" {
		for m := Exclusive; m <= Counted; m++ {
			if m.String() == p[1] {
				mode = m
			}
		}
		name, err = url.PathUnescape(p[3])
		if err == nil && mode != 0 && name != "" && token.UnmarshalText([]byte(p[2])) == nil {
			return name, mode, token, nil
		}
	}
	return "", 0, 0, fmt.Errorf("%w: sequencer must be m1.<mode>.<token>.<name> (is %q)", ErrInvalid, s)
}

// Context ends when protection ends; context.Cause is then a *LostError or
// ErrReleased. Its Err and Done compare the clock, so they tell of a loss at
// once after the process or host stood still. A context derived from it hears
// of a loss a moment later, when a timer fires.
func (g *Grant) Context() context.Context { return &g.ctx }

// until is the present deadline on the session's clock.
func (g *Grant) until() time.Duration {
	d := max(g.own, time.Duration(g.cover.deadline.Load()))
	if g.capAt != 0 {
		d = min(d, g.capAt)
	}
	return d
}

// Deadline is until when protection is certain without another word from the
// service. Renewals move it later.
func (g *Grant) Deadline() time.Time { return time.Now().Add(g.until() - g.s.clock()) }

// Err is nil while protected; else a *LostError or ErrReleased.
func (g *Grant) Err() error {
	if g.ctx.Err() == nil {
		return nil
	}
	return context.Cause(g.ctx.inner)
}

// compare ends the context if the clock says that the lease is over.
func (g *Grant) compare() {
	if g.ctx.inner.Err() != nil {
		return
	}
	now := g.s.clock()
	if now < g.until() {
		return
	}
	why := core.LostDeadline
	if g.capAt != 0 && now >= g.capAt {
		why = core.LostMaxHold
	}
	if err := g.lose(why); err != nil {
		g.logLost(err)
		g.s.do(func(c *core.Session, now core.Time, out *core.Output) { c.ConcludeLost(now, g.id, why, out) })
	}
}

// lose ends protection; it returns the loss if it did.
func (g *Grant) lose(why core.LostReason) *LostError {
	if g.ctx.inner.Err() != nil {
		return nil
	}
	err := &LostError{Name: g.name, Token: g.token, Reason: lostReason(why), At: time.Now()}
	g.cancel(err)
	if context.Cause(g.ctx.inner) != error(err) {
		return nil
	}
	return err
}

func (g *Grant) logLost(err *LostError) {
	g.s.c.log.Warn("lock lost", "lock", g.name, "token", int64(g.token), "reason", err.Reason.String())
}

// Check asks the service whether the hold is current, linearizably. ErrNotHeld
// if not.
func (g *Grant) Check(ctx context.Context) error {
	if err := g.Err(); err != nil {
		return err
	}
	var current bool
	err := g.s.c.unary(ctx, func(ctx context.Context, api lockv1.LockServiceClient) error {
		r, err := api.CheckToken(ctx, &lockv1.CheckTokenRequest{Name: g.name, Token: uint64(g.token)})
		current = r.GetCurrent()
		return err
	})
	switch {
	case err != nil:
		return err
	case !current:
		return fmt.Errorf("%w: token %d of %q is not current", ErrNotHeld, g.token, g.name)
	}
	return g.Err()
}

// releaseGrace is how long Release waits for the answer after its context
// ended.
const releaseGrace = 2 * time.Second

// Release gives the lock back; protection ends at once. It may be repeated, and
// works with a context that has ended: then it waits up to two seconds for the
// answer. Its error is ErrNotHeld if protection had ended before, and
// ErrUnknown if no answer came in time (the release is then repeated in the
// background until it is answered or the session ends).
func (g *Grant) Release(ctx context.Context) error {
	g.relOnce.Do(func() {
		g.compare()
		g.cancel(ErrReleased)
		cause := context.Cause(g.ctx.inner)
		if cause != ErrReleased {
			g.relErr = fmt.Errorf("%w: %w", ErrNotHeld, cause)
			close(g.relDone)
		}
		g.s.do(func(c *core.Session, now core.Time, out *core.Output) {
			if cause == ErrReleased {
				g.releasing = true
				if g.s.grants[g.id] != g {
					g.released(nil) // it ended a moment before, and with it the hold
				}
			}
			c.Release(now, g.id, out) // also after a loss: frees what the service may still have
		})
	})
	select {
	case <-g.relDone:
		return g.relErr
	case <-ctx.Done():
	}
	t := time.NewTimer(releaseGrace)
	defer t.Stop()
	select {
	case <-g.relDone:
		return g.relErr
	case <-t.C:
		return fmt.Errorf("%w: release of %q was not answered yet and goes on in the background: %w", ErrUnknown, g.name, ctx.Err())
	}
}

// released is the service's answer; under Session.mu.
func (g *Grant) released(f *lockv1.Failure) {
	if !g.releasing {
		return
	}
	g.releasing = false
	if f != nil {
		err := failureError(f)
		g.relErr = fmt.Errorf("%w: %w", ErrNotHeld, err)
	}
	close(g.relDone)
}

// leaseContext is a context that compares the clock whenever it is looked at.
type leaseContext struct {
	inner   context.Context // ended by a cancel-cause function
	compare func()
}

// Deadline reports none: the lease's end moves. See Grant.Deadline.
func (c *leaseContext) Deadline() (time.Time, bool) { return c.inner.Deadline() }

func (c *leaseContext) Done() <-chan struct{} {
	c.compare()
	return c.inner.Done()
}

func (c *leaseContext) Err() error {
	c.compare()
	return c.inner.Err()
}

// Value also serves context.Cause and derived contexts, which look here for
// the inner context.
func (c *leaseContext) Value(key any) any {
	c.compare()
	return c.inner.Value(key)
}
