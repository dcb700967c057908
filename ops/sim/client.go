package sim

import (
	"fmt"
	"slices"

	"github.com/mortise-lock/mortise/ops/history"
	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"github.com/mortise-lock/mortise/sdk/core"
)

// Client is an application's process with the SDK in it. Its methods are what
// the application does; they are for a process that runs.
type Client struct {
	w     *World
	p     *proc
	Index int // in the history; never reused
	// Session is the one in use; nil between a close and the next open.
	Session  *Session
	sessions int
	all      []*Session // that are not over
	un       *unarySession
	dead     bool
	quiet    bool // begins nothing new by itself
}

// Session is one session of the SDK: the core of sdk/core, in place of the
// shell of package sdk around it.
type Session struct {
	c       *Client
	w       *World
	Name    string // also the client name that the service shows
	inc     uint64
	core    *core.Session
	out     core.Output
	streams map[core.StreamID]*clientStream
	cur     *clientStream
	grants  map[core.ID]*Grant
	list    []*Grant // asked for or held, in order of asking
	covers  map[core.Registration]*cover
	wakeAt  Time
	flushing,
	over bool
	closeCall uint64
}

// cover is the deadline that renewals of a registration brought to its holds.
type cover struct{ deadline Time }

// GrantState is how far an acquire of a client got.
type GrantState uint8

// States of a Grant.
const (
	Asked GrantState = iota
	Held
	Releasing
	Over
)

// Grant is an acquire of a client, and what it is granted.
type Grant struct {
	s       *Session
	id      core.ID
	call    uint64
	Req     core.Request
	State   GrantState
	Queued  bool // the service said that it waits
	Token   uint64
	Outcome history.Outcome
	Lost    core.LostReason // why it was lost, if it was
	relCall uint64
	seq     uint64
	own     Time
	capAt   Time
	cover   *cover
	belief  bool
	// granted, if set, runs when the application hears of the grant.
	granted func(*Grant)
	// ended, if set, runs when it is over.
	ended func(*Grant)
}

type clientStream struct {
	s       *Session
	c       *conn
	id      core.StreamID
	pending []*lockv1.SessionOp
	echo    uint64
}

// Open begins a session with a TTL.
func (c *Client) Open(ttl Time) *Session {
	w := c.w
	c.sessions++
	s := &Session{c: c, w: w, inc: c.p.inc, Name: fmt.Sprintf("c%d.%d", c.Index, c.sessions), streams: map[core.StreamID]*clientStream{},
		grants: map[core.ID]*Grant{}, covers: map[core.Registration]*cover{}}
	s.core = core.New(core.Config{Client: s.Name, TTL: ttl, DriftPPM: 21_000, Endpoints: len(w.gws), First: w.rng.IntN(len(w.gws)),
		RetryBase: 25 * ms, RetryMax: 2 * second, Rand: w.rng.Uint64}, c.p.local())
	c.Session = s
	c.all = append(c.all, s)
	w.record(history.Event{Kind: history.SessionOpened, Client: c.Index, Node: -1, Session: s.Name, TTL: history.Time(ttl)})
	s.do(func(now core.Time) { s.core.Tick(now, &s.out) })
	return s
}

func (s *Session) do(step func(now core.Time)) {
	step(s.c.p.local())
	s.carryOut()
}

// carryOut executes an output in the order of package sdk.
func (s *Session) carryOut() {
	w, out := s.w, &s.out
	for _, c := range out.Covers {
		s.coverOf(c.Registration).deadline = c.Deadline
	}
	for i := range out.Results {
		s.result(&out.Results[i])
	}
	for _, r := range out.Ended {
		delete(s.covers, r)
	}
	for _, id := range out.Drop {
		if st := s.streams[id]; st != nil {
			st.c.close(st, nil)
			s.forget(st)
		}
	}
	if st := s.streams[out.Stream]; st != nil {
		s.cur = st
		if len(out.Ops) > 0 {
			st.pending = append(st.pending, out.Ops...)
			s.flushSoon()
		}
	}
	for _, d := range out.Dial {
		st := &clientStream{s: s, id: d.Stream}
		s.streams[d.Stream] = st
		st.c = w.dial(sessionConn, s.c.p, w.gws[d.Endpoint].p, st)
	}
	if out.Closed && !s.over {
		s.ended()
	}
	wake := out.Wake
	out.Reset()
	if wake != 0 && !s.over {
		s.arm(wake)
	}
}

func (s *Session) coverOf(r core.Registration) *cover {
	c := s.covers[r]
	if c == nil {
		c = &cover{}
		s.covers[r] = c
	}
	return c
}

func (s *Session) forget(st *clientStream) {
	delete(s.streams, st.id)
	if s.cur == st {
		s.cur = nil
	}
}

type sessionWake struct{ *Session }

func (s *Session) arm(local Time) {
	at := s.c.p.at(local)
	if s.wakeAt != 0 && s.wakeAt <= at {
		return
	}
	s.wakeAt = at
	s.w.q.push(at+s.w.upTo(ms/2), sessionWake{s}, s.inc)
}

func (e sessionWake) fire(inc uint64) {
	s := e.Session
	if s.over || s.c.p.inc != inc || s.wakeAt == 0 || s.w.now < s.wakeAt {
		return
	}
	s.wakeAt = 0
	if s.c.p.paused {
		s.c.p.whenAwake(true, s.tick)
		return
	}
	s.tick()
}

func (s *Session) tick() {
	if !s.over {
		s.do(func(now core.Time) { s.core.Tick(now, &s.out) })
	}
}

// flushSoon lets the writer take what gathers meanwhile along.
func (s *Session) flushSoon() {
	if s.flushing {
		return
	}
	s.flushing = true
	s.c.p.later(s.w.upTo(200*us), func() {
		s.flushing = false
		if st := s.cur; st != nil && len(st.pending) > 0 {
			f := &lockv1.SessionRequest{EchoMs: st.echo, DoneBelow: s.core.DoneBelow(), Ops: st.pending}
			st.pending = nil
			if s.w.tracing() {
				s.w.note(s.c.p, fmt.Sprintf("%s stream %d: sends %v", s.Name, st.id, f.Ops))
			}
			if s.w.cfg.Encode {
				f = clone(f)
			}
			st.c.send(st, f)
		}
	})
}

func (st *clientStream) connected(*conn) {
	s := st.s
	if s.streams[st.id] == st { // also when the session is over: then it is dropped
		s.do(func(now core.Time) { s.core.Connected(now, st.id, &s.out) })
	}
}

func (st *clientStream) received(_ *conn, body any) {
	s := st.s
	if s.streams[st.id] != st || s.over {
		return
	}
	f := body.(*lockv1.SessionResponse)
	st.echo = max(st.echo, f.ServerTimeMs)
	if s.w.tracing() && len(f.Events) > 0 {
		s.w.note(s.c.p, fmt.Sprintf("%s stream %d: hears %v", s.Name, st.id, f.Events))
	}
	s.do(func(now core.Time) { s.core.Frame(now, st.id, f, &s.out) })
}

func (st *clientStream) ended(_ *conn, f *lockv1.Failure) {
	s := st.s
	if s.streams[st.id] != st {
		return
	}
	s.forget(st)
	if f == endOK {
		f = nil
	}
	if !s.over {
		s.do(func(now core.Time) { s.core.Broken(now, st.id, f, &s.out) })
	}
}

// ended: the session is over, by a close or by refusal.
func (s *Session) ended() {
	s.over = true
	if s.closeCall != 0 {
		s.w.record(history.Event{Kind: history.Return, Client: s.c.Index, Node: -1, Op: history.CloseSession, Call: s.closeCall, Outcome: history.OK, Session: s.Name})
	}
	s.w.record(history.Event{Kind: history.SessionOver, Client: s.c.Index, Node: -1, Session: s.Name})
	if i := slices.Index(s.c.all, s); i >= 0 {
		s.c.all = slices.Delete(s.c.all, i, i+1)
	}
	if s.c.Session == s {
		s.c.Session = nil
	}
}

// Close ends the session.
func (s *Session) Close() {
	if s.over || s.closeCall != 0 {
		return
	}
	s.closeCall = s.w.newCall()
	s.w.record(history.Event{Kind: history.Invoke, Client: s.c.Index, Node: -1, Op: history.CloseSession, Call: s.closeCall, Session: s.Name})
	if s.c.Session == s {
		s.c.Session = nil
	}
	s.do(func(now core.Time) { s.core.Close(now, &s.out) })
}

// abandon gives a close up that nobody answers, as Session.Close of the SDK
// does when its context ends.
func (s *Session) abandon() {
	if !s.over {
		s.do(func(now core.Time) { s.core.Abandon(now, &s.out) })
	}
}

// Kill ends the process for good. silent: with its host.
func (c *Client) Kill(silent bool) {
	if c.dead {
		return
	}
	c.w.note(c.p, "killed")
	for _, s := range c.all {
		for _, g := range s.list {
			g.endBelief()
		}
	}
	if c.un != nil {
		c.un.killed()
	}
	name := ""
	if c.Session != nil {
		name = c.Session.Name
	}
	c.dead = true
	c.p.die(silent)
	c.w.record(history.Event{Kind: history.ClientDied, Client: c.Index, Node: -1, Session: name})
	for _, s := range c.all {
		s.over = true
	}
	c.all, c.Session = nil, nil
}

// Pause stops the process; Resume lets it go on.
func (c *Client) Pause()  { c.p.pause(false) }
func (c *Client) Resume() { c.p.resume() }
