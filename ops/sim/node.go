package sim

import (
	"fmt"
	"slices"

	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/node/worker"
	"github.com/mortise-lock/mortise/ops/history"
	"github.com/mortise-lock/mortise/placement"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
)

// What node/host does around its workers, with its constants.
const (
	tickEvery  = 100 * ms
	stallAfter = 500 * ms
	ticksMax   = 3
)

// node is what node/host is in production: workers, their disk, the streams of
// gateways and the links to peers.
type node struct {
	w    *World
	p    *proc
	idx  int
	id   worker.NodeID
	disk *disk
	dead bool // its disk is gone, and with it its replicas

	loops    []*loop
	started  Time // on the clock that stands still
	tickedAt Time // on the local clock
	rest     Time
	links    [][classes]*raftLink // by node, nil for itself
	leaders  []worker.LeaderChange
	draining bool
	drainEnd Time
	received int // names of snapshots

	streams    []*nodeStream
	lastStream worker.StreamID

	// crashIn, when above 0, counts carried out steps until the process dies
	// after the stage crashStage of one.
	crashIn, crashStage int
	// votes, when above 0, counts votes that it gives until it dies.
	votes int
	// onExpire, if set, runs when a proposal to expire somebody has left.
	onExpire func(shard.ID)
}

// loop runs one worker.
type loop struct {
	n       *node
	w       *worker.Worker
	in      *worker.Input
	spare   *worker.Input
	out     worker.Output
	armed   bool
	wakeAt  Time // when the timer is set for; 0: it is not
	last    worker.Time
	drained bool
	applied uint64
	// seen is the applied index last told to the history, by replica of the loop.
	seen []uint64
	inc  uint64
}

type (
	stepEvent struct{ *loop }
	wakeEvent struct{ *loop }
	tickEvent struct{ *node }
)

func (e stepEvent) fire(inc uint64) {
	l := e.loop
	if l.inc != inc || l.n.p.inc != inc {
		return
	}
	l.armed = false
	if l.n.p.paused {
		l.armed = true
		l.n.p.whenAwake(true, func() { l.armed = false; l.step() })
		return
	}
	l.step()
}

func (e wakeEvent) fire(inc uint64) {
	l := e.loop
	if l.inc != inc || l.n.p.inc != inc || l.wakeAt == 0 || l.n.w.now < l.wakeAt {
		return
	}
	l.wakeAt = 0
	l.wake()
}

func (e tickEvent) fire(inc uint64) {
	n := e.node
	if n.p.inc != inc {
		return
	}
	if n.p.paused {
		n.p.whenAwake(true, n.tick)
		return
	}
	n.tick()
}

func (n *node) tick() {
	at := n.p.local()
	n.rest += at - n.tickedAt
	n.tickedAt = at
	ticks := int(n.rest / tickEvery)
	n.rest -= Time(ticks) * tickEvery
	for _, l := range n.loops {
		l.in.Ticks += ticks
		l.wake()
	}
	n.w.q.push(n.p.at(at+tickEvery), tickEvent{n}, n.p.inc)
	n.beat()
	if n.draining && n.drainEnd <= at {
		n.stopped()
	}
}

// running: it has replicas that can be reached.
func (n *node) running() bool { return n.p.up && len(n.loops) > 0 }

// wake makes the loop step soon.
func (l *loop) wake() {
	if l.armed {
		return
	}
	l.armed = true
	l.n.w.q.push(l.n.w.now+10*us+l.n.w.upTo(l.n.w.cfg.StepTime), stepEvent{l}, l.inc)
}

func (l *loop) step() {
	n := l.n
	in := l.in
	l.in, l.spare = l.spare, in
	in.Now, in.WallMS = worker.Time(n.p.local()), n.p.wallMS()
	if gap := Time(in.Now - l.last); gap > stallAfter {
		in.Stalled = int64(gap - tickEvery)
		n.w.stats.Stalls++
	}
	l.last = in.Now
	in.Ticks = min(in.Ticks, ticksMax)
	in.Draining = n.draining
	out := &l.out
	l.w.Step(in, out)
	n.w.stats.Steps++
	n.w.mix(uint64(n.idx)<<56 ^ uint64(len(out.Messages))<<40 ^ uint64(len(out.Appends))<<24 ^ uint64(len(out.Replies))<<8 ^ uint64(len(out.Logs)))
	stage := -1
	if n.crashIn > 0 {
		if n.crashIn--; n.crashIn == 0 {
			stage = n.crashStage
		}
	}
	inc := l.inc
	l.carryOut(out, stage)
	if n.p.inc != inc {
		return // it died in the middle
	}
	resetInput(in)
	if out.Next != 0 {
		l.setTimer(n.p.at(Time(out.Next)))
	}
}

func (l *loop) setTimer(at Time) {
	at = max(at, l.n.w.now)
	if l.wakeAt != 0 && l.wakeAt <= at {
		return // it looks again then
	}
	l.wakeAt = at
	l.n.w.q.push(at, wakeEvent{l}, l.inc)
}

func resetInput(in *worker.Input) {
	clear(in.Messages)
	clear(in.Requests)
	clear(in.Renewals)
	clear(in.Synced)
	clear(in.MapProposals)
	*in = worker.Input{Messages: in.Messages[:0], Requests: in.Requests[:0], Renewals: in.Renewals[:0],
		StreamsClosed: in.StreamsClosed[:0], Synced: in.Synced[:0]}
}

// Stages of carrying out, after which a process may die.
const (
	stageStepped = iota
	stageSent
	stageSubmitted
	stageAnswered
	stages
)

// carryOut does what the worker decided, in the order of node/host.
func (l *loop) carryOut(out *worker.Output, dieAfter int) {
	n := l.n
	die := func(stage int) bool {
		if stage != dieAfter {
			return false
		}
		n.w.count(FaultCrashInStep)
		n.crash(false)
		return true
	}
	if n.w.tracing() {
		l.trace(out)
	}
	if die(stageStepped) {
		return
	}
	if len(out.Messages) > 0 {
		n.sendAll(out.Messages)
	}
	if die(stageSent) || n.voted(out.Messages) {
		return
	}
	if n.onExpire != nil {
		if id, ok := expires(out.Messages); ok {
			n.onExpire(id)
			return
		}
	}
	if len(out.Appends) > 0 {
		n.disk.submit(out.Appends)
	}
	if die(stageSubmitted) {
		return
	}
	if len(out.Replies) > 0 {
		n.reply(out.Replies)
	}
	if len(out.Leaders) > 0 {
		n.leadersChanged(out.Leaders)
	}
	if die(stageAnswered) {
		return
	}
	for i := range out.Snapshots {
		l.writeSnapshot(out.Snapshots[i])
	}
	for _, f := range out.RemoveFiles {
		n.p.later(n.w.upTo(100*ms), func() {
			if err := n.disk.files.Remove(f); err != nil {
				n.w.violate("snapshot", err.Error())
			}
		})
	}
	for _, t := range out.Transfers {
		if t.Err == nil {
			n.w.stats.Transfers++
		}
	}
	l.drained = out.Drained
	l.sample()
	if out.Fatal != nil {
		n.w.violate("fatal", fmt.Sprintf("node %d: %v", n.id, out.Fatal))
		return
	}
	if n.draining && !slices.ContainsFunc(n.loops, func(l *loop) bool { return !l.drained }) {
		n.stopped()
	}
}

// voted: it gave the vote after which it is to die, for a moment.
func (n *node) voted(msgs []worker.RaftMessage) bool {
	for i := range msgs {
		if m := msgs[i].Msg; n.votes > 0 && m.GetType() == raftpb.MsgVoteResp && !m.GetReject() {
			if n.votes--; n.votes == 0 {
				n.crash(false)
				n.w.stay(ms+n.w.upTo(60*ms), n.restart)
				return true
			}
		}
	}
	return false
}

// sample tells the history the state's hash at some indexes, the same on all
// nodes.
func (l *loop) sample() {
	c := l.w.Counters()
	if c.AppliedEntries == l.applied {
		return
	}
	l.applied = c.AppliedEntries
	for i, id := range l.w.Shards() {
		at := l.w.Applied(id)
		if at == l.seen[i] {
			continue
		}
		l.seen[i] = at
		if at%8 == 0 {
			_, hash, _ := l.w.Hash(id)
			l.n.w.record(history.Event{Kind: history.Applied, Client: -1, Node: l.n.idx, Shard: uint32(id), Index: at, Hash: hash})
		}
	}
}

// sendAll groups messages by peer and class.
func (n *node) sendAll(msgs []worker.RaftMessage) {
	w := n.w
	for i := range w.outbox {
		for c := range w.outbox[i] {
			w.outbox[i][c] = w.outbox[i][c][:0]
		}
	}
	for i := range msgs {
		m := &msgs[i]
		if m.Msg.GetType() == raftpb.MsgSnap {
			n.sendSnapshot(*m)
			continue
		}
		c := classControl
		if len(m.Msg.GetEntries()) > 0 {
			c = classAppend
		}
		w.outbox[m.Peer-1][c] = append(w.outbox[m.Peer-1][c], *m)
	}
	for i := range w.outbox {
		for c := range w.outbox[i] {
			if b := w.outbox[i][c]; len(b) > 0 {
				n.links[i][c].send(b)
			}
		}
	}
}

// deliver takes inbound messages to their workers.
func (n *node) deliver(b *raftBatch) {
	for i := range b.msgs {
		l := n.loopOf(b.msgs[i].Shard)
		l.in.Messages = append(l.in.Messages, b.msgs[i])
		l.wake()
	}
	n.w.freeBatch(b)
}

func (n *node) unreachable(id worker.NodeID) {
	for _, l := range n.loops {
		l.in.Unreachable = append(l.in.Unreachable, id)
		l.wake()
	}
}

func (n *node) loopOf(id shard.ID) *loop { return n.loops[int(id)%len(n.loops)] }

func (n *node) synced(steps []logstore.Append) {
	for _, a := range steps {
		l := n.loopOf(a.Shard)
		l.in.Synced = append(l.in.Synced, a)
		l.wake()
	}
}

// restore reads a file into a state machine of its shard's kind.
func (n *node) restore(id shard.ID, file string) (lock *shard.Machine, meta *placement.Machine, err error) {
	r, err := n.disk.files.Open(file)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	if id == 0 {
		meta, err = placement.Restore(r)
	} else {
		lock, err = shard.Restore(r)
	}
	return lock, meta, err
}

// bootstrap writes what a node of a new cluster begins with.
func (n *node) bootstrap(m *placementv1.Map) error {
	var steps []logstore.Append
	for _, s := range m.Shards {
		i := slices.IndexFunc(s.Replicas, func(r *placementv1.Replica) bool { return r.Node == uint64(n.id) })
		if i < 0 {
			continue
		}
		a, err := n.initialState(m, s, s.Replicas[i].Id)
		if err != nil {
			return err
		}
		steps = append(steps, a)
	}
	n.disk.store.SetOnSynced(nil)
	n.disk.store.Submit(steps)
	n.disk.store.Sync(-1)
	n.disk.store.SetOnSynced(n.synced)
	return nil
}

// Where the log of a new cluster's replicas begins; as in node/host.
const (
	firstIndex = 10
	firstTerm  = 5
	firstToken = 1000
)

func (n *node) initialState(m *placementv1.Map, s *placementv1.Shard, replica uint64) (logstore.Append, error) {
	name := fmt.Sprintf("%d-%d-%d.snap", s.Id, replica, firstIndex)
	a := logstore.Append{Shard: shard.ID(s.Id), Replica: replica, HardState: &logstore.HardState{Term: firstTerm, Commit: firstIndex},
		Base: &logstore.Base{Index: firstIndex, Term: firstTerm, ConfState: new(raftpb.ConfState), Snapshot: name}, ResetLog: true}
	for _, r := range s.Replicas {
		a.Base.ConfState.Voters = append(a.Base.ConfState.Voters, r.Id)
	}
	w, err := n.disk.files.Create(name, a.Shard, firstIndex)
	if err != nil {
		return a, err
	}
	if s.Id == 0 {
		machine, err := placement.NewMachine(m, firstIndex)
		if err != nil {
			return a, err
		}
		_, err = machine.Snapshot().WriteTo(w)
		if err != nil {
			return a, err
		}
	} else {
		sn := shard.New(shard.Config{ID: a.Shard, Owns: placement.Selectors(s), Floor: firstToken, Index: firstIndex, Term: firstTerm}).Snapshot()
		defer sn.Close()
		if _, err := sn.WriteTo(w); err != nil {
			return a, err
		}
	}
	_, err = w.Commit()
	return a, err
}
