package mortise

import (
	"context"
	"errors"
	"fmt"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"github.com/mortise-lock/mortise/sdk/core"
	"google.golang.org/grpc/codes"
)

// Permits of a counted lock: to take Take of Of in all. Whoever uses the lock
// first fixes Of until it is free again.
type Permits struct{ Take, Of int }

// Lock takes the lock alone, waiting first come first served until ctx ends.
// It is not re-entrant.
func (s *Session) Lock(ctx context.Context, name string, opts ...AcquireOption) (*Grant, error) {
	return s.acquire(ctx, s.ns, name, want{mode: Exclusive, wait: true}, opts)
}

// TryLock takes the lock alone if it is free, else returns a *HeldError.
func (s *Session) TryLock(ctx context.Context, name string, opts ...AcquireOption) (*Grant, error) {
	return s.acquire(ctx, s.ns, name, want{mode: Exclusive}, opts)
}

// RLock takes the lock together with other readers. A reader behind a waiting
// writer waits.
func (s *Session) RLock(ctx context.Context, name string, opts ...AcquireOption) (*Grant, error) {
	return s.acquire(ctx, s.ns, name, want{mode: Shared, wait: true}, opts)
}

// TryRLock takes the lock as a reader if that needs no waiting.
func (s *Session) TryRLock(ctx context.Context, name string, opts ...AcquireOption) (*Grant, error) {
	return s.acquire(ctx, s.ns, name, want{mode: Shared}, opts)
}

// Acquire takes permits of a counted lock, waiting until ctx ends.
func (s *Session) Acquire(ctx context.Context, name string, p Permits, opts ...AcquireOption) (*Grant, error) {
	return s.acquire(ctx, s.ns, name, want{mode: Counted, wait: true, permits: p}, opts)
}

// TryAcquire takes permits of a counted lock if they are free, else returns a
// *HeldError.
func (s *Session) TryAcquire(ctx context.Context, name string, p Permits, opts ...AcquireOption) (*Grant, error) {
	return s.acquire(ctx, s.ns, name, want{mode: Counted, permits: p}, opts)
}

// Do holds the lock while fn runs. See Client.Do.
func (s *Session) Do(ctx context.Context, name string, fn func(context.Context, *Grant) error, opts ...AcquireOption) error {
	g, err := s.Lock(ctx, name, opts...)
	if err != nil {
		return err
	}
	return hold(ctx, g, fn)
}

// Lock takes the lock alone, waiting first come first served until ctx ends.
// It is not re-entrant: two acquires of one process exclude each other.
func (c *Client) Lock(ctx context.Context, name string, opts ...AcquireOption) (*Grant, error) {
	return c.acquire(ctx, name, want{mode: Exclusive, wait: true}, opts)
}

// TryLock takes the lock alone if it is free, else returns a *HeldError.
func (c *Client) TryLock(ctx context.Context, name string, opts ...AcquireOption) (*Grant, error) {
	return c.acquire(ctx, name, want{mode: Exclusive}, opts)
}

// RLock takes the lock together with other readers. A reader behind a waiting
// writer waits.
func (c *Client) RLock(ctx context.Context, name string, opts ...AcquireOption) (*Grant, error) {
	return c.acquire(ctx, name, want{mode: Shared, wait: true}, opts)
}

// TryRLock takes the lock as a reader if that needs no waiting.
func (c *Client) TryRLock(ctx context.Context, name string, opts ...AcquireOption) (*Grant, error) {
	return c.acquire(ctx, name, want{mode: Shared}, opts)
}

// Acquire takes permits of a counted lock, waiting until ctx ends.
func (c *Client) Acquire(ctx context.Context, name string, p Permits, opts ...AcquireOption) (*Grant, error) {
	return c.acquire(ctx, name, want{mode: Counted, wait: true, permits: p}, opts)
}

// TryAcquire takes permits of a counted lock if they are free, else returns a
// *HeldError.
func (c *Client) TryAcquire(ctx context.Context, name string, p Permits, opts ...AcquireOption) (*Grant, error) {
	return c.acquire(ctx, name, want{mode: Counted, permits: p}, opts)
}

// Do holds the lock while fn runs; renewals go on as long as it runs. fn's
// context ends when ctx ends or protection ends. The result joins fn's error
// with the *LostError if the lock was lost before fn returned, even when fn
// returned nil.
func (c *Client) Do(ctx context.Context, name string, fn func(context.Context, *Grant) error, opts ...AcquireOption) error {
	g, err := c.Lock(ctx, name, opts...)
	if err != nil {
		return err
	}
	return hold(ctx, g, fn)
}

func hold(ctx context.Context, g *Grant, fn func(context.Context, *Grant) error) (err error) {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	end := func() {
		if lost := g.Err(); lost != nil {
			cancel(lost)
		}
	}
	stop := context.AfterFunc(g.ctx.inner, end)
	defer stop()
	defer func() {
		// Also when fn panics.
		lost := g.Err()
		if errors.Is(lost, ErrReleased) {
			return // fn released it itself
		}
		released := g.Release(ctx)
		if lost != nil {
			err = errors.Join(err, lost)
		} else if released != nil && !errors.Is(released, ErrUnknown) {
			err = errors.Join(err, released)
		}
	}()
	return fn(&leaseContext{inner: inner, compare: end}, g)
}

// want is what an acquire asks for.
type want struct {
	mode    Mode
	wait    bool
	permits Permits
}

func (c *Client) acquire(ctx context.Context, name string, w want, opts []AcquireOption) (*Grant, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	return s.acquire(ctx, c.ns, name, w, opts)
}

func (s *Session) acquire(ctx context.Context, ns, name string, w want, opts []AcquireOption) (*Grant, error) {
	full, err := fullName(ns, name)
	if err != nil {
		return nil, err
	}
	var set acquireSettings
	for _, o := range opts {
		o.applyAcquire(&set)
	}
	req := core.Request{Name: full, Mode: lockv1.Mode(w.mode), LockDelay: set.lockDelay, MaxHold: set.maxHold}
	if w.mode == Counted {
		if w.permits.Of < 1 || w.permits.Of > MaxPermits || w.permits.Take < 1 || w.permits.Take > w.permits.Of {
			set.errs = append(set.errs, fmt.Errorf("%w: permits must have 1 <= Take <= Of <= %d (is %d of %d)",
				ErrInvalid, MaxPermits, w.permits.Take, w.permits.Of))
		}
		req.Permits, req.Limit = uint32(w.permits.Take), uint32(w.permits.Of)
	}
	if err := errors.Join(set.errs...); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if w.wait {
		req.Wait = 2 * core.MaxWait
		if d, ok := ctx.Deadline(); ok {
			// The service ends the wait by itself if our cancel gets lost.
			req.Wait = min(req.Wait, max(time.Until(d), time.Millisecond))
		}
	}
	g := &Grant{s: s, name: full, mode: w.mode, onSuspect: set.onSuspect, asked: s.clock(), ready: make(chan struct{}), relDone: make(chan struct{})}
	if set.onQueued != nil {
		g.news = make(chan struct{}, 1)
	}
	g.ctx.inner, g.cancel = context.WithCancelCause(context.Background())
	g.ctx.compare = g.compare

	s.do(func(c *core.Session, now core.Time, out *core.Output) {
		g.id = c.Acquire(now, req, out)
		s.grants[g.id] = g
	})
	for {
		select {
		case <-g.ready:
			if err := g.outcome(ctx); err != nil {
				return nil, err
			}
			return g, nil
		case <-g.news:
			s.mu.Lock()
			q := g.queued
			s.mu.Unlock()
			set.onQueued(Queued{Name: full, Position: int(q.Position), Holder: firstHolder(q.Holders)})
		case <-ctx.Done():
			return nil, g.giveUp(ctx)
		}
	}
}

func firstHolder(hs []*lockv1.Holder) Holder {
	if len(hs) == 0 {
		return Holder{}
	}
	return holder(hs[0])
}

// outcome is why an acquire that is over was not granted; nil if it was.
func (g *Grant) outcome(ctx context.Context) error {
	r := &g.result
	if r.Kind == core.ResultGranted {
		return nil
	}
	switch r.Reason {
	case lockv1.EndReason_END_REASON_BUSY:
		return g.held(r)
	case lockv1.EndReason_END_REASON_WAIT_OVER:
		// The wait limit was the context's own deadline.
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, g.held(r))
	case lockv1.EndReason_END_REASON_REFUSED:
		return failureError(r.Failure)
	}
	if err := g.s.Err(); err != nil {
		return err
	}
	return fmt.Errorf("%w: closed", ErrSessionEnded)
}

func (g *Grant) held(r *core.Result) *HeldError {
	e := &HeldError{Name: g.name, Holder: firstHolder(r.Holders), Queue: int(r.Position)}
	e.Own = e.Holder.Client == g.s.c.cfg.Owner
	return e
}

// giveUp: the context ended first. Whatever the acquire has or gets is given
// back in the background.
func (g *Grant) giveUp(ctx context.Context) error {
	s := g.s
	var queued core.Result
	var refused *lockv1.Failure
	var last error
	live := false
	s.do(func(c *core.Session, now core.Time, out *core.Output) {
		queued, refused, last, live = g.queued, g.refuse, s.last, c.Live()
		delete(s.grants, g.id)
		c.Cancel(now, g.id, out)
	})
	g.cancel(ErrReleased)
	cause := context.Cause(ctx)
	switch {
	case live && queued.Kind == core.ResultQueued:
		return fmt.Errorf("%w: %w", cause, g.held(&queued))
	case refused != nil && codes.Code(refused.Code) == codes.ResourceExhausted:
		return fmt.Errorf("%w: %w", cause, failureError(refused))
	case refused != nil:
		return fmt.Errorf("%w: %w: %w", cause, ErrUnavailable, failureError(refused))
	case errors.Is(ctx.Err(), context.Canceled):
		return cause
	case !live && last != nil:
		return fmt.Errorf("%w: %w: %w", cause, ErrUnavailable, last)
	}
	return fmt.Errorf("%w: %w", cause, ErrUnavailable)
}
