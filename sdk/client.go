package mortise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"google.golang.org/grpc/codes"
)

// Client takes and looks at locks. Safe for concurrent use; one per process is
// enough. It has a session of its own, begun by Open and replaced when the
// service refuses it.
type Client struct {
	*shared
	ns string
}

// shared is what all views of a client have in common.
type shared struct {
	cfg   Config
	log   *slog.Logger
	pool  *pool
	first int // the gateway to begin with

	mu       sync.Mutex
	own      *Session // the default session
	sessions map[*Session]struct{}
	over     bool
	prefer   int // the gateway that answered last
}

// Open makes a client. It does not wait for the network: the first acquire
// does, within its own context. Everything wrong with cfg is reported at once.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	first := rand.IntN(len(cfg.Endpoints))
	c := &Client{ns: cfg.Namespace, shared: &shared{cfg: cfg, log: cfg.Logger, first: first, prefer: first,
		pool: &pool{cfg: cfg, conns: make([]*conn, len(cfg.Endpoints))}, sessions: map[*Session]struct{}{}}}
	if _, err := c.session(); err != nil {
		return nil, err
	}
	return c, nil
}

// In is a view of the client with another namespace in place of its own ("":
// none). Session and connections are shared.
func (c *Client) In(namespace string) *Client { return &Client{shared: c.shared, ns: namespace} }

// Close ends every session of the client, and with them all grants, and waits
// for what runs in the background. See Session.Close.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	c.over = true
	var list []*Session
	for s := range c.sessions {
		list = append(list, s)
	}
	c.mu.Unlock()
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, s := range list {
		wg.Go(func() { errs[i] = s.Close(ctx) })
	}
	wg.Wait()
	c.pool.close()
	return errors.Join(errs...)
}

// SessionOption changes a session.
type SessionOption interface{ applySession(*sessionSettings) }

type sessionSettings struct {
	ttl time.Duration
	err error
}

type sessionOption func(*sessionSettings)

func (f sessionOption) applySession(s *sessionSettings) { f(s) }

// WithTTL gives the session a TTL other than Config.SessionTTL.
func WithTTL(d time.Duration) SessionOption {
	return sessionOption(func(s *sessionSettings) {
		if d < MinSessionTTL || d > MaxSessionTTL {
			s.err = fmt.Errorf("%w: TTL must be %v to %v (is %v)", ErrInvalid, MinSessionTTL, MaxSessionTTL, d)
		}
		s.ttl = d
	})
}

// NewSession begins a session beside the client's own, for those who want one
// liveness scope per worker. It does not wait for the network.
func (c *Client) NewSession(ctx context.Context, opts ...SessionOption) (*Session, error) {
	set := sessionSettings{ttl: c.cfg.SessionTTL}
	for _, o := range opts {
		o.applySession(&set)
	}
	if set.err != nil {
		return nil, set.err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil, fmt.Errorf("%w: the client is closed", ErrSessionEnded)
	}
	s := newSession(c, c.ns, set.ttl)
	c.sessions[s] = struct{}{}
	return s, nil
}

// session is the default one; a new one if the service refused the last.
func (c *Client) session() (*Session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil, fmt.Errorf("%w: the client is closed", ErrSessionEnded)
	}
	if c.own == nil || c.own.Err() != nil {
		delete(c.sessions, c.own)
		c.own = newSession(&Client{shared: c.shared, ns: c.cfg.Namespace}, c.cfg.Namespace, c.cfg.SessionTTL)
		c.sessions[c.own] = struct{}{}
	}
	return c.own, nil
}

func (c *shared) forget(s *Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sessions, s)
}

// fullName puts the namespace in front and checks the result.
func fullName(ns, name string) (string, error) {
	if err := checkText(name, MaxNameBytes); err != nil {
		return "", fmt.Errorf("%w: name %w", ErrInvalid, err)
	}
	if ns != "" {
		if !strings.HasSuffix(ns, "/") {
			ns += "/"
		}
		name = ns + name
	}
	if err := checkText(name, MaxNameBytes); err != nil {
		return "", fmt.Errorf("%w: name with its namespace %w", ErrInvalid, err)
	}
	return name, nil
}

// unaryAttempt bounds one attempt of a unary call, so that a gateway that
// swallows calls does not use up the caller's context.
const unaryAttempt = 3 * time.Second

// unary makes an idempotent call, at one gateway after the other until the
// context ends.
func (c *shared) unary(ctx context.Context, call func(context.Context, lockv1.LockServiceClient) error) error {
	var last error
	for try := 0; ; try++ {
		if ctx.Err() != nil {
			return unavailable(ctx, last)
		}
		c.mu.Lock()
		ep := c.prefer
		over := c.over
		c.mu.Unlock()
		if over {
			return fmt.Errorf("%w: the client is closed", ErrSessionEnded)
		}
		err := c.attempt(ctx, ep, call)
		if err == nil {
			return nil
		}
		f := failureOf(err)
		wait, again := c.retry(f, try)
		if !again {
			if ctx.Err() != nil {
				return unavailable(ctx, last)
			}
			return failureError(f)
		}
		last = failureError(f)
		c.mu.Lock()
		c.prefer = (ep + 1) % len(c.cfg.Endpoints)
		c.mu.Unlock()
		if try+1 < len(c.cfg.Endpoints) && f.Detail.GetRetryAfterMs() == 0 {
			continue // the others at once
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

func (c *shared) attempt(ctx context.Context, ep int, call func(context.Context, lockv1.LockServiceClient) error) error {
	cn, err := c.pool.get(ep, false)
	if err != nil {
		return err
	}
	defer c.pool.put(cn)
	ctx, cancel := context.WithTimeout(ctx, unaryAttempt)
	defer cancel()
	return call(ctx, lockv1.NewLockServiceClient(cn.cc))
}

// retry says whether and when to ask again.
func (c *shared) retry(f *lockv1.Failure, try int) (time.Duration, bool) {
	hint := time.Duration(min(f.GetDetail().GetRetryAfterMs(), 60_000)) * time.Millisecond
	switch codes.Code(f.GetCode()) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted:
	case codes.ResourceExhausted:
		if hint == 0 {
			return 0, false
		}
	default:
		return 0, false
	}
	d := hint
	if d == 0 {
		d = min(c.cfg.Retry.Base<<min(try, 16), c.cfg.Retry.Max) / 2
	}
	return d + time.Duration(rand.Int64N(int64(d)+1)), true
}

// unavailable is the end of a call whose context ended before an answer.
func unavailable(ctx context.Context, last error) error {
	if last == nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
	}
	return fmt.Errorf("%w: %w; last attempt: %w", ErrUnavailable, context.Cause(ctx), last)
}

// Holder is one hold of a lock, as seen by others.
type Holder struct {
	Client  string
	Token   Token
	Mode    Mode
	Permits int
	// Since is how long it has been held, by the service's clock.
	Since time.Duration
}

func holder(h *lockv1.Holder) Holder {
	return Holder{Client: h.GetClient(), Token: Token(h.GetToken()), Mode: Mode(h.GetMode()), Permits: int(h.GetPermits()),
		Since: time.Duration(h.GetHeldForMs()) * time.Millisecond}
}

// LockInfo is a lock as the service sees it.
type LockInfo struct {
	Name    string
	Mode    Mode     // 0 for a free lock
	Holders []Holder // empty for a free lock
	Waiters int
	Limit   int // counted locks: permits in all
	Shard   int
	// Delayed is how long a lock-delay keeps the lock unavailable yet.
	Delayed time.Duration
}

// Describe tells who holds a lock. Linearizable: it sees every acquire that
// returned before.
func (c *Client) Describe(ctx context.Context, name string) (LockInfo, error) {
	full, err := fullName(c.ns, name)
	if err != nil {
		return LockInfo{}, err
	}
	var r *lockv1.DescribeResponse
	err = c.unary(ctx, func(ctx context.Context, api lockv1.LockServiceClient) (err error) {
		r, err = api.Describe(ctx, &lockv1.DescribeRequest{Name: full})
		return err
	})
	if err != nil {
		return LockInfo{}, err
	}
	info := LockInfo{Name: full, Mode: Mode(r.Mode), Waiters: int(r.Waiters), Limit: int(r.Limit), Shard: int(r.Shard),
		Delayed: time.Duration(r.DelayedMs) * time.Millisecond}
	for _, h := range r.Holders {
		info.Holders = append(info.Holders, holder(h))
	}
	return info, nil
}
