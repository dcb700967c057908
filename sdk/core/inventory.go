package core

import (
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
)

func (s *Session) planInventory(now Time) {
	every := max(inventoryEvery, 6*s.ttl)
	s.inventoryAt = now + every - s.jitter(every/4)
}

// inventorySoon plans a comparison that is needed; not more often than once in
// inventoryGap.
func (s *Session) inventorySoon(now Time) {
	s.inventoryAt = earlier(s.inventoryAt, max(now, s.inventoryOn+inventoryGap, 1))
}

// suspectGhost: the service may hold something that nobody here has.
func (s *Session) suspectGhost(now Time) { s.inventorySoon(now) }

func (s *Session) askInventory(now Time, out *Output) {
	s.planInventory(now)
	s.inventoryOn = now
	asked := false
	for _, id := range s.shardOrder {
		r := s.shards[id]
		if r.number == 0 {
			continue
		}
		asked = true
		if !r.pending {
			r.asked, r.pending = now, true
		}
	}
	if asked {
		s.emit(out, &lockv1.SessionOp{Op: &lockv1.SessionOp_Inventory{Inventory: &lockv1.InventoryOp{}}})
	}
}

// inventory compares. What the service lists and nobody here has is cancelled;
// what was held here before the list was asked for and is not in it, is lost;
// a wait that is missing is asked for again under its seq, which is harmless.
func (s *Session) inventory(e *lockv1.InventoryEvent, now Time, out *Output) {
	r := s.at(e.Shard, e.Registration, now, out)
	if r == nil {
		return
	}
	asked := s.cur.begunAt
	if r.pending {
		asked = r.asked
	}
	r.pending, r.needed = false, false
	r.known = max(r.known, e.Epoch)

	reg := Registration{e.Shard, e.Registration}
	listed := make(map[uint64]uint64, len(e.Holds)+len(e.Waits)) // seq to token; 0: waits
	for _, h := range e.Holds {
		listed[h.Seq] = h.Token
	}
	for _, w := range e.Waits {
		listed[w.Seq] = 0
	}
	for _, a := range s.inOrder(func(a *acquire) bool { return a.reg == reg }) {
		token, ok := listed[a.seq]
		switch {
		case s.bySeq[a.seq] != a:
		case (a.phase == phaseHeld || a.phase == phaseBacked || a.phase == phaseLingering) && (!ok || token != a.token) && a.at < asked:
			s.lostThere(a, LostExpired, now, out)
		case a.phase == phaseWaiting && !ok && a.at < asked:
			s.ask(a, now, out)
		}
	}
	for _, h := range e.Holds {
		switch a := s.bySeq[h.Seq]; {
		case h.Seq == 0 || h.Seq >= s.nextSeq:
			// Of unary calls, or not ours to judge.
		case a == nil:
			s.ghost(h.Seq, h.Name, h.Token, out)
		case a.phase == phaseAsked || a.phase == phaseWaiting:
			// The grant was missed. Its lease needs a cover.
			s.granted(&lockv1.GrantedEvent{Seq: h.Seq, Token: h.Token, Shard: e.Shard, Registration: e.Registration}, now, out)
		}
	}
	for _, w := range e.Waits {
		if w.Seq != 0 && w.Seq < s.nextSeq && s.bySeq[w.Seq] == nil {
			s.ghost(w.Seq, w.Name, 0, out)
		}
	}
	if r.isCov {
		s.credit(e.Shard, r, r.covered, now, out)
	}
}

// ghost gives back what the service holds (token) or queues for an acquire
// that is over here.
func (s *Session) ghost(seq uint64, name string, token uint64, out *Output) {
	a := &acquire{seq: seq, req: Request{Name: name}, token: token, idx: -1, phase: phaseCancelling}
	s.bySeq[seq] = a
	if token != 0 {
		a.phase, a.resent = phaseReleasing, true
		s.emitRelease(a, out)
		return
	}
	s.emitCancel(a, out)
}

// Stale reports that no renewal sent within d was acknowledged.
func (s *Session) Stale(now Time, d time.Duration) bool {
	return s.cur == nil || !s.acked || now-s.ackedAt > d
}
