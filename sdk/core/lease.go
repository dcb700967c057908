package core

import (
	"slices"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"google.golang.org/grpc/codes"
)

// at returns what is known of a registration; nil if it is over. A number
// higher than the known one ends the known one: a session has one live
// registration per shard.
func (s *Session) at(shard uint32, number uint64, now Time, out *Output) *registration {
	r := s.shards[shard]
	if r == nil {
		r = &registration{}
		s.shards[shard] = r
		i, _ := slices.BinarySearch(s.shardOrder, shard)
		s.shardOrder = slices.Insert(s.shardOrder, i, shard)
	}
	if number == 0 || number <= r.ended || number < r.number {
		return nil
	}
	if number > r.number {
		if r.number != 0 {
			s.registrationEnded(shard, r.number, LostExpired, now, out)
		}
		*r = registration{number: number, ended: r.ended}
	}
	return r
}

// registrationEnded: all its holds and waits are gone.
func (s *Session) registrationEnded(shard uint32, number uint64, why LostReason, now Time, out *Output) {
	r := s.at(shard, number, now, out)
	if r == nil {
		return
	}
	if why == LostRevoked {
		// An operator ended the session, not its presence in one shard: going on
		// elsewhere, or anew, would undo that.
		s.end(why, &lockv1.Failure{Code: int32(codes.Aborted), Message: "an operator revoked the session",
			Detail: &lockv1.ErrorDetail{Reason: "SESSION_REVOKED"}}, out)
		return
	}
	reg := Registration{shard, number}
	*r = registration{ended: number}
	out.Ended = append(out.Ended, reg)
	for _, a := range s.inOrder(func(a *acquire) bool { return a.reg == reg }) {
		if s.bySeq[a.seq] == a {
			s.lostThere(a, why, now, out)
		}
	}
}

// lostHold: one hold ended otherwise than by our own act.
func (s *Session) lostHold(shard uint32, number uint64, h *lockv1.LostHold, now Time, out *Output) {
	if h == nil {
		return
	}
	a := s.bySeq[h.Seq]
	if a == nil && h.Seq == 0 {
		for _, b := range s.inOrder(func(b *acquire) bool { return b.token == h.Token && b.req.Name == h.Name }) {
			a = b
		}
	}
	if a == nil || a.req.Name != h.Name || a.token != 0 && a.token != h.Token {
		return
	}
	if a.phase == phaseReleasing || a.phase == phaseCancelling {
		// Its answer is on the way; a release that came too late says so.
		return
	}
	s.lostThere(a, lostReason(h.Reason), now, out)
}

func (s *Session) lastRenewAt() Time { return s.renewSent[s.lastRenew%rememberedRenewals] }

// maxInterval bounds the silence on a stream: gateways drop one that said
// nothing for 30 s, and a long TTL is no reason to notice a dead gateway late.
const maxInterval = 10 * time.Second

// interval is the time between heartbeats, and how long one may go unanswered.
func (s *Session) interval() time.Duration { return min(s.ttl/3, maxInterval) }

// renew sends a heartbeat; leases count from now (K1).
func (s *Session) renew(now Time, out *Output) {
	s.lastRenew++
	s.renewSent[s.lastRenew%rememberedRenewals] = now
	s.renewAt = now + s.interval()
	op := &lockv1.RenewOp{Number: s.lastRenew}
	for _, id := range s.shardOrder {
		if r := s.shards[id]; r.number != 0 && r.known != 0 {
			op.Known = append(op.Known, &lockv1.KnownEpoch{Shard: id, Registration: r.number, Epoch: r.known})
		}
	}
	s.emit(out, &lockv1.SessionOp{Op: &lockv1.SessionOp_Renew{Renew: op}})
}

// renewed takes an acknowledgement: what it covers, and nothing else, has a
// TTL from the sending of that renewal.
func (s *Session) renewed(e *lockv1.RenewedEvent, now Time, out *Output) {
	if e.Number == 0 || e.Number > s.lastRenew || s.lastRenew-e.Number >= rememberedRenewals {
		return
	}
	sent := s.renewSent[e.Number%rememberedRenewals]
	if mutantLeaseFromAck {
		sent = now
	}
	s.cur.acked = max(s.cur.acked, e.Number)
	if !s.acked || sent > s.ackedAt {
		s.acked, s.ackedAt = true, sent
	}
	if mutantCreditBySilence {
		for _, id := range s.shardOrder {
			if r := s.shards[id]; r.number != 0 {
				s.credit(id, r, sent, now, out)
			}
		}
	}
	for _, c := range e.Covered {
		r := s.at(c.Shard, c.Registration, now, out)
		if r == nil {
			continue
		}
		for _, ev := range c.Events {
			if ev.Epoch > r.known {
				s.lostHold(c.Shard, c.Registration, ev.GetLost(), now, out)
			}
		}
		if c.EventsDropped && c.Epoch > r.known {
			r.needed = true
			s.inventorySoon(now)
			continue
		}
		r.known = max(r.known, c.Epoch)
		if !r.needed {
			s.credit(c.Shard, r, sent, now, out)
		} else {
			s.inventorySoon(now)
		}
	}
}

// credit moves the lease of every hold of a registration.
func (s *Session) credit(shard uint32, r *registration, sent Time, now Time, out *Output) {
	if !r.isCov || sent > r.covered {
		r.covered, r.isCov = sent, true
		out.Covers = append(out.Covers, Cover{Registration{shard, r.number}, sent + s.ttl - s.Margin()})
	}
	for _, a := range slices.Clone(s.backed) {
		if a.reg.Shard == shard {
			s.deliver(a, now, out)
		}
	}
}
