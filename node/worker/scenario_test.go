package worker

import (
	"testing"

	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
)

func TestElectionAndFirstGrant(t *testing.T) {
	for _, nodes := range []int{1, 3, 5} {
		s := newSim(t, 1, nodes, 2)
		for _, id := range s.shards {
			s.waitLeader(id)
			c := s.client(id, 10_000)
			name := s.nameIn(id, 1)
			resp := c.acquire(name, 0)
			g := resp.GetAcquire().GetGranted()
			if g == nil || g.Seq != 1 || g.Registration != c.reg || g.Shard != uint32(id) {
				t.Fatalf("%d nodes: %v", nodes, resp)
			}
			if g.LeaseMs > 10_000 || g.LeaseMs < 9_000 {
				t.Fatalf("lease of %d ms right after registering with a TTL of 10 s", g.LeaseMs)
			}
			d := s.do(id, 1, &nodev1.Request{Op: &nodev1.Request_Describe{Describe: &nodev1.Describe{Name: name}}})
			if hs := d.GetDescribe().GetHolders(); len(hs) != 1 || hs[0].Token != g.Token {
				t.Fatalf("describe: %v", d)
			}
			if r := c.release(1, name, g.Token); r.GetDone() == nil {
				t.Fatalf("release: %v", r)
			}
			c2 := s.client(id, 10_000)
			if tok := c2.mustAcquire(name); tok <= g.Token {
				t.Fatalf("token %d after %d", tok, g.Token)
			}
			// Busy.
			if e := c.acquire(name, 0).GetAcquire().GetEnded(); e == nil || len(e.Holders) != 1 {
				t.Fatal("a held lock must be refused with its holder")
			}
		}
		s.checkReplicas()
	}
}

// TestWaitAndGrant: a waiter is told WAITING, then GRANTED under the same id;
// a duplicate takes the answers over.
func TestWaitAndGrant(t *testing.T) {
	s := newSim(t, 2, 3, 1)
	n := s.waitLeader(1)
	a, b := s.client(1, 10_000), s.client(1, 10_000)
	name := s.nameIn(1, 1)
	token := a.mustAcquire(name)
	b.seq++
	first := s.send(n, b.stream, 1, b.acquireReq(b.seq, name, 60_000))
	s.run(50 * milli)
	second := s.send(n, b.stream, 1, b.acquireReq(b.seq, name, 60_000))
	s.run(50 * milli)
	for _, id := range []uint64{first, second} {
		if rs := s.responses[id]; len(rs) != 1 || rs[0].GetAcquire().GetWaiting() == nil {
			t.Fatalf("request %d: %v, want WAITING once", id, rs)
		}
	}
	a.release(1, name, token)
	s.run(50 * milli)
	if rs := s.responses[first]; len(rs) != 1 {
		t.Fatalf("the earlier request got %v", rs)
	}
	rs := s.responses[second]
	if len(rs) != 2 || rs[1].GetAcquire().GetGranted() == nil || rs[1].GetAcquire().GetGranted().Token <= token {
		t.Fatalf("the later request got %v, want WAITING and GRANTED", rs)
	}
}

func TestWaitLimit(t *testing.T) {
	s := newSim(t, 3, 3, 1)
	n := s.waitLeader(1)
	a, b := s.client(1, 60_000), s.client(1, 60_000)
	name := s.nameIn(1, 1)
	a.mustAcquire(name)
	at := s.now
	id := s.send(n, b.stream, 1, b.acquireReq(1, name, 1500))
	s.until(3*second, "the end of the wait", func() bool { return len(s.responses[id]) == 2 })
	if e := s.responses[id][1].GetAcquire().GetEnded(); e == nil || e.Reason.String() != "END_REASON_WAIT_OVER" || len(e.Holders) != 1 {
		t.Fatalf("%v", s.responses[id][1])
	}
	if took := s.now - at; took < 1500*milli || took > 1600*milli {
		t.Fatalf("a wait of 1500 ms took %d ms", took/milli)
	}
	// The same over a leader change in the middle of the wait.
	id = s.send(n, b.stream, 1, b.acquireReq(2, name, 4000))
	s.run(1000 * milli)
	n.crash()
	m := s.waitLeader(1)
	id = s.send(m, b.stream, 1, b.acquireReq(2, name, 4000))
	s.until(6*second, "the end of the wait", func() bool { return len(s.responses[id]) == 2 })
	if e := s.responses[id][1].GetAcquire().GetEnded(); e == nil || e.Reason.String() != "END_REASON_WAIT_OVER" {
		t.Fatalf("%v", s.responses[id][1])
	}
}

// TestLeaderKilled: a new leader serves soon, and holds survive.
func TestLeaderKilled(t *testing.T) {
	worst := Time(0)
	for seed := range uint64(10) {
		s := newSim(t, seed, 3, 1)
		n := s.waitLeader(1)
		a, b := s.client(1, 10_000), s.client(1, 10_000)
		name := s.nameIn(1, 1)
		token := a.mustAcquire(name)
		wait := s.send(n, b.stream, 1, b.acquireReq(1, name, 60_000))
		s.run(20 * milli)
		if len(s.responses[wait]) != 1 {
			t.Fatal("no WAITING")
		}
		at := s.now
		n.crash()
		s.until(3*second, "a new leader", func() bool { return s.leader(1) != nil })
		worst = max(worst, s.now-at)
		m := s.leader(1)
		wait = s.send(m, b.stream, 1, b.acquireReq(1, name, 60_000))
		s.run(50 * milli)
		a.release(1, name, token)
		s.run(50 * milli)
		rs := s.responses[wait]
		if len(rs) != 2 || rs[1].GetAcquire().GetGranted() == nil {
			t.Fatalf("seed %d: the resent wait got %v", seed, rs)
		}
		n.start()
		s.checkReplicas()
	}
	if worst > 500*milli {
		t.Errorf("with the connection seen to break, a new leader took %d ms", worst/milli)
	}
}

// TestExpiry: a silent session ends between TTL and TTL + 0.5 s after its last
// heartbeat, its waiter gets the lock; one that renews lives.
func TestExpiry(t *testing.T) {
	s := newSim(t, 4, 3, 1)
	n := s.waitLeader(1)
	acks := s.watch()
	dead, alive := s.client(1, 3_000), s.client(1, 3_000)
	name := s.nameIn(1, 1)
	dead.mustAcquire(name)
	wait := s.send(n, alive.stream, 1, alive.acquireReq(1, name, 60_000))
	s.run(10 * milli)
	num := dead.renew()
	last := s.now
	s.until(second, "the acknowledgement", func() bool { return acks.covered[dead.stream] == num })
	for dead.live() {
		s.run(5 * milli)
		if s.now-last > 4*second {
			t.Fatal("not expired")
		}
		if (s.now/milli)%1000 < 5 {
			alive.renew()
		}
	}
	if took := s.now - last; took < 3*second || took > 3500*milli {
		t.Fatalf("expired after %d ms, TTL 3000", took/milli)
	}
	if !acks.ended[dead.stream] {
		t.Error("the session was not told")
	}
	s.run(20 * milli)
	if rs := s.responses[wait]; len(rs) != 2 || rs[1].GetAcquire().GetGranted() == nil {
		t.Fatalf("the waiter got %v", rs)
	}
	if !alive.live() {
		t.Error("the session that renewed ended, too")
	}
	if num := dead.renew(); true {
		s.run(100 * milli)
		if acks.covered[dead.stream] == num {
			t.Error("a dead registration was acknowledged")
		}
	}
}

// TestDeposedLeader: a leader cut off with its client acknowledges nothing
// (T5), expires nobody when it comes back (T4), and answers no read (T11).
func TestDeposedLeader(t *testing.T) {
	s := newSim(t, 5, 3, 1)
	n := s.waitLeader(1)
	acks := s.watch()
	c := s.client(1, 4_000)
	name := s.nameIn(1, 1)
	token := c.mustAcquire(name)
	s.partition(n.id)
	before := acks.byNode[n.id]
	cutAt := s.now
	read := s.send(n, c.stream, 1, &nodev1.Request{Op: &nodev1.Request_Describe{Describe: &nodev1.Describe{Name: name}}})
	s.until(10*second, "a new leader", func() bool {
		if (s.now/milli)%100 == 0 {
			c.renew(n) // only the old one hears
		}
		m := s.leader(1)
		return m != nil && m != n
	})
	if acks.byNode[n.id] != before {
		t.Fatal("a leader without a quorum acknowledged a renewal")
	}
	for _, r := range s.responses[read] {
		if r.GetDescribe() != nil {
			t.Fatal("a leader without a quorum answered a read")
		}
	}
	m := s.leader(1)
	// The session renews at the new leader; the old one saw it last at the cut.
	for s.now < cutAt+8*second {
		c.renew(m)
		s.run(500 * milli)
	}
	s.heal()
	for range 10 {
		c.renew(m)
		s.run(500 * milli)
	}
	if !c.live() {
		t.Fatal("the deposed leader ended a session that was renewed elsewhere")
	}
	if r := c.release(1, name, token); r.GetDone() == nil {
		t.Fatalf("release: %v", r)
	}
	s.checkReplicas()
}

// TestStall: a leader that stood still for longer than the TTL expires nobody
// at once (T4), neither as leader still nor as deposed one.
func TestStall(t *testing.T) {
	for _, stall := range []Time{800 * milli, 6 * second} {
		s := newSim(t, 6, 3, 1)
		n := s.waitLeader(1)
		var cs []*client
		for range 20 {
			cs = append(cs, s.client(1, 1_000))
		}
		renew := func() {
			for _, c := range cs {
				c.renew()
			}
		}
		for range 4 {
			renew()
			s.run(300 * milli)
		}
		n.pause()
		for end := s.now + stall; s.now < end; {
			renew()
			s.run(200 * milli)
		}
		n.resume()
		for range 20 {
			renew()
			s.run(200 * milli)
		}
		for _, c := range cs {
			if !c.live() {
				t.Fatalf("stall of %d ms: a session that kept renewing was expired", stall/milli)
			}
		}
		s.checkReplicas()
	}
}

// TestTransfersDontProlong: however often the leader moves on purpose, a dead
// session ends (T10), and a live one lives.
func TestTransfersDontProlong(t *testing.T) {
	s := newSim(t, 7, 3, 1)
	s.waitLeader(1)
	dead, alive := s.client(1, 6_000), s.client(1, 6_000)
	name := s.nameIn(1, 1)
	dead.mustAcquire(name)
	dead.renew()
	last := s.now
	moves := 0
	var id uint64
	for dead.live() && s.now-last < 20*second {
		n := s.waitLeader(1)
		to := NodeID(uint64(n.id)%3 + 1)
		id++
		n.in.Transfers = append(n.in.Transfers, Transfer{ID: id, Shard: 1, To: to})
		s.until(5*second, "the end of the transfer", func() bool { _, ok := s.transfers[id]; return ok })
		if tr := s.transfers[id]; tr.Err != nil || tr.Leader != to {
			t.Fatalf("transfer to %d: %+v", to, tr)
		}
		moves++
		alive.renew()
		for range 14 {
			s.run(50 * milli)
			if !dead.live() {
				break
			}
		}
	}
	if took := s.now - last; took < 6*second || took > 9*second {
		t.Fatalf("with %d transfers a dead session lived for %d ms, TTL 6000", moves, took/milli)
	}
	if moves < 5 || !alive.live() {
		t.Fatalf("%d moves, alive %v", moves, alive.live())
	}
}

// TestTransferUnderLoad: every request that arrives during transfers is
// answered (T23), and nothing takes effect twice.
func TestTransferUnderLoad(t *testing.T) {
	s := newSim(t, 8, 3, 1)
	s.waitLeader(1)
	var cs []*client
	for range 8 {
		cs = append(cs, s.client(1, 30_000))
	}
	var asked []uint64
	for round := range 30 {
		n := s.waitLeader(1)
		id := uint64(round + 1)
		n.in.Transfers = append(n.in.Transfers, Transfer{ID: id, Shard: 1, To: NodeID(uint64(n.id)%3 + 1)})
		for k := range 20 {
			for _, c := range cs {
				c.seq++
				asked = append(asked, s.send(n, c.stream, 1, c.acquireReq(c.seq, s.nameIn(1, k%5), 0)))
			}
			s.run(3 * milli)
		}
		s.until(5*second, "the end of the transfer", func() bool { _, ok := s.transfers[id]; return ok })
		if err := s.transfers[id].Err; err != nil {
			t.Fatalf("transfer: %v", err)
		}
	}
	s.run(3 * second)
	for _, id := range asked {
		if len(s.responses[id]) != 1 {
			t.Fatalf("request %d has %d answers", id, len(s.responses[id]))
		}
	}
	for _, n := range s.nodes {
		st, _ := n.w.Status(1)
		if st.Pending+st.Queued != 0 {
			t.Fatalf("node %d: %d pending, %d queued at the end", n.id, st.Pending, st.Queued)
		}
	}
	s.checkReplicas()
}

// TestTransferFails: the target dies in the middle; the old leader goes on, and
// acknowledges again.
func TestTransferFails(t *testing.T) {
	s := newSim(t, 9, 3, 1)
	n := s.waitLeader(1)
	acks := s.watch()
	c := s.client(1, 10_000)
	name := s.nameIn(1, 1)
	s.run(4 * second) // silent for more than a third of its TTL
	to := s.nodes[int(n.id)%3]
	n.in.Transfers = append(n.in.Transfers, Transfer{ID: 1, Shard: 1, To: to.id})
	s.run(milli)
	to.crash()
	num := c.renew()
	s.until(5*second, "the end of the transfer", func() bool { _, ok := s.transfers[1]; return ok })
	if s.transfers[1].Err == nil {
		t.Fatal("a transfer to a dead node succeeded")
	}
	s.until(2*second, "the acknowledgement", func() bool { return acks.covered[c.stream] == num })
	c.mustAcquire(name)
	if l := s.leader(1); l != n {
		t.Fatal("the leader changed")
	}
}

// TestRestartOfAll: power loss of all nodes loses nothing that was answered.
func TestRestartOfAll(t *testing.T) {
	s := newSim(t, 10, 3, 2, func(s *sim) { s.policy = SnapshotPolicy{Entries: 40, KeepEntries: 10} })
	type hold struct {
		c     *client
		name  string
		token uint64
	}
	var holds []hold
	for _, id := range s.shards {
		s.waitLeader(id)
		for range 4 {
			c := s.client(id, 60_000)
			for range 12 {
				name := s.nameIn(id, len(holds)+1)
				holds = append(holds, hold{c, name, c.mustAcquire(name)})
			}
		}
	}
	for range 3 {
		for _, n := range s.nodes {
			n.crash()
		}
		s.run(100 * milli)
		for _, n := range s.nodes {
			n.start()
		}
		for _, id := range s.shards {
			s.waitLeader(id)
		}
		for _, h := range holds {
			d := s.do(h.c.shard, 1, &nodev1.Request{Op: &nodev1.Request_CheckToken{CheckToken: &nodev1.CheckToken{Name: h.name, Token: h.token}}})
			if !d.GetCheckToken().GetCurrent() {
				t.Fatalf("hold of %s with token %d is gone: %v", h.name, h.token, d)
			}
		}
	}
	s.checkReplicas()
	if s.nodes[0].w.Counters().SnapshotsWritten == 0 && s.nodes[0].disk[1].Base.Index == startIndex {
		t.Error("no snapshot was written")
	}
}

// TestSnapshotCatchUp: a follower that was away for longer than the log reaches
// back gets a snapshot, also when the first ones fail (T24).
func TestSnapshotCatchUp(t *testing.T) {
	fails := 3
	s := newSim(t, 11, 3, 1, func(s *sim) {
		s.policy = SnapshotPolicy{Entries: 30, KeepEntries: 5}
		s.snapshotOK = func(NodeID) bool { fails--; return fails < 0 }
	})
	n := s.waitLeader(1)
	away := s.nodes[int(n.id)%3]
	away.crash()
	c := s.client(1, 600_000)
	for i := range 200 {
		c.mustAcquire(s.nameIn(1, i))
	}
	away.start()
	s.checkReplicas()
	if away.w.Counters().SnapshotsInstalled == 0 {
		t.Fatal("no snapshot was installed")
	}
	if len(away.files) > 8 {
		t.Errorf("%d files are left", len(away.files))
	}
	// It serves as a leader, also after a restart from what it received.
	away.crash()
	away.start()
	n.crash()
	s.waitLeader(1)
	c.mustAcquire(s.nameIn(1, 999))
}

// TestDiskStall: a leader whose disk stands still gives its office up, and the
// shard serves again (T12).
func TestDiskStall(t *testing.T) {
	s := newSim(t, 12, 3, 1)
	n := s.waitLeader(1)
	c := s.client(1, 60_000)
	c.mustAcquire(s.nameIn(1, 1))
	n.stuckDisk = true
	at := s.now
	asked := s.send(n, c.stream, 1, c.acquireReq(100, s.nameIn(1, 2), 0))
	s.until(8*second, "another leader", func() bool {
		l := s.leader(1)
		return l != nil && l != n
	})
	t.Logf("another leader after %d ms", (s.now-at)/milli)
	s.run(200 * milli)
	if rs := s.responses[asked]; len(rs) != 1 {
		t.Fatalf("the request at the stalled leader got %v", rs)
	}
	c.mustAcquire(s.nameIn(1, 3))
	n.stuckDisk = false
	s.checkReplicas()
}

// TestDrain: a draining node hands everything over and says so.
func TestDrain(t *testing.T) {
	s := newSim(t, 13, 3, 6)
	for _, id := range s.shards {
		s.waitLeader(id)
	}
	n := s.waitLeader(s.shards[0])
	n.draining = true
	s.until(10*second, "the drain", func() bool { return n.drained })
	for _, id := range append(s.shards, 0) {
		if st, _ := n.w.Status(id); st.Role == "LEADER" {
			t.Errorf("shard %d is still led by the drained node", id)
		}
	}
}

// TestLocate and the other reads.
func TestLocate(t *testing.T) {
	s := newSim(t, 14, 3, 3)
	for _, id := range s.shards {
		s.waitLeader(id)
	}
	c := s.client(1, 60_000)
	c.mustAcquire(s.nameIn(1, 1))
	found, elsewhere := 0, 0
	for _, n := range s.nodes {
		id := s.send(n, c.stream, 0, &nodev1.Request{Op: &nodev1.Request_Locate{Locate: &nodev1.Locate{SessionId: c.session[:]}}})
		s.until(second, "the answer", func() bool { return len(s.responses[id]) == 1 })
		l := s.responses[id][0].GetLocate()
		found += len(l.GetLocated())
		elsewhere += len(l.GetElsewhere())
		for _, x := range l.GetLocated() {
			if x.Registration != c.reg || x.Shard != 1 {
				t.Fatalf("%v", x)
			}
		}
	}
	if found != 1 || elsewhere != 6 {
		t.Fatalf("located %d times, %d elsewhere; want 1 and 6", found, elsewhere)
	}
	inv := s.do(1, 1, &nodev1.Request{Op: &nodev1.Request_Inventory{Inventory: &nodev1.Inventory{Registration: c.reg}}}).GetInventory()
	if len(inv.GetHolds()) != 1 {
		t.Fatalf("inventory %v", inv)
	}
	ls := s.do(1, 1, &nodev1.Request{Op: &nodev1.Request_List{List: &nodev1.List{Prefix: "job/"}}}).GetList()
	if len(ls.GetLocks()) != 1 || ls.More {
		t.Fatalf("list %v", ls)
	}
	rs := s.do(1, 1, &nodev1.Request{Op: &nodev1.Request_ListRegistrations{ListRegistrations: &nodev1.ListRegistrations{}}}).GetListRegistrations()
	if len(rs.GetRegistrations()) != 1 || rs.Registrations[0].Holds != 1 {
		t.Fatalf("registrations %v", rs)
	}
	other := s.nameIn(2, 1)
	if r := s.do(1, 1, &nodev1.Request{Op: &nodev1.Request_Describe{Describe: &nodev1.Describe{Name: other}}}); r.GetFailure().GetDetail().GetReason() != ReasonNotOwner {
		t.Fatalf("describe of a foreign name: %v", r)
	}
}
