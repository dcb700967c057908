package core

import (
	"slices"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
)

// renewal is the newest heartbeat of a session and how far it got.
type renewal struct {
	number  uint64
	arrived Time
	known   []*lockv1.KnownEpoch
	listed  bool // in Core.renewList
	// everywhere: to every node, since unary calls may have registered the
	// session through other gateways.
	everywhere bool
	// sent remembers when recent numbers were forwarded first (unary).
	sent [8]struct {
		number uint64
		at     Time
	}
	toNodes []uint64 // everywhere: nodes that got this number
}

// renewOp takes a client's heartbeat.
func (c *Core) renewOp(st *stream, r *lockv1.RenewOp, now Time, out *Output) {
	s := st.sess
	s.renew.number, s.renew.arrived, s.renew.known = r.Number, now, c.knownOnce(r.Known)
	if st.state == streamLive && len(s.regs) == 0 && st.loc == nil {
		// Registered nowhere, so there is no lease to renew.
		st.emit(c, now, out, &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Renewed{
			Renewed: &lockv1.RenewedEvent{Number: r.Number}}})
		return
	}
	c.wantRenewal(s, now)
}

// knownOnce bounds what a client claims to know: an entry per shard of the map.
func (c *Core) knownOnce(known []*lockv1.KnownEpoch) []*lockv1.KnownEpoch {
	if len(known) <= 1 {
		return known
	}
	seen := make(map[uint32]bool, len(c.shards))
	return slices.DeleteFunc(known, func(k *lockv1.KnownEpoch) bool {
		if seen[k.Shard] || c.shards[shardID(k.Shard)] == nil {
			return true
		}
		seen[k.Shard] = true
		return false
	})
}

// wantRenewal puts the session's newest heartbeat on the list to forward.
func (c *Core) wantRenewal(s *session, now Time) {
	if s.renew.number == 0 {
		return
	}
	if !s.renew.listed {
		s.renew.listed = true
		c.renewList = append(c.renewList, s)
	}
	c.timers.setEarlier(&c.renewTimer, now+gatherRenewals)
}

func (c *Core) dropRenewal(s *session) {
	s.renew.number = 0 // forwardRenewals takes it off the list
}

// renewalsMoved: some shard's leader changed; uncovered renewals go there.
func (c *Core) renewalsMoved(now Time) {
	if len(c.renewList) > 0 {
		c.timers.setEarlier(&c.renewTimer, now+gatherRenewals)
	}
}

// forwardRenewals sends what is to be sent and keeps on the list what is not
// covered yet and not too old (G6).
func (c *Core) forwardRenewals(now Time, out *Output) {
	list := c.renewList
	c.renewList = c.renewList[:0]
	for _, s := range list {
		if s.renew.number != 0 && now-s.renew.arrived <= s.ttl/3 && c.forward(s, now, out) {
			c.renewList = append(c.renewList, s)
			continue
		}
		s.renew.listed = false
		if s.stream != nil {
			c.settle(s.stream)
		}
	}
	clear(list[len(c.renewList):])
	if len(c.renewList) > 0 {
		c.timers.setEarlier(&c.renewTimer, now+2*gatherRenewals)
	}
}

// forward sends the session's heartbeat to each node that leads a shard where
// it is registered and not covered yet. It reports whether any is left.
func (c *Core) forward(s *session, now Time, out *Output) bool {
	if s.renew.everywhere {
		return c.forwardEverywhere(s, now, out)
	}
	left := false
	var to []uint64
	for _, g := range s.regs {
		if g.covered >= s.renew.number || g.state == regClosing {
			continue
		}
		left = true
		if g.state != regLive {
			continue
		}
		n := c.nodes[g.shard.leader]
		if n == nil || !n.up || (g.sentNum == s.renew.number && g.sentNode == n.id && now-g.sentAt < renewRetry) {
			continue
		}
		g.sentNum, g.sentNode, g.sentAt = s.renew.number, n.id, now
		if !slices.Contains(to, n.id) {
			to = append(to, n.id)
		}
	}
	for _, id := range to {
		c.sendRenew(s, c.nodes[id], out)
	}
	return left
}

func (c *Core) sendRenew(s *session, n *node, out *Output) {
	o := c.nodeOut(n, out)
	o.Renew = append(o.Renew, &nodev1.Renew{SessionId: s.id[:], Number: s.renew.number,
		Attachment: s.attachment, Known: s.renew.known})
}

// forwardEverywhere sends a unary session's heartbeat to every node once.
func (c *Core) forwardEverywhere(s *session, now Time, out *Output) bool {
	for _, n := range c.nodeList {
		if n.up && !slices.Contains(s.renew.toNodes, n.id) {
			s.renew.toNodes = append(s.renew.toNodes, n.id)
			c.sendRenew(s, n, out)
		}
	}
	// Shards whose answer said "elsewhere", or none came: ask again.
	if now-s.renew.sent[s.renew.number%8].at >= renewRetry {
		for _, g := range s.regs {
			n := c.nodes[g.shard.leader]
			if g.state == regLive && g.covered < s.renew.number && n != nil && n.up && now-g.sentAt >= renewRetry {
				g.sentAt = now
				c.sendRenew(s, n, out)
			}
		}
	}
	for _, g := range s.regs {
		if g.state == regLive && g.covered < s.renew.number {
			return true
		}
	}
	return false
}

// renewUnary begins a heartbeat of a session without a stream.
func (c *Core) renewUnary(s *session, now Time) {
	r := &s.renew
	c.lastRenew++
	r.number, r.arrived, r.everywhere, r.toNodes = c.lastRenew, now, true, r.toNodes[:0]
	r.sent[r.number%8].number, r.sent[r.number%8].at = r.number, now
	r.known = nil
	for _, g := range s.regs {
		if g.num != 0 {
			r.known = append(r.known, &lockv1.KnownEpoch{Shard: uint32(g.shard.id), Registration: g.num, Epoch: g.epoch})
		}
	}
	c.wantRenewal(s, now)
}

// sentAt returns when a number of a unary session was begun.
func (r *renewal) sentAt(number uint64) (Time, bool) {
	e := r.sent[number%8]
	return e.at, e.number == number && number != 0
}

// renewed takes a node's acknowledgement.
func (c *Core) renewed(n *node, r *nodev1.Renewed, now Time, out *Output) {
	for _, h := range r.Elsewhere {
		c.learn(h, now, out)
	}
	id, ok := sessionID(r.SessionId)
	if !ok {
		return
	}
	if r.Attachment == 0 {
		if s := c.unary[id]; s != nil {
			c.renewedUnary(s, r, now, out)
		}
		return
	}
	st := c.bySess[id]
	if st == nil || st.sess.attachment != r.Attachment {
		return
	}
	covered := r.Covered[:0]
	for _, cv := range r.Covered {
		g := st.sess.find(shardID(cv.Shard))
		if g == nil || g.num != cv.Registration || g.state != regLive {
			continue // before its inventory the client can credit nothing
		}
		g.covered = max(g.covered, r.Number)
		covered = append(covered, cv)
	}
	if len(covered) > 0 {
		st.emit(c, now, out, &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Renewed{
			Renewed: &lockv1.RenewedEvent{Number: r.Number, Covered: covered}}})
	}
	c.reask(st.sess, n, r, now)
}

// reask: shards that this node does not lead are asked for at once where they
// are, when that is another node.
func (c *Core) reask(s *session, n *node, r *nodev1.Renewed, now Time) {
	if len(r.Elsewhere) == 0 || r.Number != s.renew.number {
		return
	}
	for _, h := range r.Elsewhere {
		if g := s.find(shardID(h.Shard)); g != nil && g.sentNode == n.id && g.covered < r.Number && g.shard.leader != n.id {
			g.sentNum = 0
			c.wantRenewal(s, now)
		}
	}
}

func (c *Core) renewedUnary(s *session, r *nodev1.Renewed, now Time, out *Output) {
	at, ok := s.renew.sentAt(r.Number)
	if !ok {
		return
	}
	for _, cv := range r.Covered {
		sh := c.shards[shardID(cv.Shard)]
		if sh == nil {
			continue
		}
		g := s.at(sh)
		if g.num != 0 && cv.Registration > g.num {
			// Ours ended, and another gateway registered the session anew.
			c.endRegistration(g, lockv1.LostReason_LOST_REASON_UNSPECIFIED, now, out)
			g = s.at(sh)
		}
		s.met(g, cv.Registration)
		if g.num != cv.Registration {
			continue
		}
		for _, e := range cv.Events {
			if l := e.GetLost(); l != nil && e.Epoch > g.epoch {
				s.lost = append(s.lost, l)
			}
		}
		g.epoch = max(g.epoch, cv.Epoch)
		if r.Number >= g.covered {
			g.covered, g.coveredAt = r.Number, at
		}
	}
	if len(s.lost) > maxLostKept {
		s.lost = slices.Delete(s.lost, 0, len(s.lost)-maxLostKept)
	}
	c.checkSessionCalls(s, now, out)
}

// maxLostKept bounds the losses kept for the next KeepAlive of a unary session.
const maxLostKept = 1024
