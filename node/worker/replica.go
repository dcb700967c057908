package worker

import (
	"fmt"
	"time"

	"github.com/mortise-lock/mortise/node/lease"
	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/placement"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// replica is one member of one shard's group. Fields under "leader" count only
// while leading is set.
type replica struct {
	w     *Worker
	shard shard.ID
	id    uint64
	peers []Peer
	rn    *raft.RawNode
	log   *log

	// Exactly one of these is set.
	m    *shard.Machine
	meta *placement.Machine

	dirty    bool
	wake     Time // 0: not in the heap
	timerPos int

	// What raft last said in a Ready.
	term     uint64
	commit   uint64
	lead     uint64
	state    raft.StateType
	reported LeaderChange

	// stored is the hard state last submitted; its commit index may lag (W11).
	stored logstore.HardState
	// syncing holds when each append was submitted that waits for its sync.
	syncing []Time
	// lastHandover is the newest Handover that applied here.
	lastHandover handover
	early        earlyCampaign
	snap         snapshotState
	incoming     *RaftMessage // MsgSnap being stepped

	// move is a planned transfer; it outlives the office until the new leader
	// is known.
	move       transfer
	drainTries int
	drainTicks int

	// Leader.
	leading bool
	// firstOwn is the index of the first entry of this leader's term; ready is
	// set once it has applied (W3).
	firstOwn uint64
	ready    bool
	// readyAt and clock make leader time: clock.base + (now - clock.at).
	clock leaderClock

	queue      []queued
	own        []own
	pending    []proposal
	load       int // commands in queue and pending
	loadBytes  int
	proposed   uint64 // last index proposed, >= log.last()
	dueInLog   bool   // a batch of Due commands is proposed and has not applied
	timeLogged Time

	leases  *lease.Table
	former  formerOffice
	streams map[shard.Registration]StreamID
	waiters map[waitKey]waiter
	reads   readQueue
	news    map[uint64]*followerNews // by replica
	// blockAcks is the index of a Handover after which no entry of this term has
	// applied yet (W6); 0: none.
	blockAcks uint64
	forceTime bool // log an empty batch
	// giveUp is since when this leader tries to get rid of its office because
	// of a stalled disk; muted: it sends nothing to followers any more.
	giveUp Time
	muted  bool
}

type handover struct {
	index uint64
	left  []shard.Remaining
}

type leaderClock struct {
	base shard.LeaderTime
	at   Time
}

func newReplica(w *Worker, c *Replica) (*replica, error) {
	r := &replica{w: w, shard: c.Shard, id: c.Replica, m: c.Machine, meta: c.Meta, log: newLog(&c.State)}
	r.peers = append(r.peers, c.Peers...)
	rn, err := raft.NewRawNode(&raft.Config{
		ID:                        r.id,
		ElectionTick:              w.cfg.ElectionTick,
		HeartbeatTick:             w.cfg.HeartbeatTick,
		Storage:                   r.log,
		Applied:                   r.applied(),
		AsyncStorageWrites:        true,
		MaxSizePerMsg:             1 << 20,
		MaxCommittedSizePerReady:  4 << 20,
		MaxUncommittedEntriesSize: 64 << 20, // above what Limits admit
		MaxInflightMsgs:           256,
		MaxInflightBytes:          8 << 20,
		CheckQuorum:               true,
		PreVote:                   true,
		ReadOnlyOption:            raft.ReadOnlySafe,
		Logger:                    raftLogger{},
		DisableProposalForwarding: true,
		StepDownOnRemoval:         true,
	})
	if err != nil {
		return nil, err
	}
	r.rn = rn
	r.term, r.commit = r.log.hard.Term, r.log.hard.Commit
	r.snap.bytes = r.log.bytes
	return r, nil
}

func (r *replica) applied() uint64 {
	if r.m != nil {
		return r.m.Applied()
	}
	return r.meta.Applied()
}

// node returns where a replica of this shard lives, 0 if it is no member.
func (r *replica) node(replica uint64) NodeID {
	for _, p := range r.peers {
		if p.Replica == replica {
			return p.Node
		}
	}
	return 0
}

// step hands raft a message that is known to be sound. Errors mean that raft
// ignored it.
func (r *replica) step(m *raftpb.Message) { _ = r.rn.Step(m) }

// work does everything that can be done now.
func (r *replica) work() {
	for {
		r.checkLeases()
		r.advanceTransfer()
		r.propose()
		r.beginRound()
		if !r.rn.HasReady() {
			break
		}
		if r.handleReady(); r.w.failed {
			return
		}
	}
	r.maybeSnapshot()
	r.setTimer()
}

// handleReady carries out one Ready.
func (r *replica) handleReady() {
	rd := r.rn.Ready()
	if !raft.IsEmptyHardState(rd.HardState) {
		r.term, r.commit = rd.HardState.GetTerm(), rd.HardState.GetCommit()
		r.log.hard = logstore.HardState{Term: r.term, Vote: rd.HardState.GetVote(), Commit: r.commit}
	}
	if rd.SoftState != nil {
		r.lead, r.state = rd.SoftState.Lead, rd.SoftState.RaftState
	}
	lost := r.leading && r.state != raft.StateLeader
	r.watchTransfer()
	if !r.leading && r.state == raft.StateLeader {
		r.beginOffice(rd.Entries)
	}
	for _, m := range rd.Messages {
		switch m.GetTo() {
		case raft.LocalAppendThread:
			r.storeAppend(m)
		case raft.LocalApplyThread:
			r.apply(m)
		default:
			r.send(m)
		}
		if r.w.failed {
			return
		}
	}
	if lost {
		// After the applies: what committed together with the end of the office is
		// still answered in full.
		r.endOffice()
	}
	r.confirm(rd.ReadStates)
	r.serveReads()
	r.reportLeader()
}

// storeAppend turns a MsgStorageAppend into a durable step. Its responses are
// delivered by synced only.
func (r *replica) storeAppend(m *raftpb.Message) {
	a := logstore.Append{Shard: r.shard, Replica: r.id, Entries: m.GetEntries(), Responses: m.GetResponses(),
		NeedSync: len(m.GetResponses()) > 0}
	if m.Term != nil || m.Vote != nil || m.Commit != nil {
		a.HardState = &logstore.HardState{Term: m.GetTerm(), Vote: m.GetVote(), Commit: m.GetCommit()}
		if mutantForgottenVote {
			a.HardState.Vote = 0
		}
	}
	if !raft.IsEmptySnap(m.GetSnapshot()) {
		r.install(m.GetSnapshot(), &a)
	} else if h := a.HardState; len(a.Entries) == 0 && !a.NeedSync && h != nil && h.Term == r.stored.Term && h.Vote == r.stored.Vote {
		return // only the commit index, which goes with the next append and with every base (W11)
	}
	r.log.append(m.GetEntries())
	if r.leading && r.state == raft.StateLeader && r.log.last() != r.proposed {
		panic(fmt.Sprintf("worker: shard %d leads with a log that ends at %d, and counted %d", r.shard, r.log.last(), r.proposed))
	}
	for _, e := range m.GetEntries() {
		r.snap.bytes += size(e)
	}
	r.submit(a)
}

func (r *replica) submit(a logstore.Append) {
	if mutantAnswerEarly {
		for _, m := range a.Responses {
			if m.GetTo() != r.id {
				r.send(m)
			}
		}
	}
	if a.NeedSync {
		r.syncing = append(r.syncing, r.w.now)
	}
	if a.HardState != nil {
		r.stored = *a.HardState
	}
	r.w.out.Appends = append(r.w.out.Appends, a)
}

// send hands a message for a peer to the transport.
func (r *replica) send(m *raftpb.Message) {
	if r.muted && (m.GetType() == raftpb.MsgApp || m.GetType() == raftpb.MsgHeartbeat) {
		return
	}
	if m.GetType() == raftpb.MsgApp && len(m.GetEntries()) == 0 && r.onlyCommit(m) {
		return
	}
	if m.GetType() == raftpb.MsgReadIndex {
		// Raft lost the office in this very step and passes the round on; here it
		// ends with the office.
		return
	}
	node := r.node(m.GetTo())
	if node == 0 {
		r.w.counters.Misdirected++
		return
	}
	out := RaftMessage{Shard: r.shard, Peer: node, Msg: m}
	if m.GetType() == raftpb.MsgSnap && !r.attachSnapshot(&out) {
		return
	}
	r.w.out.Messages = append(r.w.out.Messages, out)
}

// tellCommit is how often a follower is told of commits by messages of their
// own. The next append and every heartbeat tell them, too, and nobody waits for
// a follower to apply.
const tellCommit = Time(100 * time.Millisecond)

// followerNews is what a leader's replica knows of a follower in this term.
type followerNews struct {
	acked uint64 // the largest index that it acknowledged
	told  Time   // when an append without entries last went to it
}

// onlyCommit reports whether an append without entries can be spared: the
// follower has acknowledged the log up to there, so it would learn nothing but
// the commit index, and was told one a moment ago. One in tellCommit goes out,
// so that raft's probes end.
func (r *replica) onlyCommit(m *raftpb.Message) bool {
	f := r.news[m.GetTo()]
	if f == nil || f.acked != m.GetIndex() {
		return false
	}
	if r.w.now-f.told < tellCommit {
		return true
	}
	f.told = r.w.now
	return false
}

// acknowledged notes a follower's MsgAppResp.
func (r *replica) acknowledged(m *raftpb.Message) {
	if !r.leading || m.GetReject() || m.GetTerm() != r.term {
		return
	}
	f := r.news[m.GetFrom()]
	if f == nil {
		f = &followerNews{told: r.w.now - tellCommit}
		r.news[m.GetFrom()] = f
	}
	f.acked = max(f.acked, m.GetIndex())
}

// reportLeader tells the host when what it believes about the shard's leader
// is out of date.
func (r *replica) reportLeader() {
	now := LeaderChange{Shard: r.shard, Term: r.term, Leader: r.node(r.lead), Ready: r.leading && r.ready}
	if now == r.reported {
		return
	}
	old := r.reported
	r.reported = now
	r.w.out.Leaders = append(r.w.out.Leaders, now)
	if old.Leader != now.Leader || old.Term != now.Term {
		r.w.log(levelInfo, r, "leader changed", "term", now.Term, "leader", uint64(now.Leader), "replica", r.id)
	}
}

// beginOffice: raft made this replica leader; the empty entry of its term is
// among entries.
func (r *replica) beginOffice(entries []*raftpb.Entry) {
	r.leading, r.ready = true, false
	r.firstOwn = 0
	for _, e := range entries {
		if e.GetTerm() == r.term {
			r.firstOwn = e.GetIndex()
			break
		}
	}
	if r.firstOwn == 0 {
		panic(fmt.Sprintf("worker: shard %d leads term %d without an entry of its own", r.shard, r.term))
	}
	r.proposed = entries[len(entries)-1].GetIndex()
	r.early = earlyCampaign{}
	r.clock = leaderClock{at: r.w.now}
	if r.m != nil {
		r.clock.base = r.m.Time()
	}
	r.news = make(map[uint64]*followerNews)
	r.waiters = make(map[waitKey]waiter)
	r.streams = make(map[shard.Registration]StreamID)
	r.timeLogged = r.w.now
	r.w.counters.LeaderChanges++
}

// becomeReady: the first entry of this leader's term has applied, so the state
// contains everything committed before. Every registration gets one full TTL,
// unless the former leader handed over what it had left.
func (r *replica) becomeReady() {
	r.ready = true
	if r.m == nil {
		return
	}
	now := int64(r.w.now)
	if t := r.m.Time(); t > r.leaderTime() {
		r.clock = leaderClock{base: t, at: r.w.now}
	}
	r.leases = lease.NewTable(int(r.m.Stats().Registrations))
	r.m.Registrations(func(v shard.RegistrationView) bool {
		r.leases.Grant(v.Registration, v.TTL, now)
		return true
	})
	if mutantOldOffice && r.former.table() != nil {
		r.leases = r.former.table()
	}
	if h := r.lastHandover; h.index != 0 && (h.index == r.firstOwn-1 || mutantStaleHandover) {
		for _, l := range h.left {
			if v, ok := r.m.Get(l.Registration); ok && v.Epoch == l.Epoch {
				r.leases.Hand(l.Registration, l.Left, now)
			}
		}
	}
	r.releaseHeld()
}

// endOffice: this replica leads no longer. Everything that waits for it is
// told so; nothing of it stays.
func (r *replica) endOffice() {
	r.leading, r.ready = false, false
	r.failPending()
	r.failWaiters()
	r.failReads()
	r.loseTransfer()
	if r.move.phase != moveWatching {
		r.failQueue()
	} // else as soon as it can be said who leads now
	r.own = nil
	r.former.keep(r.leases)
	r.leases, r.streams, r.waiters, r.news = nil, nil, nil, nil
	r.dueInLog = false
	r.giveUp, r.muted = 0, false
	r.firstOwn, r.blockAcks, r.forceTime = 0, 0, false
}

// leaderTime continues from the largest time in the log.
func (r *replica) leaderTime() shard.LeaderTime {
	return r.clock.base + shard.LeaderTime(r.w.now-r.clock.at)
}

// shiftTime: the whole node stood still for d.
func (r *replica) shiftTime(d int64) {
	if r.leases != nil {
		r.leases.Shift(d)
	}
	for i := range r.syncing {
		r.syncing[i] += Time(d)
	}
}
