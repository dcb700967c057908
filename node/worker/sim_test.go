package worker

import (
	"bytes"
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/cryptotest"

	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/placement"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
)

const (
	milli  = Time(1_000_000)
	second = 1000 * milli
	// startIndex and startTerm are those of the snapshot that replicas begin with.
	startIndex, startTerm = 10, 5
)

// sim is a cluster of workers on one thread and virtual time, over a modelled
// network and modelled disks.
type sim struct {
	t     testing.TB
	rng   *rand.Rand
	now   Time
	nodes []*simNode
	net   netHeap
	seq   uint64

	// Faults of the network.
	drop, dup  float64
	delayMax   Time
	cut        map[[2]NodeID]bool
	shards     []shard.ID
	responses  map[uint64][]*nodev1.Response
	onReply    func(n *simNode, r Reply)
	nextID     uint64
	policy     SnapshotPolicy
	limits     Limits
	transfers  map[uint64]TransferDone
	proposed   map[uint64]MapProposed
	snapshotOK func(to NodeID) bool
	trace      func(n *simNode, in *Input, out *Output)
}

type simNode struct {
	s      *sim
	id     NodeID
	w      *Worker
	in     Input
	out    Output
	up     bool
	paused bool // the process stands still
	pausedAt,
	tickAt Time
	streams StreamID

	// Disk.
	disk      map[shard.ID]*logstore.ReplicaState
	files     map[string][]byte
	unsynced  []syncBatch
	syncTime  Time
	stuckDisk bool
	fileSeq   int
	draining  bool
	drained   bool
	lastMap   *placementv1.Map
}

type syncBatch struct {
	at    Time
	steps []logstore.Append
}

type packet struct {
	at  Time
	seq uint64
	to  NodeID
	m   RaftMessage
	// file content of a snapshot on its way
	content []byte
	from    NodeID
}

type netHeap []packet

func (h netHeap) Len() int { return len(h) }
func (h netHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h netHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *netHeap) Push(x any)   { *h = append(*h, x.(packet)) }
func (h *netHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

func newSim(t testing.TB, seed uint64, nodes, shards int, opts ...func(*sim)) *sim {
	if t, ok := t.(*testing.T); ok {
		cryptotest.SetGlobalRandom(t, seed) // raft's election jitter
	}
	s := &sim{t: t, rng: rand.New(rand.NewPCG(seed, 7)), now: second, delayMax: 1 * milli, cut: map[[2]NodeID]bool{},
		responses: map[uint64][]*nodev1.Response{}, transfers: map[uint64]TransferDone{}, proposed: map[uint64]MapProposed{}}
	for i := range shards {
		s.shards = append(s.shards, shard.ID(i+1))
	}
	for _, o := range opts {
		o(s)
	}
	for i := range nodes {
		n := &simNode{s: s, id: NodeID(i + 1), disk: map[shard.ID]*logstore.ReplicaState{}, files: map[string][]byte{}, syncTime: 1 * milli}
		s.nodes = append(s.nodes, n)
	}
	m := s.initialMap()
	for _, n := range s.nodes {
		n.bootstrap(m)
		n.start()
	}
	return s
}

func (s *sim) replicaID(id shard.ID, n NodeID) uint64 {
	return uint64(id)*100 + uint64(n)
}

func (s *sim) initialMap() *placementv1.Map {
	m := &placementv1.Map{ClusterId: "00112233445566778899aabbccddeeff", Generation: 1, NextNodeId: 100, NextShardId: 1000, NextReplicaId: 1 << 20,
		Pins: []*placementv1.Pin{{Region: "eu"}}}
	for _, n := range s.nodes {
		m.Nodes = append(m.Nodes, &placementv1.Node{Id: uint64(n.id), Name: fmt.Sprintf("n%d", n.id), Address: fmt.Sprintf("127.0.0.1:%d", 7000+n.id),
			Region: "eu", Zone: fmt.Sprintf("z%d", n.id)})
	}
	for i, id := range append([]shard.ID{0}, s.shards...) {
		sh := &placementv1.Shard{Id: uint32(id), Region: "eu", Generation: 1}
		if id != 0 {
			per := ^uint64(0) / uint64(len(s.shards))
			first, last := per*uint64(i-1), per*uint64(i)-1
			if i > 1 {
				first = per * uint64(i-1)
			}
			if i == len(s.shards) {
				last = ^uint64(0)
			}
			sh.Owns = []*placementv1.Selector{{HashFirst: first, HashLast: last}}
		}
		for _, n := range s.nodes {
			sh.Replicas = append(sh.Replicas, &placementv1.Replica{Id: s.replicaID(id, n.id), Node: uint64(n.id)})
		}
		m.Shards = append(m.Shards, sh)
	}
	return m
}

func (n *simNode) bootstrap(m *placementv1.Map) {
	for _, sh := range m.Shards {
		var content []byte
		id := shard.ID(sh.Id)
		if id == 0 {
			pm, err := placement.NewMachine(m, startIndex)
			if err != nil {
				n.s.t.Fatal(err)
			}
			content = pm.Snapshot().Bytes()
		} else {
			var owns []shard.Selector
			for _, o := range sh.Owns {
				owns = append(owns, shard.Selector{Prefix: o.Prefix, HashFirst: o.HashFirst, HashLast: o.HashLast})
			}
			sm := shard.New(shard.Config{ID: id, Owns: owns, Floor: 1000, Index: startIndex, Term: startTerm})
			var b bytes.Buffer
			sn := sm.Snapshot()
			if _, err := sn.WriteTo(&b); err != nil {
				n.s.t.Fatal(err)
			}
			sn.Close()
			content = b.Bytes()
		}
		name := fmt.Sprintf("initial-%d", id)
		n.files[name] = content
		cs := &raftpb.ConfState{}
		for _, r := range sh.Replicas {
			cs.Voters = append(cs.Voters, r.Id)
		}
		n.disk[id] = &logstore.ReplicaState{Shard: id, Replica: n.s.replicaID(id, n.id), HardState: logstore.HardState{Term: startTerm, Commit: startIndex},
			Base: logstore.Base{Index: startIndex, Term: startTerm, ConfState: cs, Snapshot: name}}
	}
}

// start loads what is durable and runs the node.
func (n *simNode) start() {
	s := n.s
	cfg := Config{Node: n.id, Snapshots: s.policy, Limits: s.limits}
	used := map[string]bool{}
	for _, id := range append([]shard.ID{0}, s.shards...) {
		d := n.disk[id]
		st := *d
		st.Entries = slices.Clone(d.Entries)
		rep := Replica{Shard: id, Replica: d.Replica, State: st}
		for _, o := range s.nodes {
			rep.Peers = append(rep.Peers, Peer{Replica: s.replicaID(id, o.id), Node: o.id})
		}
		content, ok := n.files[d.Base.Snapshot]
		if !ok {
			s.t.Fatalf("node %d shard %d: base names file %q, which is gone", n.id, id, d.Base.Snapshot)
		}
		used[d.Base.Snapshot] = true
		var err error
		if id == 0 {
			rep.Meta, err = placement.Restore(bytes.NewReader(content))
		} else {
			rep.Machine, err = shard.Restore(bytes.NewReader(content))
		}
		if err != nil {
			s.t.Fatal(err)
		}
		cfg.Replicas = append(cfg.Replicas, rep)
	}
	for f := range n.files {
		if !used[f] {
			delete(n.files, f)
		}
	}
	w, err := New(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	n.w, n.up, n.paused, n.in, n.drained, n.draining = w, true, false, Input{}, false, false
	n.tickAt = s.now + Time(s.rng.Int64N(int64(100*milli)))
	n.streams += 1000
}

// crash loses everything that was not synced, with the process.
func (n *simNode) crash() {
	n.up, n.paused, n.w = false, false, nil
	n.unsynced = nil
	for _, o := range n.s.nodes {
		if o.up && !o.paused && !n.s.isCut(n.id, o.id) {
			o.in.PeersDown = append(o.in.PeersDown, n.id)
		}
	}
}

func (n *simNode) pause() {
	n.paused, n.pausedAt = true, n.s.now
}

func (n *simNode) resume() {
	n.paused = false
	n.in.Stalled = int64(n.s.now - n.pausedAt)
}

func (s *sim) isCut(a, b NodeID) bool { return s.cut[[2]NodeID{a, b}] }

// partition cuts the given nodes off from all others, both ways.
func (s *sim) partition(ids ...NodeID) {
	for _, a := range s.nodes {
		for _, b := range s.nodes {
			if slices.Contains(ids, a.id) != slices.Contains(ids, b.id) {
				s.cut[[2]NodeID{a.id, b.id}] = true
			}
		}
	}
}

func (s *sim) heal() { clear(s.cut) }

func (s *sim) post(from *simNode, m RaftMessage) {
	p := packet{to: m.Peer, from: from.id, m: m}
	p.m.Peer = from.id
	if m.SnapshotFile != "" {
		p.content = bytes.Clone(from.files[m.SnapshotFile])
		if p.content == nil {
			s.t.Fatalf("node %d shard %d sends a snapshot whose file %q is gone", from.id, m.Shard, m.SnapshotFile)
		}
	}
	if s.isCut(from.id, p.to) || s.rng.Float64() < s.drop || p.content != nil && s.snapshotOK != nil && !s.snapshotOK(p.to) {
		if p.content != nil {
			from.in.SnapshotsSent = append(from.in.SnapshotsSent, SnapshotSent{Shard: m.Shard, Replica: m.Msg.GetTo(), Err: errors.New("dropped")})
		}
		return
	}
	for {
		s.seq++
		p.seq, p.at = s.seq, s.now+milli/5+Time(s.rng.Int64N(int64(s.delayMax)))
		heap.Push(&s.net, p)
		if s.rng.Float64() >= s.dup || p.content != nil {
			return
		}
	}
}

func (s *sim) arrive(p packet) {
	n := s.nodes[p.to-1]
	sent := func(err error) {
		if f := s.nodes[p.from-1]; p.content != nil && f.up {
			f.in.SnapshotsSent = append(f.in.SnapshotsSent, SnapshotSent{Shard: p.m.Shard, Replica: p.m.Msg.GetTo(), Err: err})
		}
	}
	if !n.up {
		sent(errors.New("down"))
		return
	}
	if p.content != nil {
		n.fileSeq++
		p.m.SnapshotFile = fmt.Sprintf("received-%d-%d", p.m.Shard, n.fileSeq)
		n.files[p.m.SnapshotFile] = p.content
		var err error
		if p.m.Shard == 0 {
			p.m.RestoredMap, err = placement.Restore(bytes.NewReader(p.content))
		} else {
			p.m.Restored, err = shard.Restore(bytes.NewReader(p.content))
		}
		if err != nil {
			s.t.Fatal(err)
		}
		sent(nil)
	}
	n.in.Messages = append(n.in.Messages, p.m)
}

// run advances virtual time by d.
func (s *sim) run(d Time) {
	for end := s.now + d; s.now < end; {
		s.now += milli
		s.advance()
	}
}

// until runs until ok, at most for d.
func (s *sim) until(d Time, what string, ok func() bool) {
	s.t.Helper()
	for end := s.now + d; !ok(); {
		if s.now >= end {
			s.t.Fatalf("%s: not within %d ms", what, d/milli)
		}
		s.run(milli)
	}
}

func (s *sim) advance() {
	for len(s.net) > 0 && s.net[0].at <= s.now {
		s.arrive(heap.Pop(&s.net).(packet))
	}
	for _, n := range s.nodes {
		if n.up && !n.paused {
			n.advance()
		}
	}
}

func (n *simNode) advance() {
	s := n.s
	for len(n.unsynced) > 0 && n.unsynced[0].at <= s.now && !n.stuckDisk {
		for i := range n.unsynced[0].steps {
			n.persist(&n.unsynced[0].steps[i])
		}
		n.in.Synced = append(n.in.Synced, n.unsynced[0].steps...)
		n.unsynced = n.unsynced[1:]
	}
	for s.now >= n.tickAt {
		n.in.Ticks++
		n.tickAt += 100 * milli
	}
	n.in.Ticks = min(n.in.Ticks, 10)
	n.in.Draining = n.draining
	// Several rounds within the same moment, until nothing more happens.
	for range 3 {
		next := n.out.Next
		if !n.pending() && (next == 0 || next > s.now) {
			return
		}
		n.step()
	}
}

func (n *simNode) pending() bool {
	i := &n.in
	return len(i.Messages)+i.Ticks+len(i.Requests)+len(i.Renewals)+len(i.Synced)+len(i.StreamsClosed)+len(i.SnapshotsSent)+
		len(i.SnapshotsWritten)+len(i.PeersDown)+len(i.Unreachable)+len(i.Transfers)+len(i.MapProposals) > 0 || i.Stalled > 0
}

func (n *simNode) step() {
	s := n.s
	n.in.Now, n.in.WallMS = s.now, int64(s.now/milli)
	n.w.Step(&n.in, &n.out)
	if s.trace != nil {
		s.trace(n, &n.in, &n.out)
	}
	n.in = Input{Draining: n.draining}
	o := &n.out
	if o.Fatal != nil {
		s.t.Fatalf("node %d: %v", n.id, o.Fatal)
	}
	if len(o.Appends) > 0 {
		n.unsynced = append(n.unsynced, syncBatch{s.now + n.syncTime, slices.Clone(o.Appends)})
	}
	for _, m := range o.Messages {
		s.post(n, m)
	}
	for _, sn := range o.Snapshots {
		var b bytes.Buffer
		size, err := sn.Snapshot.WriteSnapshot(&b)
		sn.Snapshot.Close()
		if err == nil {
			n.files[sn.File] = b.Bytes()
		}
		n.in.SnapshotsWritten = append(n.in.SnapshotsWritten, SnapshotWritten{Shard: sn.Shard, File: sn.File, Index: sn.Index, Bytes: size, Err: err})
	}
	for _, f := range o.RemoveFiles {
		delete(n.files, f)
	}
	for _, t := range o.Transfers {
		s.transfers[t.ID] = t
	}
	for _, p := range o.MapProposed {
		s.proposed[p.ID] = p
	}
	if o.Map != nil {
		n.lastMap = o.Map
	}
	n.drained = o.Drained
	for _, r := range o.Replies {
		if s.onReply != nil {
			s.onReply(n, r)
		}
		if r.Response != nil {
			s.responses[r.Response.Id] = append(s.responses[r.Response.Id], r.Response)
		}
	}
}

func (n *simNode) persist(a *logstore.Append) {
	d := n.disk[a.Shard]
	if a.ResetLog {
		d.Entries = nil
	}
	if a.Base != nil {
		d.Base = *a.Base
	}
	if len(a.Entries) > 0 {
		first := a.Entries[0].GetIndex()
		for len(d.Entries) > 0 && d.Entries[len(d.Entries)-1].GetIndex() >= first {
			d.Entries = d.Entries[:len(d.Entries)-1]
		}
		d.Entries = append(d.Entries, a.Entries...)
	}
	for a.TruncateTo > 0 && len(d.Entries) > 0 && d.Entries[0].GetIndex() <= a.TruncateTo {
		d.Entries = d.Entries[1:]
	}
	if a.HardState != nil {
		d.HardState = *a.HardState
	}
}

// leader returns the node that leads the shard and is ready, of the highest
// term; nil if none does.
func (s *sim) leader(id shard.ID) *simNode {
	var best *simNode
	var term uint64
	for _, n := range s.nodes {
		if !n.up || n.paused {
			continue
		}
		if st, ok := n.w.Status(id); ok && st.Ready && st.Term > term {
			best, term = n, st.Term
		}
	}
	return best
}

func (s *sim) waitLeader(id shard.ID) *simNode {
	s.t.Helper()
	s.until(10*second, fmt.Sprintf("leader of shard %d", id), func() bool { return s.leader(id) != nil })
	return s.leader(id)
}

// checkReplicas: all replicas that are up come to the same state.
func (s *sim) checkReplicas() {
	s.t.Helper()
	for _, id := range append([]shard.ID{0}, s.shards...) {
		s.until(15*second, fmt.Sprintf("equal state of shard %d", id), func() bool {
			var applied, hash uint64
			for i, n := range s.nodes {
				a, h, _ := n.w.Hash(id)
				if i == 0 {
					applied, hash = a, h
				} else if a != applied {
					return false
				} else if h != hash {
					s.t.Fatalf("shard %d: replicas differ at index %d", id, a)
				}
			}
			return true
		})
	}
}
