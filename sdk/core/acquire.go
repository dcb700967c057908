package core

import (
	"slices"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
)

// Acquire begins an acquire for a caller.
func (s *Session) Acquire(now Time, req Request, out *Output) ID {
	s.tick(now, out)
	s.lastID++
	id := s.lastID
	if s.over || s.closing {
		out.Results = append(out.Results, Result{ID: id, Kind: ResultFailed, Failure: out.Failure,
			Reason: lockv1.EndReason_END_REASON_REGISTRATION_ENDED})
		s.finish(now, out)
		return id
	}
	a := &acquire{id: id, req: req, idx: -1}
	s.byID[id] = a
	s.enter(a)
	s.ask(a, now, out)
	s.finish(now, out)
	return id
}

// enter gives an acquire its place in the table under a new seq (K5).
func (s *Session) enter(a *acquire) {
	a.seq = s.nextSeq
	s.nextSeq++
	s.bySeq[a.seq] = a
}

// forget takes an acquire out of the table (K4).
func (s *Session) forget(a *acquire) {
	s.due.set(a, 0)
	if a.phase == phaseBacked {
		s.backed = slices.DeleteFunc(s.backed, func(b *acquire) bool { return b == a })
	}
	delete(s.bySeq, a.seq)
	if a.id != 0 {
		delete(s.byID, a.id)
	}
	for s.doneBelow < s.nextSeq && s.bySeq[s.doneBelow] == nil {
		s.doneBelow++
	}
}

// ask sends the acquire; without a stream it waits for one.
func (s *Session) ask(a *acquire, now Time, out *Output) {
	if !s.ready() {
		return
	}
	if a.firstSent == 0 {
		a.firstSent = max(now, 1)
	}
	if a.phase == phaseQueued {
		a.phase = phaseAsked
	} else {
		a.doubt = true
	}
	op := &lockv1.AcquireOp{Seq: a.seq, Name: a.req.Name, Mode: a.req.Mode}
	if a.req.Mode == lockv1.Mode_MODE_COUNTED {
		op.Permits, op.Limit = &a.req.Permits, &a.req.Limit
	}
	if a.req.Wait > 0 {
		op.WaitMs = new(uint64((min(a.req.Wait, MaxWait) + time.Millisecond - 1) / time.Millisecond))
	}
	if a.req.LockDelay > 0 {
		op.LockDelayMs = new(uint64((a.req.LockDelay + time.Millisecond - 1) / time.Millisecond))
	}
	s.emit(out, &lockv1.SessionOp{Op: &lockv1.SessionOp_Acquire{Acquire: op}})
}

// again asks anew under a new seq, after a delay (0: at once). The old seq is
// over already, or is handed to a canceller of its own: also when it was asked
// for more than once, since one of the askings may still be on its way and act
// under a registration that does not exist yet.
func (s *Session) again(a *acquire, cancelOld bool, delay time.Duration, now Time, out *Output) {
	if a.phase == phaseBacked {
		s.backed = slices.DeleteFunc(s.backed, func(b *acquire) bool { return b == a })
	}
	old := a.seq
	cancelOld = cancelOld || a.doubt
	s.due.set(a, 0)
	a.firstSent, a.own, a.token, a.reg, a.doubt = 0, 0, 0, Registration{}, false
	a.tries++
	delete(s.bySeq, old)
	s.enter(a)
	if cancelOld {
		c := &acquire{seq: old, req: a.req, phase: phaseCancelling, idx: -1}
		s.bySeq[old] = c
		s.emitCancel(c, out)
	}
	for s.doneBelow < s.nextSeq && s.bySeq[s.doneBelow] == nil {
		s.doneBelow++
	}
	if delay > 0 {
		a.phase = phasePaused
		s.due.set(a, now+delay)
		return
	}
	a.phase = phaseQueued
	s.ask(a, now, out)
}

// soon is the delay before asking anew after n attempts that the service
// ended: the first at once.
func (s *Session) soon(tries int) time.Duration {
	if tries == 0 {
		return 0
	}
	d := min(s.cfg.RetryBase<<min(tries, 16), s.cfg.RetryMax)
	return d/2 + s.jitter(d/2)
}

// Cancel: the caller gave up. Nothing may be held for it from now on.
func (s *Session) Cancel(now Time, id ID, out *Output) {
	s.tick(now, out)
	if a := s.byID[id]; a != nil && a.phase != phaseReleasing {
		s.abandon(a, out)
	}
	s.finish(now, out)
}

// abandon makes an acquire that has no caller any more hold nothing.
func (s *Session) abandon(a *acquire, out *Output) {
	delete(s.byID, a.id)
	a.id = 0
	switch a.phase {
	case phaseQueued, phasePaused:
		s.forget(a) // never sent under this seq
		return
	case phaseCancelling:
		return
	case phaseBacked:
		s.backed = slices.DeleteFunc(s.backed, func(b *acquire) bool { return b == a })
	}
	a.phase = phaseCancelling
	s.due.set(a, 0)
	s.emitCancel(a, out)
}

func (s *Session) emitCancel(a *acquire, out *Output) {
	if s.ready() {
		s.emit(out, &lockv1.SessionOp{Op: &lockv1.SessionOp_Cancel{Cancel: &lockv1.CancelOp{Seq: a.seq, Name: a.req.Name}}})
	}
}

// Release: the caller is done with its hold. Answered by ResultReleased, or by
// ResultLost from before. A release of what was lost here frees at once what
// the service may still have.
func (s *Session) Release(now Time, id ID, out *Output) {
	s.tick(now, out)
	if a := s.byID[id]; a != nil {
		switch a.phase {
		case phaseHeld:
			a.phase = phaseReleasing
			s.due.set(a, 0)
			s.emitRelease(a, out)
		case phaseLingering:
			s.abandon(a, out)
		}
	}
	s.finish(now, out)
}

func (s *Session) emitRelease(a *acquire, out *Output) {
	if s.ready() {
		s.emit(out, &lockv1.SessionOp{Op: &lockv1.SessionOp_Release{Release: &lockv1.ReleaseOp{Seq: a.seq, Name: a.req.Name, Token: a.token}}})
	}
}

// ConcludeLost: the caller compared the clock before the timer came.
func (s *Session) ConcludeLost(now Time, id ID, why LostReason, out *Output) {
	s.tick(now, out)
	if a := s.byID[id]; a != nil && a.phase == phaseHeld {
		s.lostHere(a, why, now, out)
	}
	s.finish(now, out)
}

// lostHere: by the clock alone. The service may still honour the hold, so it
// must be cancelled (K3); with a lock-delay only after that delay.
func (s *Session) lostHere(a *acquire, why LostReason, now Time, out *Output) {
	out.Results = append(out.Results, Result{ID: a.id, Kind: ResultLost, Token: a.token, Registration: a.reg, Lost: why})
	if a.req.LockDelay > 0 {
		a.phase = phaseLingering
		s.due.set(a, now+a.req.LockDelay)
		return
	}
	s.abandon(a, out)
}

// lostThere: the service says that the acquire's hold is over.
func (s *Session) lostThere(a *acquire, why LostReason, now Time, out *Output) {
	switch a.phase {
	case phaseHeld:
		out.Results = append(out.Results, Result{ID: a.id, Kind: ResultLost, Token: a.token, Registration: a.reg, Lost: why})
		s.forget(a)
	case phaseReleasing:
		// It ended before the release arrived, or because of it.
		out.Results = append(out.Results, Result{ID: a.id, Kind: ResultReleased})
		s.forget(a)
	case phaseLingering, phaseCancelling:
		s.forget(a)
	case phaseAsked, phaseWaiting, phaseBacked:
		// The grant itself is still under way, or was held back: it is over.
		s.again(a, false, s.soon(a.tries), now, out)
	}
}

// lease is how long the service honours a hold, for all we know; deadline is
// how long the caller may believe it.
func (s *Session) lease(a *acquire) Time {
	lease := a.own
	if r := s.shards[a.reg.Shard]; r != nil && r.number == a.reg.Number && r.isCov {
		lease = max(lease, r.covered+s.ttl)
	}
	return lease
}

func (s *Session) deadline(a *acquire) Time {
	d := s.lease(a) - s.Margin()
	if a.capAt != 0 {
		d = min(d, a.capAt)
	}
	return d
}

// watch plans the next look at a hold: to call it suspect, or lost.
func (s *Session) watch(a *acquire) {
	d := s.deadline(a)
	if suspectAt := s.lease(a) - s.ttl/2; !a.suspect && suspectAt < d {
		d = suspectAt
	}
	s.due.set(a, max(d, 1))
}

// fire serves an acquire that is due.
func (s *Session) fire(a *acquire, now Time, out *Output) {
	switch a.phase {
	case phasePaused:
		a.phase = phaseQueued
		s.ask(a, now, out)
	case phaseBacked:
		// A whole TTL without a cover: give it back, and ask anew.
		s.again(a, true, s.soon(a.tries), now, out)
	case phaseHeld:
		d := s.deadline(a)
		switch {
		case now >= d && a.capAt != 0 && now >= a.capAt:
			s.lostHere(a, LostMaxHold, now, out)
		case now >= d:
			s.lostHere(a, LostDeadline, now, out)
		default:
			late := now >= s.lease(a)-s.ttl/2
			if late && !a.suspect {
				out.Results = append(out.Results, Result{ID: a.id, Kind: ResultSuspect, Deadline: d})
			}
			a.suspect = late
			s.watch(a)
		}
	case phaseLingering:
		s.abandon(a, out)
	case phaseCancelling:
		s.emitCancel(a, out)
	case phaseReleasing:
		s.emitRelease(a, out)
	}
}
