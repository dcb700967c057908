package core

import (
	"slices"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"google.golang.org/grpc/codes"
)

// call is one unary call in progress. After it was answered, or its caller
// left, it lives on only to own a cancel in the background (G8).
type call struct {
	id      CallID
	req     any
	arrived Time
	soft    Time // when an acquire is given up and cancelled
	hard    Time // when the caller is answered in any case
	timer   timer
	ended   bool // answered, or its caller left
	sess    *session
	ops     []*op      // of a session
	reqs    []*request // of no session
	shard   *shardState
	name    string

	acquire *acquireCall
	loc     *locate
	found   []*nodev1.Located
	num     uint64 // KeepAlive: number of its renewal
	parts   []*part
	left    int
	count   uint64
}

// callStarted begins a unary call.
func (c *Core) callStarted(in *Input, now Time, out *Output) {
	cl := &call{id: in.Call, req: in.Request, arrived: now, hard: now + DefaultCall}
	if a, ok := in.Request.(*lockv1.AcquireRequest); ok && a.GetWaitMs() <= MaxWaitMS {
		cl.hard += Time(a.GetWaitMs()) * time.Millisecond
	}
	if in.Deadline > 0 {
		cl.hard = min(cl.hard, max(in.Deadline-50*time.Millisecond, now))
	}
	cl.soft = cl.hard - min(time.Second, (cl.hard-now)/4)
	c.calls[cl.id] = cl
	if _, acquires := in.Request.(*lockv1.AcquireRequest); acquires && c.stopping {
		c.answer(cl, nil, stopping(), out)
		return
	}
	if len(c.calls) > c.cfg.Limits.Calls {
		c.answer(cl, nil, limitReached("calls", c.cfg.Limits.Calls), out)
		return
	}
	cl.timer.fire = func(now Time, out *Output) { c.callTimer(cl, now, out) }
	c.timers.set(&cl.timer, cl.hard)
	var f *lockv1.Failure
	switch r := in.Request.(type) {
	case *lockv1.OpenSessionRequest:
		f = c.openSession(cl, r, now, out)
	case *lockv1.KeepAliveRequest:
		f = c.keepAlive(cl, r, now, out)
	case *lockv1.CloseSessionRequest:
		var id Identity
		if id, f = c.verify(r.SessionId); f == nil {
			c.closeEverywhere(cl, id.Session, lockv1.LostReason_LOST_REASON_CLOSED, now, out)
		}
	case *lockv1.RevokeSessionRequest:
		f = c.revoke(cl, r, now, out)
	case *lockv1.AcquireRequest:
		f = c.acquireUnary(cl, r, in.OwnID, now, out)
	case *lockv1.ReleaseRequest:
		f = c.releaseUnary(cl, r, now, out)
	case *lockv1.CancelRequest:
		f = c.cancelUnary(cl, r, now, out)
	case *lockv1.DescribeRequest:
		if f = checkName(r.Name); f == nil {
			c.named(cl, r.Name, now, out)
		}
	case *lockv1.CheckTokenRequest:
		if f = checkName(r.Name); f == nil {
			f = checkToken(r.Token)
		}
		if f == nil {
			c.named(cl, r.Name, now, out)
		}
	case *lockv1.ForceReleaseRequest:
		f = c.forceRelease(cl, r, now, out)
	case *lockv1.ListRequest:
		f = c.listUnary(cl, r, now, out)
	case *lockv1.ListSessionsRequest:
		f = c.listSessions(cl, r, now, out)
	default:
		f = fail(codes.Unimplemented, "UNIMPLEMENTED", "", "", "this gateway does not know the call")
	}
	if f != nil {
		c.answer(cl, nil, f, out)
	}
}

// answer ends a call once (G2) and forgets what it still had outstanding.
func (c *Core) answer(cl *call, resp any, f *lockv1.Failure, out *Output) {
	if cl.ended {
		return
	}
	if f != nil {
		resp = nil
	}
	out.Answers = append(out.Answers, Answer{Call: cl.id, Response: resp, Failure: f})
	c.endCall(cl)
}

// endCall forgets a call. Operations that must go on were taken out of it.
func (c *Core) endCall(cl *call) {
	cl.ended = true
	delete(c.calls, cl.id)
	c.timers.stop(&cl.timer)
	if a := cl.acquire; a != nil {
		c.timers.stop(&a.beat)
		if k := cl.acquireKey(); c.acquiring[k] == cl {
			delete(c.acquiring, k)
		}
	}
	if cl.loc != nil {
		c.dropLocate(cl.loc)
		cl.loc = nil
	}
	for _, o := range cl.ops {
		c.dropOp(o)
		c.unqueue(o)
	}
	for _, r := range cl.reqs {
		if r.shard != nil {
			c.forget(r)
		}
	}
	c.homeless = slices.DeleteFunc(c.homeless, func(o owner) bool { return o == owner(cl) })
	cl.ops, cl.reqs, cl.parts = nil, nil, nil
	if s := cl.sess; s != nil {
		if i := slices.Index(s.calls, cl); i >= 0 {
			s.calls = slices.Delete(s.calls, i, i+1)
		}
	}
}

// unqueue takes a finished operation out of where it waited for a registration
// or a route.
func (c *Core) unqueue(o *op) {
	if o.reg != nil {
		o.reg.queue = slices.DeleteFunc(o.reg.queue, func(p *op) bool { return p == o })
	}
	if len(c.homeless) > 0 {
		c.homeless = slices.DeleteFunc(c.homeless, func(p owner) bool { return p == owner(o) })
	}
}

// callTimer: the soft limit of an acquire, or the hard limit of any call.
func (c *Core) callTimer(cl *call, now Time, out *Output) {
	if cl.acquire != nil && now < cl.hard {
		c.acquireGivenUp(cl, now, out)
		return
	}
	if cl.acquire != nil {
		c.abandonAcquire(cl, now, out)
	}
	c.answer(cl, nil, c.noLeader(cl.silentShard()), out)
}

// silentShard is the shard to blame for a call that ran out of time.
func (cl *call) silentShard() *shardState {
	for _, r := range cl.reqs {
		if r.shard != nil {
			return r.shard
		}
	}
	for _, o := range cl.ops {
		if o.reg != nil {
			return o.reg.shard
		}
	}
	return cl.shard
}

// callGone: the caller left before an answer was given.
func (c *Core) callGone(cl *call, now Time, out *Output) {
	switch {
	case cl.acquire != nil && cl.acquire.ownID:
		c.abandonAcquire(cl, now, out)
	case cl.acquire == nil && len(cl.ops) == 1 && cl.ops[0].kind == opCancel:
		c.background(cl.ops[0], now) // a cancel is wanted whether or not anybody listens
		cl.ops = nil
	}
	c.endCall(cl)
}

// giveUpAcquires gives up, while nodes still hear us, the acquires that nobody
// could cancel once this gateway is gone: those under its own request ids.
func (c *Core) giveUpAcquires(now Time, out *Output) {
	ids := make([]CallID, 0, len(c.calls))
	for id, cl := range c.calls {
		if cl.acquire != nil && cl.acquire.ownID {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		cl := c.calls[id]
		c.abandonAcquire(cl, now, out)
		c.answer(cl, nil, stopping(), out)
	}
}

func stopping() *lockv1.Failure {
	return fail(codes.Unavailable, ReasonShuttingDown, "", "", "this gateway is stopping; use another one")
}

// background lets a cancel go on without a caller, for a bounded time (G8).
func (c *Core) background(o *op, now Time) {
	o.call = nil
	o.giveUp.fire = func(now Time, out *Output) {
		c.dropOp(o)
		c.unqueue(o)
	}
	c.timers.set(&o.giveUp, now+2*o.sess.ttl+time.Minute)
}

// ---- sessions of unary calls ---------------------------------------------

// unarySession returns what this gateway remembers of a session.
func (c *Core) unarySession(id Identity, now Time) (*session, *lockv1.Failure) {
	s := c.unary[id.Session]
	if s == nil {
		if len(c.unary) >= c.cfg.Limits.UnarySessions {
			return nil, limitReached("unary_sessions", c.cfg.Limits.UnarySessions)
		}
		s = &session{id: id.Session, ttl: id.TTL, client: id.Client}
		c.unary[id.Session] = s
		s.idle.fire = func(now Time, out *Output) { c.sessionIdle(s, now) }
	}
	c.timers.set(&s.idle, now+max(2*s.ttl, time.Minute))
	return s, nil
}

func (c *Core) sessionIdle(s *session, now Time) {
	wanted := func(r *request) bool { _, ok := r.owner.(*op); return ok }
	if len(s.calls) > 0 || slices.ContainsFunc(s.reqs, wanted) || slices.ContainsFunc(s.regs, func(g *reg) bool { return len(g.queue) > 0 }) {
		c.timers.set(&s.idle, now+max(2*s.ttl, time.Minute))
		return
	}
	for len(s.reqs) > 0 { // registrations that nothing waits for
		c.forget(s.reqs[len(s.reqs)-1])
	}
	delete(c.unary, s.id)
	for _, g := range s.regs {
		g.state = regEnded
	}
	s.regs = nil
	c.dropRenewal(s)
}

func (c *Core) openSession(cl *call, r *lockv1.OpenSessionRequest, now Time, out *Output) *lockv1.Failure {
	if f := checkText("client", r.Client, MaxClientBytes); f != nil {
		return f
	}
	ttl, f := checkTTL(r.TtlMs)
	if f != nil {
		return f
	}
	id := Identity{Session: c.newSessionID(), TTL: ttl, Client: r.Client, OpenedMS: c.cfg.WallMS()}
	c.answer(cl, &lockv1.OpenSessionResponse{SessionId: c.cfg.Sessions.Mint(id), TtlMs: millis(ttl)}, nil, out)
	return nil
}

// keepAlive: find where the session is registered, renew there, answer when
// all of it is covered.
func (c *Core) keepAlive(cl *call, r *lockv1.KeepAliveRequest, now Time, out *Output) *lockv1.Failure {
	id, f := c.verify(r.SessionId)
	if f != nil {
		return f
	}
	s, f := c.unarySession(id, now)
	if f != nil {
		return f
	}
	cl.sess = s
	s.calls = append(s.calls, cl)
	// The heartbeat goes to every node at once, so that it is never later than
	// it must be; the question where the session is runs beside it.
	c.renewUnary(s, now)
	cl.num = s.renew.number
	cl.loc = c.locate(id.Session, func(l *nodev1.Located, now Time, out *Output) {
		cl.addFound(l)
	}, func(now Time, out *Output) {
		cl.loc = nil
		for _, l := range cl.found {
			if sh := c.shards[shardID(l.Shard)]; sh != nil {
				s.met(s.at(sh), l.Registration)
			}
		}
		// What was covered before it was found counts; the rest is asked again.
		c.wantRenewal(s, now)
		c.keepAliveStep(cl, id, now, out)
	}, now, out)
	return nil
}

// met learns of a registration that this gateway did not make, or whose answer
// to Register is under way.
func (s *session) met(g *reg, num uint64) {
	if g.num == 0 {
		g.num, s.hadRegs = num, true
		if g.state == regNone {
			g.state = regLive
		}
	}
}

func (cl *call) addFound(l *nodev1.Located) {
	for i, f := range cl.found {
		if f.Shard == l.Shard {
			cl.found[i] = l
			return
		}
	}
	cl.found = append(cl.found, l)
}

// keepAliveStep answers a KeepAlive when every registration is covered by a
// renewal that is not older than the call.
func (c *Core) keepAliveStep(cl *call, id Identity, now Time, out *Output) {
	s := cl.sess
	if cl.loc != nil || cl.ended {
		return
	}
	if len(cl.found) == 0 {
		// Registered nowhere: a session that holds nothing yet, or one that
		// ended. Only what may be new is told "renewed".
		age := c.cfg.WallMS() - id.OpenedMS
		if s.hadRegs || age < 0 || age > id.TTL.Milliseconds() {
			lost := s.lost
			s.lost = nil
			if len(lost) == 0 && !s.hadRegs {
				c.answer(cl, nil, fail(codes.NotFound, ReasonSessionEnded, "session_id", "must be live",
					"the session is registered in no shard: it ended, or it never acquired anything for a TTL; open a new one"), out)
				return
			}
			c.answer(cl, &lockv1.KeepAliveResponse{Lost: lost}, nil, out)
			return
		}
	}
	lease := s.ttl
	renewed := true
	for _, l := range cl.found {
		g := s.find(shardID(l.Shard))
		if g == nil || g.num != l.Registration {
			if g == nil || g.num < l.Registration {
				renewed = false // ended while we asked
			}
			continue
		}
		if g.covered < cl.num {
			return // not yet
		}
		lease = min(lease, g.coveredAt-cl.arrived+s.ttl)
	}
	resp := &lockv1.KeepAliveResponse{Renewed: renewed, Lost: s.lost}
	if renewed {
		resp.LeaseForMs = millis(max(lease, 0))
	}
	s.lost = nil
	c.answer(cl, resp, nil, out)
}

// checkSessionCalls looks at the calls that wait for something of a session.
func (c *Core) checkSessionCalls(s *session, now Time, out *Output) {
	for _, cl := range slices.Clone(s.calls) {
		if cl.ended {
			continue
		}
		switch r := cl.req.(type) {
		case *lockv1.KeepAliveRequest:
			if id, f := c.verify(r.SessionId); f == nil {
				c.keepAliveStep(cl, id, now, out)
			}
		case *lockv1.AcquireRequest:
			c.grantStep(cl, now, out)
		}
	}
}
