package core

import (
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
	"google.golang.org/grpc/codes"
)

// acquireCall is the part of a call that only Acquire has.
type acquireCall struct {
	reqID   []byte
	ownID   bool // the caller gave no request id
	op      *op
	holders []*lockv1.Holder
	grant   *lockv1.GrantedEvent
	beat    timer // renewals while it waits
	cancel  *op   // given up; answered when the cancel is acknowledged
	retried bool
}

// acquireKey tells repetitions of one unary acquire.
type acquireKey struct {
	session shard.SessionID
	id      [16]byte
}

func (cl *call) acquireKey() (k acquireKey) {
	k.session = cl.sess.id
	copy(k.id[:], cl.acquire.reqID)
	return k
}

func (c *Core) acquireUnary(cl *call, r *lockv1.AcquireRequest, ownID bool, now Time, out *Output) *lockv1.Failure {
	id, f := c.verify(r.SessionId)
	if f != nil {
		return f
	}
	p, f := checkAcquire(r, r.Permits, r.Limit)
	if f != nil {
		return f
	}
	reqID, f := checkRequestID(r.RequestId)
	if f != nil {
		return f
	}
	s, f := c.unarySession(id, now)
	if f != nil {
		return f
	}
	cl.sess = s
	a := &acquireCall{reqID: reqID, ownID: ownID}
	cl.acquire = a
	// A repetition takes over: the shard answers the newest request only.
	if old := c.acquiring[cl.acquireKey()]; old != nil {
		c.answer(old, nil, fail(codes.Aborted, "REPEATED", "request_id", "",
			"the same acquire was asked again, and that call gets the answer"), out)
	}
	c.acquiring[cl.acquireKey()] = cl
	s.calls = append(s.calls, cl)
	a.op = &op{kind: opAcquire, sess: s, reqID: reqID, name: r.Name, p: p, call: cl}
	cl.ops = append(cl.ops, a.op)
	a.beat.fire = func(now Time, out *Output) {
		c.renewUnary(s, now)
		c.timers.set(&a.beat, now+s.ttl/3)
	}
	c.timers.set(&cl.timer, cl.soft)
	c.submit(a.op, now, out)
	return nil
}

// unaryAnswered takes a shard's answer to an operation of a unary call.
func (c *Core) unaryAnswered(o *op, resp *nodev1.Response, now Time, out *Output) {
	cl := o.call
	if o.kind == opAcquire {
		if cl == nil || cl.ended {
			return
		}
		a := cl.acquire
		switch st := resp.GetAcquire().GetState().(type) {
		case *nodev1.AcquireResult_Waiting:
			a.holders = st.Waiting.Holders
			if !o.told {
				o.told = true
				a.beat.fire(now, out)
			}
		case *nodev1.AcquireResult_Granted:
			o.over = true
			a.grant = st.Granted
			c.grantStep(cl, now, out)
		case *nodev1.AcquireResult_Ended:
			o.over = true
			c.acquireEnded(cl, o, st.Ended, now, out)
		default:
			c.opRefused(o, fail(codes.Internal, "INTERNAL", "", "", "the shard answered an acquire with something else"), now, out)
		}
		return
	}
	c.opDone(o)
	if cl == nil || cl.ended {
		return
	}
	switch cl.req.(type) {
	case *lockv1.ReleaseRequest:
		c.answer(cl, &lockv1.ReleaseResponse{}, nil, out)
	case *lockv1.CancelRequest:
		c.answer(cl, &lockv1.CancelResponse{}, nil, out)
	case *lockv1.AcquireRequest:
		c.acquireCancelled(cl, out)
	}
}

func (c *Core) opDone(o *op) {
	o.over = true
	c.timers.stop(&o.giveUp)
}

// acquireEnded: the acquire holds nothing and never will.
func (c *Core) acquireEnded(cl *call, o *op, e *lockv1.EndedEvent, now Time, out *Output) {
	switch e.Reason {
	case lockv1.EndReason_END_REASON_BUSY, lockv1.EndReason_END_REASON_WAIT_OVER:
		c.answer(cl, &lockv1.AcquireResponse{Holders: e.Holders, Fenced: true}, nil, out)
	case lockv1.EndReason_END_REASON_CANCELLED:
		c.answer(cl, nil, fail(codes.Aborted, ReasonCancelled, "request_id", "", "this acquire was cancelled; ask anew under another request_id"), out)
	case lockv1.EndReason_END_REASON_HOLD_OVER:
		c.answer(cl, nil, fail(codes.FailedPrecondition, ReasonHoldOver, "request_id", "",
			"this acquire was granted and its hold is over; ask anew under another request_id"), out)
	case lockv1.EndReason_END_REASON_REGISTRATION_ENDED:
		if o.reg.num == o.num {
			c.endRegistration(o.reg, lockv1.LostReason_LOST_REASON_UNSPECIFIED, now, out)
		}
		o.over = false
		c.unaryRegistrationGone(o, now, out)
	default:
		f := e.Failure
		if f == nil {
			f = fail(codes.Internal, "INTERNAL", "", "", "the shard refused the acquire without a reason")
		}
		c.answer(cl, nil, f, out)
	}
}

// lease is how long the grant is protected, counted from the call's arrival,
// which is not before its sending: what the granting leader's deadline had
// left, or a full TTL from the newest renewal that covers it.
func (cl *call) lease() Time {
	a := cl.acquire
	l := Time(a.grant.LeaseMs) * time.Millisecond
	if g := a.op.reg; g.num == a.op.num && g.covered != 0 && g.coveredAt >= cl.arrived {
		l = max(l, g.coveredAt-cl.arrived+cl.sess.ttl)
	}
	return l
}

// grantStep answers a granted acquire as soon as its lease is worth something.
func (c *Core) grantStep(cl *call, now Time, out *Output) {
	a := cl.acquire
	if a == nil || a.grant == nil || cl.ended {
		return
	}
	left := cl.lease() - (now - cl.arrived)
	if left < cl.sess.ttl/2 && now < cl.soft {
		// A long wait ate the lease: renew first. The beat goes on.
		if a.beat.pos == 0 || cl.sess.renew.arrived < now-cl.sess.ttl/6 {
			a.beat.fire(now, out)
		}
		return
	}
	if left <= 0 {
		c.abandonAcquire(cl, now, out)
		rest := "it was given back"
		if !a.ownID {
			rest = "ask again under the same request_id, or cancel it"
		}
		c.answer(cl, nil, fail(codes.Unavailable, ReasonLeaseOver, "", "",
			"the lock was granted, but its lease could not be confirmed in time; "+rest), out)
		return
	}
	c.answer(cl, &lockv1.AcquireResponse{Granted: true, Token: a.grant.Token, LeaseForMs: millis(cl.lease()), Fenced: true}, nil, out)
}

// acquireGivenUp: no outcome until the soft limit. Cancel, then answer. An
// acquire under the caller's own request id goes on until the hard limit and is
// not cancelled (G8).
func (c *Core) acquireGivenUp(cl *call, now Time, out *Output) {
	a := cl.acquire
	c.timers.set(&cl.timer, cl.hard)
	if a.grant != nil {
		c.grantStep(cl, now, out)
		return
	}
	if !a.ownID {
		return
	}
	if a.op.num == 0 {
		// Never sent to any shard: there is nothing to cancel.
		c.answer(cl, nil, c.noLeader(cl.silentShard()), out)
		return
	}
	a.cancel = c.cancelOf(a.op)
	a.cancel.call = cl
	cl.ops = append(cl.ops, a.cancel)
	c.dropOp(a.op)
	c.submit(a.cancel, now, out)
}

func (c *Core) cancelOf(o *op) *op {
	return &op{kind: opCancel, sess: o.sess, reqID: o.reqID, name: o.name, reg: o.reg}
}

// acquireCancelled: the given-up acquire holds nothing now.
func (c *Core) acquireCancelled(cl *call, out *Output) {
	if cl.acquire.op.told {
		c.answer(cl, &lockv1.AcquireResponse{Holders: cl.acquire.holders, Fenced: true}, nil, out)
		return
	}
	c.answer(cl, nil, c.noLeader(cl.silentShard()), out)
}

// abandonAcquire makes sure, in the background, that the acquire holds nothing;
// not where the caller named the request id (G8).
func (c *Core) abandonAcquire(cl *call, now Time, out *Output) {
	a := cl.acquire
	if !a.ownID {
		return
	}
	o := a.cancel
	if o == nil {
		if a.op.num == 0 {
			return
		}
		o = c.cancelOf(a.op)
		c.dropOp(a.op)
		c.background(o, now)
		c.submit(o, now, out)
		return
	}
	if o.over {
		return
	}
	c.background(o, now)
	for i, p := range cl.ops {
		if p == o {
			cl.ops = append(cl.ops[:i], cl.ops[i+1:]...)
			break
		}
	}
}

// undelivered: the answer of an acquire could not be written.
func (c *Core) undelivered(r *lockv1.AcquireRequest, now Time, out *Output) {
	id, f := c.verify(r.SessionId)
	if f != nil {
		return
	}
	reqID, f := checkRequestID(r.RequestId)
	if f != nil {
		return
	}
	s, f := c.unarySession(id, now)
	if f != nil {
		return // it expires
	}
	o := &op{kind: opCancel, sess: s, reqID: reqID, name: r.Name}
	c.background(o, now)
	c.submit(o, now, out)
}

// unaryRefused: the shard refused an operation for good.
func (c *Core) unaryRefused(o *op, f *lockv1.Failure, now Time, out *Output) {
	cl := o.call
	c.opDone(o)
	if cl == nil || cl.ended {
		return
	}
	if o.kind == opRelease && o.doubt && o.reqID == nil && reason(f) == ReasonTokenNotCurrent {
		// It may have been this very release, sent twice, that ended the hold;
		// what the caller wanted is so.
		c.answer(cl, &lockv1.ReleaseResponse{}, nil, out)
		return
	}
	if o.kind == opRelease && o.retried && reason(f) == ReasonTokenNotCurrent {
		f = sessionEnded() // the registration that held it is not the present one
	}
	c.answer(cl, nil, f, out)
}

// unaryRegistrationGone: the registration that it acted under has ended.
func (c *Core) unaryRegistrationGone(o *op, now Time, out *Output) {
	cl := o.call
	if o.kind == opAcquire && cl != nil && !cl.ended && !o.told && !o.doubt && !cl.acquire.retried && cl.acquire.cancel == nil {
		// The number was remembered from earlier calls and this acquire was
		// refused before it had any effect: register anew, once.
		cl.acquire.retried = true
		o.over = false
		o.reg = nil
		c.submit(o, now, out)
		return
	}
	if o.kind != opAcquire && !o.retried && (cl == nil || !cl.ended) {
		// The number was remembered from earlier calls. Another gateway may have
		// registered the session anew since, and what is to be given back is held
		// there; to register tells the present number.
		o.retried = true
		o.over = false
		o.reg = nil
		c.submit(o, now, out)
		return
	}
	c.opDone(o)
	if cl == nil || cl.ended {
		return
	}
	switch cl.req.(type) {
	case *lockv1.CancelRequest:
		c.answer(cl, &lockv1.CancelResponse{}, nil, out)
	case *lockv1.AcquireRequest:
		if o.kind == opCancel {
			c.acquireCancelled(cl, out)
			return
		}
		c.answer(cl, nil, sessionEnded(), out)
	default:
		c.answer(cl, nil, sessionEnded(), out)
	}
}

func (c *Core) releaseUnary(cl *call, r *lockv1.ReleaseRequest, now Time, out *Output) *lockv1.Failure {
	if f := checkName(r.Name); f != nil {
		return f
	}
	if f := checkToken(r.Token); f != nil {
		return f
	}
	if r.SessionId == "" {
		if r.RequestId != "" {
			return invalid("session_id", "must be set when request_id is")
		}
		c.named(cl, r.Name, now, out)
		return nil
	}
	o := &op{kind: opRelease, name: r.Name, token: r.Token}
	return c.sessionOp(cl, o, r.SessionId, r.RequestId, r.RequestId != "", now, out)
}

func (c *Core) cancelUnary(cl *call, r *lockv1.CancelRequest, now Time, out *Output) *lockv1.Failure {
	if f := checkName(r.Name); f != nil {
		return f
	}
	return c.sessionOp(cl, &op{kind: opCancel, name: r.Name}, r.SessionId, r.RequestId, true, now, out)
}

// sessionOp submits a cancel or a release of a unary call.
func (c *Core) sessionOp(cl *call, o *op, sessionID, requestID string, needID bool, now Time, out *Output) *lockv1.Failure {
	id, f := c.verify(sessionID)
	if f != nil {
		return f
	}
	if needID {
		if o.reqID, f = checkRequestID(requestID); f != nil {
			return f
		}
	}
	s, f := c.unarySession(id, now)
	if f != nil {
		return f
	}
	cl.sess, o.sess, o.call = s, s, cl
	s.calls = append(s.calls, cl)
	cl.ops = append(cl.ops, o)
	c.submit(o, now, out)
	return nil
}
