package worker

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/mortise-lock/mortise/node/logstore"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// TestProposalsAreCopied holds raft to what propose relies on: the entry that
// comes back does not share memory with what was proposed.
func TestProposalsAreCopied(t *testing.T) {
	s := newSim(t, 1, 1, 1)
	r := s.waitLeader(1).w.byShard[1]
	data := []byte("some bytes")
	if err := r.rn.Step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(r.id), Entries: []*raftpb.Entry{{Data: data}}}); err != nil {
		t.Fatal(err)
	}
	rd := r.rn.Ready()
	got := rd.Entries[len(rd.Entries)-1].GetData()
	data[0] = 'X'
	if !bytes.Equal(got, []byte("some bytes")) {
		t.Fatal("raft keeps the proposer's buffer")
	}
}

// TestForeignMessages (T42): what no member would send is dropped and counted,
// and nothing panics.
func TestForeignMessages(t *testing.T) {
	for seed := range uint64(40) {
		s := newSim(t, seed, 3, 1)
		s.waitLeader(1)
		c := s.client(1, 60_000)
		c.mustAcquire(s.nameIn(1, 1))
		rng := rand.New(rand.NewPCG(seed, 99))
		small := func() *uint64 { return new(rng.Uint64N(30)) }
		absurd := func() *uint64 { return new([]uint64{0, 1, 9, 1000, 1 << 40, 1<<64 - 1}[rng.IntN(6)]) }
		num := func() *uint64 {
			if rng.IntN(2) == 0 {
				return small()
			}
			return absurd()
		}
		for range 400 {
			n := s.nodes[rng.IntN(3)]
			m := RaftMessage{Shard: shard.ID(rng.IntN(3)), Peer: NodeID(rng.IntN(5)), Msg: &raftpb.Message{
				Type: raftpb.MessageType(rng.IntN(26)).Enum(), To: new(uint64(100 + rng.IntN(5))), From: new(uint64(100 + rng.IntN(5))),
				Term: small(), Index: num(), LogTerm: small(), Commit: num(), RejectHint: num(), Context: make([]byte, rng.IntN(10)), Reject: new(rng.IntN(2) == 0)}}
			// Terms stay below those of the cluster's present: a sound message of a later term is
			// no foreign one.
			*m.Msg.Term %= 6
			for i := range rng.IntN(3) {
				m.Msg.Entries = append(m.Msg.Entries, &raftpb.Entry{Index: new(m.Msg.GetIndex() + uint64(i) + uint64(rng.IntN(2))), Term: small()})
			}
			n.in.Messages = append(n.in.Messages, m)
			s.run(milli)
		}
		// The same with the present term, and from a real member, but with absurd positions.
		l := s.waitLeader(1)
		r := l.w.byShard[1]
		f := s.nodes[int(l.id)%3]
		fr := f.w.byShard[1]
		for _, m := range []*raftpb.Message{
			{Type: raftpb.MsgAppResp.Enum(), Index: new(uint64(1 << 40))},
			{Type: raftpb.MsgHeartbeatResp.Enum(), Context: []byte{1, 2, 3}},
			{Type: raftpb.MsgReadIndex.Enum()},
			{Type: raftpb.MsgProp.Enum()},
			{Type: raftpb.MsgProp.Enum(), Entries: []*raftpb.Entry{{Type: raftpb.EntryConfChange.Enum(), Data: []byte{255}}}},
			{Type: raftpb.MsgSnap.Enum()},
			{Type: raftpb.MsgStorageAppendResp.Enum()},
		} {
			m.To, m.From, m.Term = new(r.id), new(fr.id), new(r.term)
			l.in.Messages = append(l.in.Messages, RaftMessage{Shard: 1, Peer: f.id, Msg: m})
		}
		for _, m := range []*raftpb.Message{
			{Type: raftpb.MsgHeartbeat.Enum(), Commit: new(uint64(1 << 40))},
			{Type: raftpb.MsgApp.Enum(), Index: new(uint64(10)), LogTerm: new(uint64(5)), Entries: []*raftpb.Entry{{Index: new(uint64(11)), Term: new(uint64(5))}}},
			{Type: raftpb.MsgApp.Enum(), Index: new(uint64(10)), LogTerm: new(uint64(5)), Entries: []*raftpb.Entry{{Index: new(uint64(13)), Term: new(uint64(6))}}},
			{Type: raftpb.MsgSnap.Enum(), Snapshot: &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: new(uint64(1 << 40)), Term: new(uint64(6))}}},
		} {
			m.To, m.From, m.Term = new(fr.id), new(r.id), new(r.term)
			f.in.Messages = append(f.in.Messages, RaftMessage{Shard: 1, Peer: l.id, Msg: m})
		}
		s.run(100 * milli)
		if l.w.Counters().Misdirected < 7 || f.w.Counters().Misdirected < 3 {
			t.Fatalf("dropped %d at the leader and %d at the follower", l.w.Counters().Misdirected, f.w.Counters().Misdirected)
		}
		c.mustAcquire(s.nameIn(1, 2))
		s.checkReplicas()
	}
}

// TestFlowControl: a shard that can't keep up refuses acquires with a hint,
// lets releases in longer, and recovers.
func TestFlowControl(t *testing.T) {
	s := newSim(t, 31, 3, 1, func(s *sim) {
		s.limits = Limits{PendingCommands: 100, BatchCommands: 20, InflightEntries: 2}
	})
	n := s.waitLeader(1)
	c := s.client(1, 60_000)
	name := s.nameIn(1, 1)
	token := c.mustAcquire(name)
	var ids []uint64
	for range 200 {
		c.seq++
		ids = append(ids, s.send(n, c.stream, 1, c.acquireReq(c.seq, s.nameIn(1, 2), 0)))
	}
	rel := s.send(n, c.stream, 1, &nodev1.Request{Op: &nodev1.Request_Release{Release: &nodev1.Release{
		Acting: &nodev1.Acting{Registration: c.reg, Attachment: 1}, Id: &nodev1.AcquireId{Seq: 1}, Name: name, Token: token}}})
	s.run(second)
	refused := 0
	for _, id := range ids {
		if len(s.responses[id]) != 1 {
			t.Fatalf("request %d: %v", id, s.responses[id])
		}
		if f := s.responses[id][0].Failure; f != nil {
			if d := f.Detail; d.Reason != ReasonOverloaded || d.RetryAfterMs == 0 || d.LimitName != "pending_commands" {
				t.Fatalf("%v", f)
			}
			refused++
		}
	}
	if refused != 100 {
		t.Errorf("%d acquires refused, want 100", refused)
	}
	if s.responses[rel][0].GetDone() == nil {
		t.Errorf("the release got %v", s.responses[rel])
	}
	if r := n.w.byShard[1]; r.load != 0 || r.loadBytes != 0 {
		t.Errorf("load %d, %d bytes at rest", r.load, r.loadBytes)
	}
}

// TestInvalidRequests: the second line behind the gateway's own checks.
func TestInvalidRequests(t *testing.T) {
	s := newSim(t, 32, 1, 1)
	n := s.waitLeader(1)
	c := s.client(1, 60_000)
	bad := []*nodev1.Request{
		{},
		c.acquireReq(0, "x", 0),
		c.acquireReq(1, "", 0),
		c.acquireReq(1, "a\x00b", 0),
		c.acquireReq(1, "x", 1<<60),
		{Op: &nodev1.Request_Register{Register: &nodev1.Register{SessionId: []byte("short"), Client: "c", TtlMs: 10_000}}},
		{Op: &nodev1.Request_Register{Register: &nodev1.Register{SessionId: c.session[:], Client: "c", TtlMs: 1}}},
		{Op: &nodev1.Request_Register{Register: &nodev1.Register{SessionId: c.session[:], TtlMs: 10_000}}},
		{Op: &nodev1.Request_Release{Release: &nodev1.Release{Name: "x", Token: 1 << 60}}},
		{Op: &nodev1.Request_ForceRelease{ForceRelease: &nodev1.ForceRelease{Name: "x"}}},
		{Op: &nodev1.Request_Locate{Locate: &nodev1.Locate{}}},
	}
	for i, q := range bad {
		id := s.send(n, 1, 1, q)
		s.run(20 * milli)
		if rs := s.responses[id]; len(rs) != 1 || rs[0].GetFailure().GetDetail().GetField() == "" {
			t.Errorf("request %d: %v, want a refusal that names the field", i, rs)
		}
	}
	if r := s.send(n, 1, 77, c.acquireReq(1, "x", 0)); true {
		s.run(20 * milli)
		if f := s.responses[r][0].Failure; f.GetDetail().GetReason() != ReasonNotLeader {
			t.Errorf("unknown shard: %v", f)
		}
	}
}

// TestDamagedState: New refuses what can't be.
func TestDamagedState(t *testing.T) {
	s := newSim(t, 33, 3, 1)
	n := s.nodes[0]
	base := func() Replica {
		m, err := shard.Restore(bytes.NewReader(n.files["initial-1"]))
		if err != nil {
			t.Fatal(err)
		}
		st := *n.disk[1]
		st.Base.Index, st.HardState = startIndex, logstore.HardState{Term: 5, Commit: 10}
		st.Entries = nil
		return Replica{Shard: 1, Replica: st.Replica, State: st, Machine: m, Peers: []Peer{{st.Replica, 1, false}}}
	}
	for name, breakIt := range map[string]func(*Replica){
		"":                  func(*Replica) {},
		"commit beyond log": func(r *Replica) { r.State.HardState.Commit = 11 },
		"commit below base": func(r *Replica) { r.State.HardState.Commit = 9 },
		"state of another index": func(r *Replica) {
			r.State.Base.Index = 11
			r.State.HardState.Commit = 11
		},
		"gap": func(r *Replica) {
			r.State.Entries = []*raftpb.Entry{{Index: new(uint64(12)), Term: new(uint64(5))}}
		},
		"foreign replica": func(r *Replica) { r.Replica++ },
		"not in the map":  func(r *Replica) { r.Peers = nil },
	} {
		r := base()
		breakIt(&r)
		_, err := New(Config{Node: 1, Replicas: []Replica{r}})
		if (err == nil) != (name == "") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestRaftLoggerPanics(t *testing.T) {
	for _, f := range []func(raft.Logger){
		func(l raft.Logger) { l.Panic("x") }, func(l raft.Logger) { l.Panicf("x") },
		func(l raft.Logger) { l.Fatal("x") }, func(l raft.Logger) { l.Fatalf("x") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("raft went on after a fatal error")
				}
			}()
			f(raftLogger{})
		}()
	}
}
