package core

import (
	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
)

// resume goes on with a session here: find where it is registered, put this
// stream's attachment in force there, tell the client, list what it has, then
// pass on what it asked for meanwhile.
func (c *Core) resume(st *stream, id Identity, attachment uint64, now Time, out *Output) {
	if old := c.bySess[id.Session]; old != nil {
		if old.sess.attachment >= attachment {
			c.endStream(st, superseded(), now, out)
			return
		}
		c.endStream(old, superseded(), now, out)
	}
	st.sess = &session{id: id.Session, ttl: id.TTL, client: id.Client, attachment: attachment, stream: st}
	st.state = streamResuming
	c.bySess[id.Session] = st
	st.late.fire = func(now Time, out *Output) { c.resumeKnown(st, now, out) }
	c.timers.set(&st.late, now+id.TTL)
	st.loc = c.locate(id.Session, func(l *nodev1.Located, now Time, out *Output) {
		c.resumeFound(st, l, now, out)
	}, func(now Time, out *Output) {
		st.loc = nil
		c.resumeStep(st, now, out)
		if st.state == streamClosing {
			c.closeStep(st, now, out)
		}
	}, now, out)
}

// resumeFound: the session is registered in this shard.
func (c *Core) resumeFound(st *stream, l *nodev1.Located, now Time, out *Output) {
	if c.streams[st.id] != st {
		return
	}
	s := c.shards[shardID(l.Shard)]
	if s == nil {
		return
	}
	if l.Attachment > st.sess.attachment {
		c.endStream(st, superseded(), now, out)
		return
	}
	g := st.sess.at(s)
	if g.state != regNone {
		return // an operation was quicker and registered; its answer names the same number
	}
	g.num, g.epoch, g.found = l.Registration, 0, l
	c.attach(g, now, out)
}

// resumeStep sends Resumed once every shard answered and every registration
// found is attached.
func (c *Core) resumeStep(st *stream, now Time, out *Output) {
	if st.state != streamResuming || st.loc != nil {
		return
	}
	for _, g := range st.sess.regs {
		if g.state == regAttaching || g.state == regRegistering {
			return
		}
	}
	c.resumeKnown(st, now, out)
}

// resumeKnown sends Resumed with what is known; a shard that has not answered
// for a whole TTL has no lease of this session to save. What is found later is
// attached and listed when it is found.
func (c *Core) resumeKnown(st *stream, now Time, out *Output) {
	if st.state != streamResuming {
		return
	}
	st.state = streamLive
	c.timers.stop(&st.late)
	n := uint32(0)
	for _, g := range st.sess.regs {
		if g.state == regListing {
			n++
		}
	}
	st.emit(c, now, out, &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Resumed{Resumed: &lockv1.ResumedEvent{
		TtlMs: millis(st.sess.ttl), Registrations: n}}})
	for _, g := range st.sess.regs {
		if g.state == regListing {
			c.list(g, now, out)
		}
	}
	if n == 0 {
		c.wantRenewal(st.sess, now)
	}
	waiting := st.waiting
	st.waiting = nil
	for _, o := range waiting {
		if c.streams[st.id] == st && !o.over {
			c.submit(o, now, out)
		}
	}
	if st.closing && c.streams[st.id] == st {
		c.closeOp(st, now, out)
	}
}

// closeOp ends the session in every shard where it is registered.
func (c *Core) closeOp(st *stream, now Time, out *Output) {
	st.closing = true
	if st.state == streamResuming {
		return // first find out where it is
	}
	st.state = streamClosing
	s := st.sess
	c.dropRenewal(s)
	// What has not been sent will not be; what is in flight ends with its
	// registration.
	for i := 0; i < len(s.reqs); {
		if o, ok := s.reqs[i].owner.(*op); ok {
			st.finish(c, o)
			continue
		}
		i++
	}
	c.dropHomeless(s)
	st.acquires = map[uint64]*op{}
	for _, g := range s.regs {
		g.queue = nil
	}
	c.closeStep(st, now, out)
}

// closeStep closes what can be closed, and answers when nothing is left.
func (c *Core) closeStep(st *stream, now Time, out *Output) {
	if st.loc != nil {
		return
	}
	left := false
	for _, g := range st.sess.regs {
		left = true
		if g.state == regLive || g.state == regListing {
			g.state = regClosing
			r := &request{owner: &closeRequest{st, g}, sess: st.sess}
			r.pb.Op = &nodev1.Request_Close{Close: &nodev1.CloseRegistration{Registration: g.num,
				Attachment: st.sess.attachment, Reason: lockv1.LostReason_LOST_REASON_CLOSED}}
			c.start(g.shard, r, now, out)
		}
	}
	if left || c.streams[st.id] != st {
		return
	}
	st.emit(c, now, out, &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Closed{Closed: &lockv1.ClosedEvent{}}})
	c.endStream(st, nil, now, out)
}

// closeRequest owns the CloseRegistration of one registration.
type closeRequest struct {
	st *stream
	g  *reg
}

func (q *closeRequest) again(c *Core, now Time, out *Output) {}

func (q *closeRequest) answered(c *Core, r *request, resp *nodev1.Response, now Time, out *Output) {
	if f := resp.Failure; f != nil && !isRegistrationGone(f) {
		if isOldAttachment(f) {
			f = superseded()
		}
		q.st.emit(c, now, out, &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Closed{Closed: &lockv1.ClosedEvent{Failure: f}}})
		c.endStream(q.st, nil, now, out)
		return
	}
	q.g.state = regEnded
	q.st.sess.remove(q.g)
	c.closeStep(q.st, now, out)
}
