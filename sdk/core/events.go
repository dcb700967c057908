package core

import (
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"google.golang.org/grpc/codes"
)

// Frame takes one frame of a stream.
func (s *Session) Frame(now Time, id StreamID, f *lockv1.SessionResponse, out *Output) {
	s.tick(now, out)
	if s.over || s.cur == nil || s.cur.id != id {
		s.finish(now, out)
		return
	}
	s.cur.heard, s.cur.heardAt = true, now
	for _, e := range f.Events {
		if s.over || s.cur == nil || s.cur.id != id {
			break
		}
		s.event(e, now, out)
	}
	s.tick(now, out)
	s.finish(now, out)
}

func (s *Session) event(e *lockv1.SessionEvent, now Time, out *Output) {
	switch e := e.GetEvent().(type) {
	case *lockv1.SessionEvent_Opened:
		if s.id != "" || e.Opened.SessionId == "" {
			return
		}
		s.id = e.Opened.SessionId
		s.established(e.Opened.TtlMs, now)
		s.cur.ready = true
		s.sendAll(now, out)
	case *lockv1.SessionEvent_Resumed:
		s.established(e.Resumed.TtlMs, now)
	case *lockv1.SessionEvent_Renewed:
		s.renewed(e.Renewed, now, out)
	case *lockv1.SessionEvent_Granted:
		s.granted(e.Granted, now, out)
	case *lockv1.SessionEvent_Waiting:
		s.waiting(e.Waiting, now, out)
	case *lockv1.SessionEvent_Ended:
		s.ended(e.Ended, now, out)
	case *lockv1.SessionEvent_Cancelled:
		s.cancelled(e.Cancelled, now)
	case *lockv1.SessionEvent_Released:
		s.released(e.Released, now, out)
	case *lockv1.SessionEvent_Lost:
		if r := s.at(e.Lost.Shard, e.Lost.Registration, now, out); r != nil {
			s.lostHold(e.Lost.Shard, e.Lost.Registration, e.Lost.Hold, now, out)
			if r.known != 0 && e.Lost.Epoch == r.known+1 {
				r.known++ // with a gap the next Renewed tells what is missing (K6)
			}
		}
	case *lockv1.SessionEvent_RegistrationEnded:
		s.registrationEnded(e.RegistrationEnded.Shard, e.RegistrationEnded.Registration, lostReason(e.RegistrationEnded.Reason), now, out)
	case *lockv1.SessionEvent_Inventory:
		s.inventory(e.Inventory, now, out)
	case *lockv1.SessionEvent_Closed:
		if s.closing {
			s.end(LostSession, e.Closed.Failure, out)
		}
	case *lockv1.SessionEvent_GoAway:
		s.cur.leaving = true
	case *lockv1.SessionEvent_Failed:
		s.lose(e.Failed.Failure, now, out)
	}
}

// established: the gateway took the session.
func (s *Session) established(ttlMS uint64, now Time) {
	if ttl := time.Duration(ttlMS) * time.Millisecond; ttl > 0 && ttl <= time.Hour {
		s.ttl = ttl
		s.renewAt = min(s.renewAt, now+s.interval())
	}
	s.cur.established = true
	s.fails, s.refusals = 0, 0
	if s.inventoryAt == 0 {
		s.planInventory(now)
	}
}

func lostReason(r lockv1.LostReason) LostReason {
	switch r {
	case lockv1.LostReason_LOST_REASON_FORCED:
		return LostForced
	case lockv1.LostReason_LOST_REASON_REVOKED:
		return LostRevoked
	case lockv1.LostReason_LOST_REASON_RELEASED_BY_TOKEN:
		return LostReleasedByToken
	case lockv1.LostReason_LOST_REASON_CLOSED:
		return LostClosed
	}
	return LostExpired
}

// granted: the acquire holds its lock, unless that is over already.
func (s *Session) granted(g *lockv1.GrantedEvent, now Time, out *Output) {
	a := s.bySeq[g.Seq]
	if a == nil {
		if g.Seq == 0 || g.Seq >= s.nextSeq {
			return
		}
		// Nobody has it. If the service still holds it, the list will say so.
		s.suspectGhost(now)
		return
	}
	switch a.phase {
	case phaseAsked, phaseWaiting:
	case phaseBacked, phaseHeld:
		if g.Token == a.token {
			a.own = max(a.own, a.firstSent+leaseOf(g.LeaseMs))
			s.deliver(a, now, out)
		} else {
			s.suspectGhost(now)
		}
		return
	default:
		return // a release or cancel is on its way
	}
	if s.at(g.Shard, g.Registration, now, out) == nil {
		if s.bySeq[g.Seq] == a && (a.phase == phaseAsked || a.phase == phaseWaiting) {
			s.again(a, false, s.soon(a.tries), now, out) // of a registration that is over
		}
		return
	}
	if s.bySeq[g.Seq] != a || a.phase != phaseAsked && a.phase != phaseWaiting {
		return // it went with the registration before
	}
	a.token, a.reg = g.Token, Registration{g.Shard, g.Registration}
	a.own, a.at = a.firstSent+leaseOf(g.LeaseMs), now
	a.phase = phaseBacked
	s.backed = append(s.backed, a)
	s.due.set(a, now+s.ttl)
	s.deliver(a, now, out)
	if a.phase == phaseBacked {
		s.renewAt = min(s.renewAt, max(now, s.lastRenewAt()+s.ttl/10))
	}
}

func leaseOf(ms uint64) time.Duration {
	return time.Duration(min(ms, 3_600_000)) * time.Millisecond
}

// deliver hands a granted acquire to its caller if its lease is not over.
func (s *Session) deliver(a *acquire, now Time, out *Output) {
	if a.phase != phaseBacked || s.shards[a.reg.Shard].needed || now >= s.deadline(a) {
		return
	}
	for i, b := range s.backed {
		if b == a {
			s.backed = append(s.backed[:i], s.backed[i+1:]...)
			break
		}
	}
	a.phase, a.suspect, a.tries = phaseHeld, false, 0
	if a.req.MaxHold > 0 {
		a.capAt = now + a.req.MaxHold
	}
	out.Results = append(out.Results, Result{ID: a.id, Kind: ResultGranted, Seq: a.seq, Token: a.token, Registration: a.reg,
		Deadline: a.own - s.Margin(), CapAt: a.capAt})
	s.watch(a)
}

func (s *Session) waiting(w *lockv1.WaitingEvent, now Time, out *Output) {
	a := s.bySeq[w.Seq]
	if a == nil && w.Seq != 0 && w.Seq < s.nextSeq {
		s.suspectGhost(now)
	}
	if a == nil || a.phase != phaseAsked && a.phase != phaseWaiting {
		return
	}
	if s.at(w.Shard, w.Registration, now, out) == nil || s.bySeq[w.Seq] != a {
		return
	}
	a.phase, a.reg, a.tries = phaseWaiting, Registration{w.Shard, w.Registration}, 0
	if a.at == 0 {
		a.at = now
	}
	out.Results = append(out.Results, Result{ID: a.id, Kind: ResultQueued, Seq: a.seq, Position: w.Position, Holders: w.Holders})
}

// ended: the acquire holds nothing and never will.
func (s *Session) ended(e *lockv1.EndedEvent, now Time, out *Output) {
	a := s.bySeq[e.Seq]
	if a == nil {
		return
	}
	switch a.phase {
	case phaseAsked, phaseWaiting, phaseBacked:
	case phaseHeld, phaseReleasing, phaseLingering, phaseCancelling:
		if e.Reason == lockv1.EndReason_END_REASON_HOLD_OVER || e.Reason == lockv1.EndReason_END_REASON_REGISTRATION_ENDED {
			s.lostThere(a, LostExpired, now, out)
		}
		return
	default:
		return
	}
	if a.phase == phaseBacked && e.Reason == lockv1.EndReason_END_REASON_REFUSED {
		return // of another asking; the inventory said that it is granted
	}
	switch e.Reason {
	case lockv1.EndReason_END_REASON_BUSY:
		s.fail(a, e, out)
	case lockv1.EndReason_END_REASON_WAIT_OVER:
		if a.req.Wait > MaxWait {
			s.again(a, false, 0, now, out)
			return
		}
		s.fail(a, e, out)
	case lockv1.EndReason_END_REASON_REFUSED:
		if d, ok := s.retryAfter(e.Failure, a.tries); ok {
			out.Results = append(out.Results, Result{ID: a.id, Kind: ResultRetrying, Failure: e.Failure})
			s.again(a, unknown(e.Failure), d, now, out)
			return
		}
		if a.doubt || unknown(e.Failure) {
			out.Results = append(out.Results, failed(a, e))
			s.abandon(a, out)
			return
		}
		s.fail(a, e, out)
	default:
		s.again(a, false, s.soon(a.tries), now, out)
	}
}

func (s *Session) fail(a *acquire, e *lockv1.EndedEvent, out *Output) {
	out.Results = append(out.Results, failed(a, e))
	s.forget(a)
}

// unknown: what was refused is a repetition by the gateway; its first sending
// may have been applied.
func unknown(f *lockv1.Failure) bool { return codes.Code(f.GetCode()) == codes.Unavailable }

func failed(a *acquire, e *lockv1.EndedEvent) Result {
	return Result{ID: a.id, Kind: ResultFailed, Reason: e.Reason, Holders: e.Holders, Failure: e.Failure}
}

func (s *Session) cancelled(c *lockv1.CancelledEvent, now Time) {
	a := s.bySeq[c.Seq]
	if a == nil || a.phase != phaseCancelling {
		return
	}
	if c.Failure != nil {
		if d, ok := s.retryAfter(c.Failure, a.tries); ok {
			a.tries++
			s.due.set(a, now+d)
			return
		}
	}
	s.forget(a)
}

func (s *Session) released(r *lockv1.ReleasedEvent, now Time, out *Output) {
	a := s.bySeq[r.Seq]
	if a == nil || a.phase != phaseReleasing {
		return
	}
	f := r.Failure
	if f != nil {
		if d, ok := s.retryAfter(f, a.tries); ok {
			a.tries++
			a.resent = true
			s.due.set(a, now+d)
			return
		}
		if a.resent {
			f = nil // its first sending may have done it, and it was protected until then
		}
	}
	if a.id != 0 {
		out.Results = append(out.Results, Result{ID: a.id, Kind: ResultReleased, Token: a.token, Failure: f})
	}
	s.forget(a)
}
