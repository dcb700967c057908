package core

import (
	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"google.golang.org/grpc/codes"
)

type opKind uint8

const (
	opAcquire opKind = iota + 1
	opCancel
	opRelease
)

// op is one operation of a session in one shard: acquire, cancel or release,
// by stream (seq) or by a unary call (reqID).
type op struct {
	request
	kind  opKind
	sess  *session // request.sess is nil while it is not outstanding
	reg   *reg
	num   uint64 // registration that it was sent under
	seq   uint64
	reqID []byte
	name  string
	token uint64
	p     acquireParams
	call  *call // unary; nil for background cancels
	// told: the client has heard that it waits.
	told bool
	over bool
	// retried: its registration had ended, and it was submitted under another.
	retried bool
	giveUp  timer // cancels in the background
	// withdrawn is why an acquire was refused whose earlier sending may have
	// been applied: a Cancel in its place is under way, and then this is the
	// answer.
	withdrawn *lockv1.Failure
}

func (o *op) id() *nodev1.AcquireId {
	if o.seq == 0 && o.reqID == nil {
		return nil
	}
	return &nodev1.AcquireId{Seq: o.seq, RequestId: o.reqID}
}

func (o *op) again(c *Core, now Time, out *Output) {
	if !o.over {
		c.submit(o, now, out)
	}
}

// submit routes an operation and sends it, or queues it behind the
// registration that it needs.
func (c *Core) submit(o *op, now Time, out *Output) {
	s := c.route(o.name, o, now)
	if s == nil {
		return
	}
	g := o.reg
	if g == nil || g.state == regEnded || g.shard != s {
		g = o.sess.at(s)
		o.reg = g
	}
	if g.state == regLive {
		c.sendOp(o, now, out)
		return
	}
	g.queue = append(g.queue, o)
	c.register(g, now, out)
}

func (c *Core) sendOp(o *op, now Time, out *Output) {
	o.num = o.reg.num
	acting := &nodev1.Acting{Registration: o.num, Attachment: o.sess.attachment, DoneBelow: o.sess.doneBelow}
	switch o.kind {
	case opAcquire:
		o.pb.Op = &nodev1.Request_Acquire{Acquire: &nodev1.Acquire{Acting: acting, Id: o.id(), Name: o.name, Mode: o.p.mode,
			Permits: o.p.permits, Limit: o.p.limit, WaitMs: o.p.waitMS, LockDelayMs: o.p.delayMS}}
	case opCancel:
		o.pb.Op = &nodev1.Request_Cancel{Cancel: &nodev1.Cancel{Acting: acting, Id: o.id(), Name: o.name}}
	case opRelease:
		o.pb.Op = &nodev1.Request_Release{Release: &nodev1.Release{Acting: acting, Id: o.id(), Name: o.name, Token: o.token}}
	}
	o.owner = o
	o.request.sess = o.sess
	c.start(o.reg.shard, &o.request, now, out)
}

// dropOp forgets an operation wherever it is; nobody is told.
func (c *Core) dropOp(o *op) {
	o.over = true
	if o.request.shard != nil {
		c.forget(&o.request)
	}
}

// withdraw ends an acquire that was refused only at its second sending. Where
// the caller knows the acquire by a seq or a request id of its own, it hears
// that the outcome is not known (code UNAVAILABLE), and cancels it or asks again
// by itself: it may have learned of a grant meanwhile, which a Cancel of ours
// would take away. Under an id of ours it is cancelled, and then the refusal is
// passed on.
func (c *Core) withdraw(o *op, f *lockv1.Failure, now Time, out *Output) {
	if cl := o.call; cl == nil || !cl.acquire.ownID {
		c.forget(&o.request)
		unknown := fail(codes.Unavailable, reason(f), "", "", f.Message+"; an earlier try may have had an effect: ask again under the same id, or cancel it")
		unknown.Detail.RetryAfterMs = f.GetDetail().GetRetryAfterMs()
		c.opRefused(o, unknown, now, out)
		return
	}
	o.withdrawn = f
	acting := &nodev1.Acting{Registration: o.num, Attachment: o.sess.attachment, DoneBelow: o.sess.doneBelow}
	o.pb.Op = &nodev1.Request_Cancel{Cancel: &nodev1.Cancel{Acting: acting, Id: o.id(), Name: o.name}}
	c.dispatch(o.request.shard, now, out)
}

func (o *op) answered(c *Core, r *request, resp *nodev1.Response, now Time, out *Output) {
	if o.over {
		return
	}
	if o.withdrawn != nil && (resp.Failure == nil || !isRegistrationGone(resp.Failure) && !isOldAttachment(resp.Failure)) {
		c.opRefused(o, o.withdrawn, now, out)
		return
	}
	if f := resp.Failure; f != nil {
		switch {
		case isRegistrationGone(f):
			g := o.reg
			if g.state != regEnded && g.num == o.num {
				c.endRegistration(g, lockv1.LostReason_LOST_REASON_UNSPECIFIED, now, out)
			}
			if !o.over {
				c.opRegistrationGone(o, now, out)
			}
		case isOldAttachment(f) && o.sess.stream != nil:
			c.endStream(o.sess.stream, superseded(), now, out)
		default:
			c.opRefused(o, f, now, out)
		}
		return
	}
	if o.call != nil || o.sess.stream == nil {
		c.unaryAnswered(o, resp, now, out)
		return
	}
	st := o.sess.stream
	switch o.kind {
	case opAcquire:
		a := resp.GetAcquire()
		switch state := a.GetState().(type) {
		case *nodev1.AcquireResult_Waiting:
			if !o.told {
				o.told = true
				state.Waiting.Seq, state.Waiting.Shard, state.Waiting.Registration = o.seq, uint32(o.reg.shard.id), o.num
				st.emit(c, now, out, &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Waiting{Waiting: state.Waiting}})
			}
			return
		case *nodev1.AcquireResult_Granted:
			g := state.Granted
			g.Seq, g.Shard, g.Registration = o.seq, uint32(o.reg.shard.id), o.num
			st.emit(c, now, out, &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Granted{Granted: g}})
		case *nodev1.AcquireResult_Ended:
			e := state.Ended
			e.Seq = o.seq
			st.emit(c, now, out, &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Ended{Ended: e}})
			if e.Reason == lockv1.EndReason_END_REASON_REGISTRATION_ENDED && o.reg.num == o.num {
				st.finish(c, o)
				c.endRegistration(o.reg, lockv1.LostReason_LOST_REASON_UNSPECIFIED, now, out)
				return
			}
		default:
			c.opRefused(o, fail(codes.Internal, "INTERNAL", "", "", "the shard answered an acquire with something else"), now, out)
			return
		}
	case opCancel:
		st.emit(c, now, out, &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Cancelled{Cancelled: &lockv1.CancelledEvent{Seq: o.seq}}})
		st.finish(c, o)
		// Whatever is left of the acquire will not be answered any more.
		if a := st.acquires[o.seq]; a != nil {
			st.finish(c, a)
		}
		return
	case opRelease:
		st.emit(c, now, out, &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Released{Released: &lockv1.ReleasedEvent{Seq: o.seq}}})
	}
	st.finish(c, o)
}

// opRefused: refused for good.
func (c *Core) opRefused(o *op, f *lockv1.Failure, now Time, out *Output) {
	if o.over {
		return
	}
	if o.sess.stream == nil {
		c.unaryRefused(o, f, now, out)
		return
	}
	st := o.sess.stream
	st.emit(c, now, out, refusal(o.kind, o.seq, f))
	st.finish(c, o)
}

// refusal is the event by which an operation is refused.
func refusal(kind opKind, seq uint64, f *lockv1.Failure) *lockv1.SessionEvent {
	switch kind {
	case opAcquire:
		return &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Ended{Ended: &lockv1.EndedEvent{Seq: seq,
			Reason: lockv1.EndReason_END_REASON_REFUSED, Holders: f.GetDetail().GetHolders(), Failure: f}}}
	case opCancel:
		return &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Cancelled{Cancelled: &lockv1.CancelledEvent{Seq: seq, Failure: f}}}
	default:
		return &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Released{Released: &lockv1.ReleasedEvent{Seq: seq, Failure: f}}}
	}
}

// opRegistrationGone: the registration that it was to act under has ended. An
// acquire ends with it, and only the client may ask anew; a cancel has reached
// its aim; a release has nothing left to free.
func (c *Core) opRegistrationGone(o *op, now Time, out *Output) {
	if o.sess.stream == nil {
		c.unaryRegistrationGone(o, now, out)
		return
	}
	st := o.sess.stream
	var e *lockv1.SessionEvent
	switch o.kind {
	case opAcquire:
		e = &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Ended{Ended: &lockv1.EndedEvent{Seq: o.seq,
			Reason: lockv1.EndReason_END_REASON_REGISTRATION_ENDED}}}
	case opCancel:
		e = refusal(o.kind, o.seq, nil)
	case opRelease:
		e = refusal(o.kind, o.seq, sessionEnded())
	}
	st.emit(c, now, out, e)
	st.finish(c, o)
}
