package mortise

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"github.com/mortise-lock/mortise/sdk/core"
)

// State of a session.
type State int

// States. A session without contact stays Suspect: its grants are lost one by
// one at their deadlines, and it goes on by itself when the service is back.
const (
	// Healthy: renewals are acknowledged in time.
	Healthy State = iota + 1
	// Suspect: not connected yet, or renewals are late.
	Suspicious
	// Lost: the service refused the session for good.
	Lost
	// Closed: by Close.
	Closed
)

// String names the state.
func (s State) String() string {
	switch s {
	case Healthy:
		return "healthy"
	case Suspicious:
		return "suspect"
	case Lost:
		return "lost"
	case Closed:
		return "closed"
	}
	return "unknown"
}

// Session is one liveness scope: its grants end together when its client dies.
// Safe for concurrent use, by any number of goroutines; one is enough for a
// process.
type Session struct {
	c     *Client
	ns    string
	clock func() time.Duration

	mu     sync.Mutex
	core   *core.Session
	out    core.Output
	grants map[core.ID]*Grant // asked for, held, or releasing
	covers map[core.Registration]*cover
	stream *stream // whose operations are in pending
	open   map[core.StreamID]*stream
	logs   []func()
	timer  *time.Timer
	armed  time.Duration
	last   error // why there is no stream, for messages
	state  State // Closed or Lost once over
	err    error

	done chan struct{} // closed when over
	wg   sync.WaitGroup
}

func newSession(c *Client, ns string, ttl time.Duration) *Session {
	s := &Session{c: c, ns: ns, clock: c.cfg.clock, grants: map[core.ID]*Grant{}, covers: map[core.Registration]*cover{},
		open: map[core.StreamID]*stream{}, done: make(chan struct{})}
	s.core = core.New(core.Config{Client: c.cfg.Owner, TTL: ttl, DriftPPM: c.cfg.DriftPPM, Endpoints: len(c.cfg.Endpoints),
		First: c.first, RetryBase: c.cfg.Retry.Base, RetryMax: c.cfg.Retry.Max, Rand: rand.Uint64}, s.clock())
	s.do(func(c *core.Session, now core.Time, out *core.Output) { c.Tick(now, out) })
	return s
}

// do steps the core and carries out what it wants. Nothing under mu waits.
func (s *Session) do(step func(c *core.Session, now core.Time, out *core.Output)) {
	s.mu.Lock()
	step(s.core, s.clock(), &s.out)
	s.carryOut()
	logs := s.logs
	s.logs = nil
	s.mu.Unlock()
	for _, f := range logs {
		f()
	}
}

// carryOut executes an output; under mu.
func (s *Session) carryOut() {
	out := &s.out
	for _, c := range out.Covers {
		s.cover(c.Registration).deadline.Store(int64(c.Deadline))
	}
	for i := range out.Results {
		s.result(&out.Results[i])
	}
	for _, r := range out.Ended {
		delete(s.covers, r)
	}
	for _, id := range out.Drop {
		if st := s.open[id]; st != nil {
			delete(s.open, id)
			if s.stream == st {
				s.stream = nil
			}
			st.drop()
		}
	}
	if st := s.open[out.Stream]; st != nil {
		s.stream = st
		st.push(out.Ops)
	}
	for _, d := range out.Dial {
		s.dial(d)
	}
	if out.Closed && s.err == nil {
		s.over(out.Failure)
	}
	if out.Wake != 0 && s.err == nil {
		s.arm(out.Wake)
	}
	out.Reset()
}

func (s *Session) cover(r core.Registration) *cover {
	c := s.covers[r]
	if c == nil {
		c = &cover{}
		s.covers[r] = c
	}
	return c
}

// arm makes the timer fire at the latest then.
func (s *Session) arm(wake time.Duration) {
	if s.armed != 0 && s.armed <= wake {
		return
	}
	s.armed = wake
	d := max(wake-s.clock(), 0)
	if s.timer == nil {
		s.timer = time.AfterFunc(d, s.tick)
		return
	}
	s.timer.Reset(d)
}

func (s *Session) tick() {
	s.do(func(c *core.Session, now core.Time, out *core.Output) {
		s.armed = 0
		c.Tick(now, out)
	})
}

// over ends the session; under mu.
func (s *Session) over(f *lockv1.Failure) {
	s.state, s.err = Closed, fmt.Errorf("%w: closed", ErrSessionEnded)
	if f != nil {
		s.state, s.err = Lost, fmt.Errorf("%w: %w", ErrSessionEnded, failureError(f))
		s.logs = append(s.logs, func() { s.c.log.Error("session refused", "reason", s.err) })
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	close(s.done)
}

// result passes news on to a grant; under mu.
func (s *Session) result(r *core.Result) {
	g := s.grants[r.ID]
	if g == nil {
		return
	}
	switch r.Kind {
	case core.ResultGranted:
		g.token, g.own, g.capAt, g.cover = Token(r.Token), r.Deadline, r.CapAt, s.cover(r.Registration)
		g.result = *r
		close(g.ready)
		s.logs = append(s.logs, func() {
			s.c.log.Info("lock granted", "lock", g.name, "token", int64(g.token), "shard", r2shard(g), "waited", s.clock()-g.asked)
		})
	case core.ResultFailed:
		g.result = *r
		delete(s.grants, r.ID)
		close(g.ready)
	case core.ResultQueued:
		g.queued = *r
		if g.news != nil {
			select {
			case g.news <- struct{}{}:
			default:
			}
		}
	case core.ResultRetrying:
		g.refuse = r.Failure
	case core.ResultSuspect:
		d := time.Now().Add(r.Deadline - s.clock())
		s.logs = append(s.logs, func() {
			s.c.log.Warn("lock suspect: renewals are late", "lock", g.name, "token", int64(g.token), "left", time.Until(d))
		})
		if g.onSuspect != nil {
			go g.onSuspect(Suspect{Name: g.name, Token: g.token, Deadline: d})
		}
	case core.ResultLost:
		delete(s.grants, r.ID)
		if err := g.lose(r.Lost); err != nil {
			s.logs = append(s.logs, func() { g.logLost(err) })
		}
		g.released(nil)
	case core.ResultReleased:
		delete(s.grants, r.ID)
		g.released(r.Failure)
		s.logs = append(s.logs, func() { s.c.log.Info("lock released", "lock", g.name, "token", int64(g.token)) })
	}
}

func r2shard(g *Grant) uint32 { return g.result.Registration.Shard }

// State says how the session is.
func (s *Session) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.state
	}
	if s.core.Stale(s.clock(), s.core.TTL()/2) {
		return Suspicious
	}
	return Healthy
}

// Done is closed when the session is over: closed, or refused by the service.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err is nil until Done is closed, then it wraps ErrSessionEnded.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends the session and frees all that it holds; its grants are lost with
// LostClosed at once. It waits for the service's answer until ctx ends (the
// service then frees everything after a TTL), and for the session's goroutines.
func (s *Session) Close(ctx context.Context) error {
	s.do(func(c *core.Session, now core.Time, out *core.Output) { c.Close(now, out) })
	var err error
	select {
	case <-s.done:
	case <-ctx.Done():
		err = fmt.Errorf("%w: the end of the session was not acknowledged; its locks are free after a TTL: %w", ErrUnknown, ctx.Err())
		s.do(func(c *core.Session, now core.Time, out *core.Output) { c.Abandon(now, out) })
	}
	s.wg.Wait()
	s.c.forget(s)
	return err
}
