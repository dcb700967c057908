package core

import (
	"fmt"
	"slices"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
	"google.golang.org/grpc/codes"
)

type streamState uint8

const (
	streamNew streamState = iota
	streamResuming
	streamLive
	streamClosing
)

// stream is one client's session stream.
type stream struct {
	id       StreamID
	sess     *session // nil before Open or Resume
	state    streamState
	openedAt Time
	heardAt  Time
	sentAt   Time
	outAt    int
	beat     timer

	// half: the client has said everything; settled ends the stream when it was
	// told everything, too.
	half    bool
	settled timer

	acquires map[uint64]*op // unanswered, by seq
	ops      int            // unanswered operations of all kinds
	lastRn   uint64         // number of the newest RenewOp

	// Resume.
	loc     *locate
	late    timer // tells what is known when some shard stays silent
	waiting []*op // operations that came before Resumed
	// Close.
	closing bool
}

func millis(t Time) uint64 { return uint64(t / time.Millisecond) }

func (c *Core) streamOpened(id StreamID, now Time, out *Output) {
	st := &stream{id: id, openedAt: now, heardAt: now, sentAt: now, acquires: map[uint64]*op{}}
	c.streams[id] = st
	st.beat.fire = func(now Time, out *Output) { c.streamBeat(st, now, out) }
	st.settled.fire = func(now Time, out *Output) { c.endSettled(st, now, out) }
	if c.stopping {
		c.endStream(st, stopping(), now, out)
		return
	}
	if len(c.streams) > c.cfg.Limits.Streams {
		c.endStream(st, limitReached("streams", c.cfg.Limits.Streams), now, out)
		return
	}
	c.timers.set(&st.beat, now+beatEvery)
}

// streamBeat lets the client hear our time, and drops it when it is silent.
func (c *Core) streamBeat(st *stream, now Time, out *Output) {
	if now-st.heardAt > staleAfter {
		c.endStream(st, fail(codes.DeadlineExceeded, ReasonSilent, "", "a frame at least every 30 s",
			"nothing was heard on this stream for 30 s; resume the session on a new one"), now, out)
		return
	}
	if now-st.sentAt >= beatEvery {
		st.frame(now, out)
	}
	c.settle(st)
	c.timers.set(&st.beat, now+beatEvery)
}

// settle looks, once this step is through, whether a stream whose client only
// listens has heard everything.
func (c *Core) settle(st *stream) {
	if st.half {
		c.timers.set(&st.settled, 0)
	}
}

func (c *Core) endSettled(st *stream, now Time, out *Output) {
	if c.streams[st.id] != st || st.ops > 0 || st.state == streamResuming || st.state == streamClosing {
		return
	}
	if s := st.sess; s != nil && (s.renew.listed || slices.ContainsFunc(s.regs, func(g *reg) bool { return g.state != regLive })) {
		return // an acknowledgement or an inventory is to come
	}
	c.endStream(st, nil, now, out)
}

// frame returns this output's frame for the stream.
func (st *stream) frame(now Time, out *Output) *StreamSend {
	if st.outAt < len(out.Streams) && out.Streams[st.outAt].Stream == st.id {
		return &out.Streams[st.outAt]
	}
	st.outAt, st.sentAt = len(out.Streams), now
	out.Streams = append(out.Streams, StreamSend{Stream: st.id, Time: millis(now)})
	return &out.Streams[st.outAt]
}

func (st *stream) emit(c *Core, now Time, out *Output, e *lockv1.SessionEvent) {
	if c.streams[st.id] != st {
		return // over
	}
	f := st.frame(now, out)
	f.Events = append(f.Events, e)
}

// endStream tells why and ends the stream.
func (c *Core) endStream(st *stream, f *lockv1.Failure, now Time, out *Output) {
	if c.streams[st.id] != st {
		return
	}
	if f != nil {
		st.emit(c, now, out, &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Failed{Failed: &lockv1.FailedEvent{Failure: f}}})
	}
	s := st.frame(now, out)
	s.End, s.Failure = true, f
	c.dropStream(st)
}

// dropStream forgets a stream and everything outstanding of it. Nothing is
// cancelled (G7): what it was granted waits for a resume or expires.
func (c *Core) dropStream(st *stream) {
	delete(c.streams, st.id)
	c.timers.stop(&st.beat)
	c.timers.stop(&st.settled)
	c.timers.stop(&st.late)
	if st.loc != nil {
		c.dropLocate(st.loc)
	}
	s := st.sess
	if s == nil {
		return
	}
	if c.bySess[s.id] == st {
		delete(c.bySess, s.id)
	}
	for len(s.reqs) > 0 {
		c.forget(s.reqs[len(s.reqs)-1])
	}
	c.dropHomeless(s)
	for _, g := range s.regs {
		g.state, g.queue, g.held = regEnded, nil, nil
	}
	s.regs = nil
	c.dropRenewal(s)
}

// dropHomeless forgets the session's operations that wait for a route.
func (c *Core) dropHomeless(s *session) {
	c.homeless = slices.DeleteFunc(c.homeless, func(o owner) bool {
		p, ok := o.(*op)
		return ok && p.sess == s
	})
}

// finish ends one operation of the stream.
func (st *stream) finish(c *Core, o *op) {
	if o.over {
		return
	}
	c.dropOp(o)
	st.ops--
	if o.kind == opAcquire && st.acquires[o.seq] == o {
		delete(st.acquires, o.seq)
	}
	c.settle(st)
}

func (c *Core) protocol(st *stream, field, rule string, now Time, out *Output) {
	c.endStream(st, fail(codes.InvalidArgument, ReasonProtocol, field, rule, field+" "+rule), now, out)
}

func (c *Core) streamFrame(st *stream, f *lockv1.SessionRequest, now Time, out *Output) {
	if echo := max(f.EchoMs, millis(st.openedAt)); millis(now) > echo+uint64(staleAfter/time.Millisecond) {
		c.endStream(st, fail(codes.DeadlineExceeded, ReasonStale, "echo_ms", "must be at most 30 s old",
			"the frame was on its way for more than 30 s, so it acts on nothing; resume the session on a new stream"), now, out)
		return
	}
	if f.EchoMs > millis(now) {
		c.protocol(st, "echo_ms", "must be a server_time_ms that was heard on this stream", now, out)
		return
	}
	st.heardAt = now
	if len(f.Ops) > MaxFrameOps {
		c.endStream(st, fail(codes.InvalidArgument, ReasonFrameTooLarge, "ops", "must be at most 1024 in a frame",
			fmt.Sprintf("a frame has at most %d ops (has %d)", MaxFrameOps, len(f.Ops))), now, out)
		return
	}
	for i, o := range f.Ops {
		if c.streams[st.id] != st {
			return
		}
		if st.state == streamNew {
			c.firstOp(st, f, i, now, out)
			continue
		}
		if s := st.sess; f.DoneBelow > s.doneBelow {
			s.doneBelow = f.DoneBelow
		}
		c.streamOp(st, o, now, out)
	}
}

// firstOp opens or resumes.
func (c *Core) firstOp(st *stream, f *lockv1.SessionRequest, i int, now Time, out *Output) {
	switch o := f.Ops[i].GetOp().(type) {
	case *lockv1.SessionOp_Open:
		fl := checkText("client", o.Open.GetClient(), MaxClientBytes)
		ttl, fl2 := checkTTL(o.Open.TtlMs)
		if fl == nil {
			fl = fl2
		}
		if fl != nil {
			c.endStream(st, fl, now, out)
			return
		}
		st.sess = &session{id: c.newSessionID(), ttl: ttl, client: o.Open.GetClient(), attachment: 1, stream: st}
		st.state = streamLive
		c.bySess[st.sess.id] = st
		str := c.cfg.Sessions.Mint(Identity{Session: st.sess.id, TTL: ttl, Client: o.Open.GetClient(), OpenedMS: c.cfg.WallMS()})
		st.emit(c, now, out, &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Opened{Opened: &lockv1.OpenedEvent{
			SessionId: str, TtlMs: millis(ttl)}}})
	case *lockv1.SessionOp_Resume:
		id, fl := c.verify(o.Resume.GetSessionId())
		if fl == nil && o.Resume.Attachment == 0 {
			fl = invalid("attachment", "must be 1 plus the number of streams that the session had before")
		}
		if fl != nil {
			c.endStream(st, fl, now, out)
			return
		}
		if !slices.ContainsFunc(f.Ops[i+1:], func(o *lockv1.SessionOp) bool { return o.GetRenew() != nil }) {
			c.protocol(st, "ops", "of a resuming frame must hold a renew op", now, out)
			return
		}
		c.resume(st, id, o.Resume.Attachment, now, out)
	default:
		c.protocol(st, "ops", "must begin with open or resume on a new stream", now, out)
	}
}

func (c *Core) newSessionID() (id shard.SessionID) {
	for i := range id {
		if i%8 == 0 {
			v := c.cfg.Random()
			for j := range 8 {
				id[i+j] = byte(v >> (8 * j))
			}
		}
	}
	return id
}

func (c *Core) streamOp(st *stream, o *lockv1.SessionOp, now Time, out *Output) {
	if st.state == streamClosing {
		return // everything after Close is void
	}
	switch o := o.GetOp().(type) {
	case *lockv1.SessionOp_Renew:
		if o.Renew.Number <= st.lastRn {
			c.protocol(st, "number", "of a renew op must rise", now, out)
			return
		}
		st.lastRn = o.Renew.Number
		c.renewOp(st, o.Renew, now, out)
	case *lockv1.SessionOp_Acquire:
		c.acquireOp(st, o.Acquire, now, out)
	case *lockv1.SessionOp_Cancel:
		f := checkSeq(o.Cancel.Seq)
		if f == nil {
			f = checkName(o.Cancel.Name)
		}
		c.accept(st, &op{kind: opCancel, sess: st.sess, seq: o.Cancel.Seq, name: o.Cancel.Name}, f, now, out)
	case *lockv1.SessionOp_Release:
		f := checkSeq(o.Release.Seq)
		if f == nil {
			f = checkName(o.Release.Name)
		}
		if f == nil {
			f = checkToken(o.Release.Token)
		}
		c.accept(st, &op{kind: opRelease, sess: st.sess, seq: o.Release.Seq, name: o.Release.Name, token: o.Release.Token}, f, now, out)
	case *lockv1.SessionOp_Close:
		c.closeOp(st, now, out)
	case *lockv1.SessionOp_Inventory:
		for _, g := range st.sess.regs {
			if g.state == regLive {
				c.list(g, now, out)
			}
		}
	case *lockv1.SessionOp_Open, *lockv1.SessionOp_Resume:
		c.protocol(st, "ops", "may hold open or resume only as the first operation of a stream", now, out)
	default:
		c.protocol(st, "ops", "must each be an operation that this gateway knows", now, out)
	}
}

func checkSeq(seq uint64) *lockv1.Failure {
	if seq == 0 {
		return invalid("seq", "must be 1 or more")
	}
	return nil
}

func (c *Core) acquireOp(st *stream, a *lockv1.AcquireOp, now Time, out *Output) {
	f := checkSeq(a.Seq)
	var p acquireParams
	if f == nil {
		p, f = checkAcquire(a, a.Permits, a.Limit)
	}
	if f == nil && a.Seq < st.sess.doneBelow {
		f = fail(codes.FailedPrecondition, ReasonStale, "seq", "must not be below done_below",
			fmt.Sprintf("seq %d is below done_below, which is %d: that acquire was declared finished", a.Seq, st.sess.doneBelow))
	}
	if old := st.acquires[a.Seq]; f == nil && old != nil {
		if old.name != p.name || old.p.mode != p.mode {
			f = fail(codes.InvalidArgument, ReasonSeqReused, "seq", "must not be used for two acquires",
				fmt.Sprintf("seq %d is in use for an acquire of another name or mode", a.Seq))
			st.emit(c, now, out, refusal(opAcquire, a.Seq, f))
			return
		}
		old.told = false // tell the state again
		if old.request.shard != nil && old.request.node != 0 {
			if n := c.ready(old.request.shard); n != nil {
				old.doubt = true
				c.send(n, &old.request, now, out)
			}
		}
		return
	}
	o := &op{kind: opAcquire, sess: st.sess, seq: a.Seq, name: p.name, p: p}
	if c.accept(st, o, f, now, out) && !o.over {
		st.acquires[a.Seq] = o
	}
}

// accept takes an operation in, unless it was refused by a rule.
func (c *Core) accept(st *stream, o *op, f *lockv1.Failure, now Time, out *Output) bool {
	if f == nil && st.ops >= c.cfg.Limits.StreamOps {
		f = limitReached("stream_ops", c.cfg.Limits.StreamOps)
	}
	if f != nil {
		st.emit(c, now, out, refusal(o.kind, o.seq, f))
		return false
	}
	st.ops++
	if st.state == streamResuming {
		st.waiting = append(st.waiting, o)
		return true
	}
	c.submit(o, now, out)
	return true
}

// pushed passes news of the session on.
func (st *stream) pushed(c *Core, p *nodev1.Push, now Time, out *Output) {
	var id shard.ID
	var num uint64
	switch e := p.Event.(type) {
	case *nodev1.Push_Lost:
		id, num = shard.ID(e.Lost.Shard), e.Lost.Registration
	case *nodev1.Push_RegistrationEnded:
		id, num = shard.ID(e.RegistrationEnded.Shard), e.RegistrationEnded.Registration
	default:
		return
	}
	g := st.sess.find(id)
	if g == nil || g.num != num {
		return // of a registration that this stream knows nothing of
	}
	if g.state != regLive {
		g.held = append(g.held, p) // the inventory comes first
		return
	}
	if e := p.GetLost(); e != nil {
		st.emit(c, now, out, &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Lost{Lost: e}})
		return
	}
	c.endRegistration(g, p.GetRegistrationEnded().Reason, now, out)
}
