package worker

import (
	"testing"

	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
)

// TestAckAfterHandover (W6): a leader whose transfer gets stuck acknowledges no
// renewal that a successor, which takes the handover for the last word, would
// not honour.
func TestAckAfterHandover(t *testing.T) {
	s := newSim(t, 21, 3, 1)
	n := s.waitLeader(1)
	acks := s.watch()
	c := s.client(1, 5_000)
	c.mustAcquire(s.nameIn(1, 1))
	c.renew()
	s.run(4 * second)
	to := s.nodes[int(n.id)%3]
	n.in.Transfers = append(n.in.Transfers, Transfer{ID: 1, Shard: 1, To: to.id})
	// The handover gets to everybody, raft's own transfer to nobody.
	s.until(second, "the handover", func() bool { return n.w.byShard[1].move.phase == moveSent })
	s.net = nil
	var sent Time
	num := c.renew(n)
	sent = s.now
	s.run(300 * milli)
	acked := acks.covered[c.stream] == num
	n.crash()
	s.until(5*second, "a new leader", func() bool { return s.leader(1) != nil })
	if l := s.leader(1).w.byShard[1]; l.lastHandover.index != l.firstOwn-1 {
		t.Fatalf("the handover at %d does not directly precede the new leader's first entry %d", l.lastHandover.index, l.firstOwn)
	}
	for c.live() && s.now-sent < 5*second {
		s.run(10 * milli)
	}
	if lived := s.now - sent; acked && lived < 5*second {
		t.Fatalf("a renewal was acknowledged, and the session expired %d ms after it was sent, TTL 5000", lived/milli)
	}
	if c.live() {
		t.Fatal("the handed-over time was not used")
	}
}

// TestOldHandover (W7): a handover that was followed by other entries says
// nothing to later leaders.
func TestOldHandover(t *testing.T) {
	s := newSim(t, 22, 3, 1)
	n := s.waitLeader(1)
	acks := s.watch()
	c := s.client(1, 5_000)
	c.mustAcquire(s.nameIn(1, 1))
	s.run(4 * second)
	to := s.nodes[int(n.id)%3]
	n.in.Transfers = append(n.in.Transfers, Transfer{ID: 1, Shard: 1, To: to.id})
	s.until(second, "the transfer", func() bool { return s.transfers[1].Leader == to.id })
	s.run(100 * milli)
	num := c.renew()
	sent := s.now
	s.until(second, "the acknowledgement", func() bool { return acks.covered[c.stream] == num })
	to.crash()
	s.waitLeader(1)
	s.run(sent + 4900*milli - s.now)
	if !c.live() {
		t.Fatal("the session was expired by a handover that was out of date")
	}
}

// TestStallMovesDeadlines: what could not be heard while the node stood still
// does not count as silence.
func TestStallMovesDeadlines(t *testing.T) {
	s := newSim(t, 23, 1, 1) // one replica: nobody takes its office meanwhile
	n := s.waitLeader(1)
	c := s.client(1, 1_000)
	c.renew()
	s.run(300 * milli)
	n.pause()
	s.run(900 * milli)
	n.resume()
	s.run(500 * milli)
	if !c.live() {
		t.Fatal("expired at once after a stall of the node")
	}
	s.run(800 * milli)
	if c.live() {
		t.Fatal("not expired, long after the stall")
	}
}

// TestExpireAgain: an expiry that had no effect, because the registration's
// epoch moved while it was on its way, is decided anew.
func TestExpireAgain(t *testing.T) {
	s := newSim(t, 24, 3, 1)
	n := s.waitLeader(1)
	acks := s.watch()
	c := s.client(1, 2_000)
	name := s.nameIn(1, 1)
	c.mustAcquire(name)
	c.renew()
	s.run(100 * milli)
	sent := s.now - 100*milli
	for _, n := range s.nodes {
		n.syncTime = 50 * milli
	}
	s.run(sent + 1980*milli - s.now)
	s.send(n, 99, 1, &nodev1.Request{Op: &nodev1.Request_ForceRelease{ForceRelease: &nodev1.ForceRelease{Name: name, By: "op", Reason: "test"}}})
	s.run(50 * milli)
	if !c.live() {
		t.Fatal("expired too early for this test")
	}
	s.until(500*milli, "the expiry", func() bool { return !c.live() })
	if acks.lost[c.stream] != 1 {
		t.Errorf("the session heard of %d losses, want 1", acks.lost[c.stream])
	}
}

// TestWaitersTold: waiters of a leader that ends its office are told to ask
// again, also when the same node leads again later.
func TestWaitersTold(t *testing.T) {
	s := newSim(t, 25, 3, 1)
	n := s.waitLeader(1)
	a, b := s.client(1, 60_000), s.client(1, 60_000)
	name := s.nameIn(1, 1)
	a.mustAcquire(name)
	id := s.send(n, b.stream, 1, b.acquireReq(1, name, 60_000))
	s.run(50 * milli)
	n.in.Transfers = append(n.in.Transfers, Transfer{ID: 1, Shard: 1, To: s.nodes[int(n.id)%3].id})
	s.run(second)
	rs := s.responses[id]
	if len(rs) != 2 || rs[1].GetFailure().GetDetail().GetReason() != ReasonOutcomeUnknown {
		t.Fatalf("the waiter was told %v", rs)
	}
}

// TestNewAttachment: once a newer stream of the session is in force, renewals
// of the older one do nothing.
func TestNewAttachment(t *testing.T) {
	s := newSim(t, 26, 3, 1)
	s.waitLeader(1)
	acks := s.watch()
	c := s.client(1, 2_000)
	if r := s.do(1, 77, &nodev1.Request{Op: &nodev1.Request_Attach{Attach: &nodev1.Attach{Registration: c.reg, Attachment: 2}}}); r.GetDone() == nil {
		t.Fatalf("attach: %v", r)
	}
	for range 30 {
		c.renew()
		s.run(100 * milli)
	}
	if acks.covered[c.stream] != 0 || c.live() {
		t.Fatal("an older stream kept the session alive")
	}
}

// TestStaleReadAfterPause (T11): a leader that stood still while another one
// was elected answers no read from its old state.
func TestStaleReadAfterPause(t *testing.T) {
	for seed := range uint64(8) {
		s := newSim(t, seed, 3, 1)
		n := s.waitLeader(1)
		c := s.client(1, 60_000)
		name := s.nameIn(1, 1)
		token := c.mustAcquire(name)
		read := func() uint64 {
			return s.send(n, 9, 1, &nodev1.Request{Op: &nodev1.Request_CheckToken{CheckToken: &nodev1.CheckToken{Name: name, Token: token}}})
		}
		before := read()
		n.pause()
		s.until(10*second, "another leader", func() bool { return s.leader(1) != nil })
		if r := c.release(1, name, token); r.GetDone() == nil {
			t.Fatalf("release: %v", r)
		}
		n.resume()
		after := read()
		s.run(3 * second)
		for _, id := range []uint64{before, after} {
			for _, r := range s.responses[id] {
				if r.GetCheckToken().GetCurrent() {
					t.Fatalf("seed %d: a read said that a released token is current", seed)
				}
			}
			if len(s.responses[id]) != 1 {
				t.Fatalf("seed %d: read %d has %d answers", seed, id, len(s.responses[id]))
			}
		}
	}
}

// TestRestoredFileSurvivesCrash (W10): a crash right after a snapshot was
// written, before its base is durable, finds the former file.
func TestRestoredFileSurvivesCrash(t *testing.T) {
	s := newSim(t, 27, 3, 1, func(s *sim) { s.policy = SnapshotPolicy{Entries: 20, KeepEntries: 4} })
	n := s.waitLeader(1)
	c := s.client(1, 600_000)
	for i := range 6 {
		base := n.w.byShard[1].log.base.Index
		n.syncTime = milli
		for k := 0; n.w.byShard[1].log.base.Index == base; k++ {
			c.mustAcquire(s.nameIn(1, 100*i+k))
			if k > 10 {
				n.syncTime = 30 * milli
			}
		}
		n.crash()
		n.start() // fails the test if the file is gone
		n = s.waitLeader(1)
	}
	s.checkReplicas()
}
