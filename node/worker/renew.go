package worker

import (
	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
)

// renewals takes a batch of heartbeats. Each session is looked up in every
// shard of this worker where it is registered: led here, the deadline moves and
// an acknowledgement is queued for the next confirmation round; else the caller
// is told who leads.
func (w *Worker) renewals(b *Renewals) {
	for _, n := range b.Batch.GetRenewals() {
		if len(n.SessionId) != len(shard.SessionID{}) {
			continue
		}
		session := shard.SessionID(n.SessionId)
		var elsewhere []*nodev1.LeaderHint
		for _, r := range w.sessions[session] {
			v, ok := r.m.Lookup(session)
			switch {
			case !ok:
			case !r.leading:
				if h := r.hint(); h.Node != 0 && h.Node != uint64(w.cfg.Node) {
					elsewhere = append(elsewhere, h)
				}
			default:
				r.renewal(b.Stream, n, &v)
			}
		}
		if elsewhere != nil {
			w.out.Replies = append(w.out.Replies, Reply{Stream: b.Stream, Renewed: &nodev1.Renewed{
				SessionId: n.SessionId, Number: n.Number, Attachment: n.Attachment, Elsewhere: elsewhere}})
		}
	}
}

func (r *replica) renewal(s StreamID, n *nodev1.Renew, v *shard.RegistrationView) {
	if superseded(n, v) || r.reads.size() >= r.w.cfg.Limits.Reads {
		return // silence never renews
	}
	r.speaks(v.Registration, s)
	it := readItem{stream: s, renew: n, session: v.Session, reg: v.Registration}
	if mutantEarlyAck && !r.ready {
		r.acknowledge(&it)
		return
	}
	if !r.ready || r.blockAcks != 0 {
		r.reads.held = append(r.reads.held, it)
		return
	}
	r.leases.Renew(v.Registration, int64(r.w.now))
	if mutantUnconfirmedAck {
		r.acknowledge(&it)
		return
	}
	r.reads.next = append(r.reads.next, it)
	r.w.mark(r)
}

// superseded: the session was resumed by a newer stream than the one that this
// renewal came by. Unary callers (0) have no attachment.
func superseded(n *nodev1.Renew, v *shard.RegistrationView) bool {
	return n.Attachment != 0 && n.Attachment < v.Attachment
}

// releaseHeld lets the renewals in that had to wait. They count from now: the
// callers' own leases count from when they sent.
func (r *replica) releaseHeld() {
	held := r.reads.held
	r.reads.held = nil
	for _, it := range held {
		r.leases.Renew(it.reg, int64(r.w.now))
		r.reads.next = append(r.reads.next, it)
	}
}

// acknowledge tells that a renewal took effect. The order that makes it true
// (W4): the first entry of this term applied; the deadline moved; a
// confirmation begun after that succeeded and its index has applied; the office
// has not changed since, or the round would be gone; the registration is live
// and no expiry of it is proposed; no handover is out.
func (r *replica) acknowledge(it *readItem) {
	if r.blockAcks != 0 {
		r.reads.held = append(r.reads.held, *it)
		return
	}
	v, ok := r.m.Get(it.reg)
	if !ok || superseded(it.renew, &v) || !(mutantEarlyAck && r.leases == nil) && r.leases.Expiring(it.reg) {
		return
	}
	var since uint64
	for _, k := range it.renew.Known {
		if k.Shard == uint32(r.shard) && k.Registration == uint64(it.reg) {
			since = k.Epoch
		}
	}
	epoch, events, dropped, ok := r.m.Events(it.reg, since)
	if !ok {
		return
	}
	r.w.counters.Renewals++
	c := &lockv1.Covered{Shard: uint32(r.shard), Registration: uint64(it.reg), Epoch: epoch, EventsDropped: dropped}
	for _, e := range events {
		c.Events = append(c.Events, &lockv1.EpochEvent{Epoch: e.Epoch, Kind: &lockv1.EpochEvent_Lost{Lost: &lockv1.LostHold{
			Name: e.Name, Token: uint64(e.Token), Seq: e.Acquire.Seq, Reason: lostReason(e.Reason)}}})
	}
	r.w.out.Replies = append(r.w.out.Replies, Reply{Stream: it.stream, Renewed: &nodev1.Renewed{
		SessionId: it.renew.SessionId, Number: it.renew.Number, Attachment: it.renew.Attachment, Covered: []*lockv1.Covered{c}}})
}
