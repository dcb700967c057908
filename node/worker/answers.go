package worker

import (
	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
	"google.golang.org/grpc/codes"
)

// waitKey names an acquire; waiter is who hears of its end.
type waitKey struct {
	reg shard.Registration
	acq shard.AcquireID
}

type waiter struct {
	stream StreamID
	id     uint64
}

// answer tells the outcome of one command to whoever asked.
func (r *replica) answer(p *proposal, o *op, res *shard.Result) {
	switch o.kind {
	case shard.KindExpire:
		if res.Status != shard.StatusOK {
			r.leases.Undo(o.reg) // due again while the deadline lies in the past
		}
		return
	case shard.KindWaitOver, shard.KindLeave, shard.KindWake:
		r.dueInLog = false
		return
	case shard.KindHandover:
		return
	}
	switch {
	case res.Status == shard.StatusOK:
	case o.kind == shard.KindAcquire && res.Status == shard.StatusNoRegistration:
		r.answerAcquire(o, &nodev1.AcquireResult{State: &nodev1.AcquireResult_Ended{
			Ended: &lockv1.EndedEvent{Seq: o.acq.Seq, Reason: lockv1.EndReason_END_REASON_REGISTRATION_ENDED}}})
		return
	default:
		r.w.refuse(o.stream, o.id, r.failure(o, res), nil)
		return
	}
	resp := &nodev1.Response{Id: o.id}
	switch o.kind {
	case shard.KindRegister:
		r.speaks(res.Registration, o.stream)
		resp.Result = &nodev1.Response_Register{Register: &nodev1.RegisterResult{
			Registration: uint64(res.Registration), Epoch: res.Epoch, Attachment: res.Attachment}}
	case shard.KindAttach:
		r.speaks(o.reg, o.stream)
		resp.Result = &nodev1.Response_Done{Done: &nodev1.Done{}}
	case shard.KindCancel, shard.KindRelease:
		resp.Result = &nodev1.Response_Done{Done: &nodev1.Done{}}
	case shard.KindClose:
		resp.Result = &nodev1.Response_Close{Close: &nodev1.CloseResult{HoldsReleased: uint64(res.Ended)}}
	case shard.KindForceRelease:
		resp.Result = &nodev1.Response_ForceRelease{ForceRelease: &lockv1.ForceReleaseResponse{Released: holders(res.EndedHolds)}}
	case shard.KindAcquire:
		r.speaks(o.reg, o.stream)
		r.acquired(p, o, res)
		return
	}
	r.w.respond(o.stream, resp)
}

// speaks: news of the registration goes to the stream from here on.
func (r *replica) speaks(reg shard.Registration, s StreamID) {
	if !r.w.isClosed(s) {
		r.streams[reg] = s
	}
}

// acquired tells the present truth of an acquire. A later duplicate takes the
// answers over; a final state ends the waiting of an earlier one.
func (r *replica) acquired(p *proposal, o *op, res *shard.Result) {
	key := waitKey{o.reg, o.acq}
	switch res.State {
	case shard.AcquireWaiting:
		if !r.w.isClosed(o.stream) {
			r.waiters[key] = waiter{o.stream, o.id}
		}
		r.answerAcquire(o, &nodev1.AcquireResult{State: &nodev1.AcquireResult_Waiting{Waiting: &lockv1.WaitingEvent{
			Seq: o.acq.Seq, Position: uint64(max(res.Position, 0)), Shard: uint32(r.shard), Registration: uint64(o.reg), Holders: holders(res.Holders)}}})
	case shard.AcquireGranted:
		delete(r.waiters, key)
		r.answerAcquire(o, r.granted(o.reg, o.acq, res.Token, res.Epoch, p.at))
	default:
		delete(r.waiters, key)
		r.answerAcquire(o, &nodev1.AcquireResult{State: &nodev1.AcquireResult_Ended{Ended: &lockv1.EndedEvent{
			Seq: o.acq.Seq, Reason: endReason(res.Reason), Holders: holders(res.Holders)}}})
	}
}

func (r *replica) answerAcquire(o *op, res *nodev1.AcquireResult) {
	r.w.respond(o.stream, &nodev1.Response{Id: o.id, Result: &nodev1.Response_Acquire{Acquire: res}})
}

// granted says what the lease had left when the granting entry was proposed at
// proposed (0: not by this leader in this term, so nothing is promised and a
// renewal must cover the hold). The deadline can't have been moved since in a
// way that a successor would not honour: a successor gives a full TTL from a
// later time, or what was handed over, and nothing moves after that.
func (r *replica) granted(reg shard.Registration, acq shard.AcquireID, token shard.Token, epoch uint64, proposed Time) *nodev1.AcquireResult {
	var left int64
	if proposed != 0 && r.leases != nil {
		left, _ = r.leases.Remaining(reg, int64(proposed))
	}
	return &nodev1.AcquireResult{State: &nodev1.AcquireResult_Granted{Granted: &lockv1.GrantedEvent{
		Seq: acq.Seq, Token: uint64(token), LeaseMs: uint64(left / ms), Shard: uint32(r.shard), Registration: uint64(reg), Epoch: epoch}}}
}

// tell passes on what an entry did to others than its own senders.
func (r *replica) tell(ev *shard.Event, proposed Time) {
	switch ev.Kind {
	case shard.EventGranted:
		if w, ok := r.takeWaiter(ev); ok {
			r.answerAcquire(&op{stream: w.stream, id: w.id}, r.granted(ev.Registration, ev.Acquire, ev.Token, ev.Epoch, proposed))
		}
	case shard.EventEnded:
		if w, ok := r.takeWaiter(ev); ok {
			r.answerAcquire(&op{stream: w.stream, id: w.id}, &nodev1.AcquireResult{State: &nodev1.AcquireResult_Ended{
				Ended: &lockv1.EndedEvent{Seq: ev.Acquire.Seq, Reason: endReason(ev.Reason), Holders: holders(ev.Holders)}}})
		}
	case shard.EventLost:
		r.push(ev, &nodev1.Push{SessionId: ev.Session[:], Event: &nodev1.Push_Lost{Lost: &lockv1.LostEvent{
			Shard: uint32(r.shard), Registration: uint64(ev.Registration), Epoch: ev.Epoch,
			Hold: &lockv1.LostHold{Name: ev.Name, Token: uint64(ev.Token), Seq: ev.Acquire.Seq, Reason: lostReason(ev.Reason)}}}})
	case shard.EventRegistrationEnded:
		r.push(ev, &nodev1.Push{SessionId: ev.Session[:], Event: &nodev1.Push_RegistrationEnded{
			RegistrationEnded: &lockv1.RegistrationEndedEvent{Shard: uint32(r.shard), Registration: uint64(ev.Registration), Reason: lostReason(ev.Reason)}}})
		delete(r.streams, ev.Registration)
	}
}

func (r *replica) takeWaiter(ev *shard.Event) (waiter, bool) {
	key := waitKey{ev.Registration, ev.Acquire}
	w, ok := r.waiters[key]
	delete(r.waiters, key)
	return w, ok
}

// push goes to the stream that last spoke for the registration.
func (r *replica) push(ev *shard.Event, p *nodev1.Push) {
	if s := r.streams[ev.Registration]; s != 0 {
		p.SessionId = append([]byte(nil), ev.Session[:]...)
		r.w.out.Replies = append(r.w.out.Replies, Reply{Stream: s, Push: p})
	}
}

// failWaiters tells every waiter of an ending leader to ask again elsewhere.
func (r *replica) failWaiters() {
	for _, w := range sortedWaiters(r.waiters) {
		r.outcomeUnknown(w.stream, w.id)
	}
}

// streamClosed forgets who spoke by a stream that has ended.
func (r *replica) streamClosed(s StreamID) {
	if !r.leading {
		return
	}
	for k, w := range r.waiters {
		if w.stream == s {
			delete(r.waiters, k)
		}
	}
	for k, st := range r.streams {
		if st == s {
			delete(r.streams, k)
		}
	}
}

func (r *replica) failure(o *op, res *shard.Result) *lockv1.Failure {
	var f *lockv1.Failure
	switch res.Status {
	case shard.StatusNoRegistration:
		f = fail(codes.FailedPrecondition, ReasonNoRegistration, "registration %d of shard %d is not live", o.reg, r.shard)
	case shard.StatusOldAttachment:
		f = fail(codes.Aborted, ReasonOldAttachment, "the session was resumed by a newer stream")
		f.Detail.Field = "attachment"
	case shard.StatusStale:
		f = fail(codes.FailedPrecondition, ReasonStale, "seq is below done_below: that acquire was declared finished")
		f.Detail.Field, f.Detail.Rule = "seq", "must not be below done_below"
	case shard.StatusMismatch:
		f = fail(codes.InvalidArgument, ReasonReused, "this acquire is known with another name or mode")
		f.Detail.Field, f.Detail.Rule = "id", "must not be used for two acquires"
	case shard.StatusNotOwner:
		f = fail(codes.FailedPrecondition, ReasonNotOwner, "shard %d does not own the name", r.shard)
	case shard.StatusTokenNotCurrent:
		f = fail(codes.FailedPrecondition, ReasonTokenNotCurrent, "the token is not that of a present hold")
		f.Detail.Field, f.Detail.Rule = "token", "must be that of a present hold"
	case shard.StatusModeConflict:
		f = fail(codes.FailedPrecondition, ReasonModeConflict, "the lock is in use in mode %s", modeName(res.Mode))
		f.Detail.Field, f.Detail.Rule = "mode", "must fit the mode in use"
	case shard.StatusLimitDisagrees:
		f = fail(codes.FailedPrecondition, ReasonLimitDisagrees, "the lock is in use with a limit of %d permits", res.Limit)
		f.Detail.Field, f.Detail.Rule, f.Detail.LimitValue = "limit", "must be that in use", uint64(res.Limit)
	case shard.StatusLimit:
		f = fail(codes.ResourceExhausted, ReasonLimit, "shard %d has reached the limit %s of %d", r.shard, res.LimitName, res.LimitValue)
		f.Detail.LimitName, f.Detail.LimitValue, f.Detail.RetryAfterMs = res.LimitName, res.LimitValue, 1000
	default:
		f = fail(codes.InvalidArgument, ReasonInvalid, "shard %d refused the command as invalid", r.shard)
	}
	f.Detail.Shard = uint32(r.shard)
	f.Detail.Holders = holders(res.Holders)
	return f
}

func modeName(m shard.Mode) string {
	switch m {
	case shard.Exclusive:
		return "exclusive"
	case shard.Shared:
		return "shared"
	case shard.Counted:
		return "counted"
	}
	return "none"
}

func holders(hs []shard.HolderView) []*lockv1.Holder {
	if len(hs) == 0 {
		return nil
	}
	out := make([]*lockv1.Holder, len(hs))
	for i, h := range hs {
		out[i] = &lockv1.Holder{Client: h.Client, Token: uint64(h.Token), Mode: lockv1.Mode(h.Mode), Permits: h.Permits,
			HeldForMs: uint64(max(h.HeldFor, 0) / ms), GrantedUnixMs: h.GrantedMS}
	}
	return out
}

func endReason(x shard.Reason) lockv1.EndReason {
	switch x {
	case shard.ReasonBusy:
		return lockv1.EndReason_END_REASON_BUSY
	case shard.ReasonWaitOver:
		return lockv1.EndReason_END_REASON_WAIT_OVER
	case shard.ReasonCancelled:
		return lockv1.EndReason_END_REASON_CANCELLED
	case shard.ReasonRegistrationEnded:
		return lockv1.EndReason_END_REASON_REGISTRATION_ENDED
	}
	// Whatever else ended it: it was granted, and the hold is over.
	return lockv1.EndReason_END_REASON_HOLD_OVER
}

func lostReason(x shard.Reason) lockv1.LostReason {
	switch x {
	case shard.ReasonExpired:
		return lockv1.LostReason_LOST_REASON_EXPIRED
	case shard.ReasonForced:
		return lockv1.LostReason_LOST_REASON_FORCED
	case shard.ReasonRevoked:
		return lockv1.LostReason_LOST_REASON_REVOKED
	case shard.ReasonReleasedByToken:
		return lockv1.LostReason_LOST_REASON_RELEASED_BY_TOKEN
	case shard.ReasonClosed:
		return lockv1.LostReason_LOST_REASON_CLOSED
	}
	return lockv1.LostReason_LOST_REASON_UNSPECIFIED
}
