package worker

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/shard"
)

// Worker runs the replicas given to it. Not safe for concurrent use; every
// method belongs to the goroutine that calls Step.
type Worker struct {
	cfg      Config
	replicas []*replica // in order of shard
	byShard  map[shard.ID]*replica
	// sessions lists the replicas here, leading or not, whose state has a
	// registration of the session.
	sessions map[shard.SessionID][]*replica

	now  Time
	wall int64
	out  *Output
	in   *Input

	dirty  []*replica
	timers timerHeap
	// down holds nodes whose connection broke, until the tick named.
	down map[NodeID]uint64
	tick uint64

	// closed are streams that ended lately: what came by one of them late must
	// not take answers away from its successor. Bounded by maxClosed.
	closed      map[StreamID]struct{}
	closedOrder []StreamID

	outcome   shard.Outcome
	scratch   []byte
	expired   []shard.Registration
	snapshots int // being written
	draining  bool
	counters  Counters
	failed    bool
}

// Counters count since New. Read them between steps.
type Counters struct {
	// Proposals are entries proposed here, Commands the commands in them.
	Proposals, Commands uint64
	// Applied entries and commands, of leaders and followers.
	AppliedEntries, AppliedCommands uint64
	// Expired registrations, as applied on a leader here.
	Expired uint64
	// Renewals confirmed, Reads served, ReadIndex rounds begun.
	Renewals, Reads, Rounds uint64
	// Refused commands because of a limit.
	Refused uint64
	// Misdirected messages: a shard or replica that is not here, a sender that
	// is no member, a type or content that no replica sends.
	Misdirected uint64
	// OutcomeUnknown counts commands whose leader lost its office.
	OutcomeUnknown uint64
	// LeaderChanges counts terms in which a replica here came to lead.
	LeaderChanges uint64
	// SnapshotsWritten, SnapshotsInstalled and SnapshotErrors count files.
	SnapshotsWritten, SnapshotsInstalled, SnapshotErrors uint64
	// DiskStalls counts leaderships given up because of a slow disk.
	DiskStalls uint64
}

// New builds a worker over restored replicas. It refuses impossible
// combinations of stored state, which mean damage.
func New(cfg Config) (*Worker, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	w := &Worker{
		cfg:      cfg,
		byShard:  make(map[shard.ID]*replica, len(cfg.Replicas)),
		sessions: make(map[shard.SessionID][]*replica),
		down:     make(map[NodeID]uint64),
	}
	for i := range cfg.Replicas {
		r, err := newReplica(w, &cfg.Replicas[i])
		if err != nil {
			return nil, fmt.Errorf("worker: shard %d replica %d: %w", cfg.Replicas[i].Shard, cfg.Replicas[i].Replica, err)
		}
		w.replicas = append(w.replicas, r)
		w.byShard[r.shard] = r
	}
	w.cfg.Replicas = nil // their states are not needed any more
	slices.SortFunc(w.replicas, func(a, b *replica) int { return cmp.Compare(a.shard, b.shard) })
	for _, r := range w.replicas {
		r.indexSessions()
		w.mark(r)
	}
	return w, nil
}

// Step takes what happened and fills out with what must be done. It resets
// out, whose slices it reuses; what they point to is not used again.
//
// Order within a step: messages, synced responses, snapshots and reports,
// ticks, renewals and requests, then every replica that has work: proposals
// (one MsgProp), raft's Ready, applies and answers, until nothing is left.
func (w *Worker) Step(in *Input, out *Output) {
	out.reset()
	if w.failed {
		return
	}
	w.in, w.out, w.now, w.wall = in, out, max(w.now, in.Now), in.WallMS
	if in.Stalled > 0 {
		for _, r := range w.replicas {
			r.shiftTime(in.Stalled)
		}
	}
	for i := range in.Messages {
		w.message(&in.Messages[i])
	}
	for i := range in.Synced {
		w.synced(&in.Synced[i])
	}
	for i := range in.SnapshotsWritten {
		w.snapshotWritten(&in.SnapshotsWritten[i])
	}
	for i := range in.SnapshotsSent {
		w.snapshotSent(&in.SnapshotsSent[i])
	}
	for _, n := range in.Unreachable {
		w.unreachable(n)
	}
	for _, n := range in.PeersDown {
		w.peerDown(n)
	}
	for range in.Ticks {
		w.tickAll()
	}
	for _, s := range in.StreamsClosed {
		w.close(s)
		for _, r := range w.replicas {
			r.streamClosed(s)
		}
	}
	for i := range in.Renewals {
		w.renewals(&in.Renewals[i])
	}
	for i := range in.Requests {
		w.request(&in.Requests[i])
	}
	for i := range in.Transfers {
		w.transfer(&in.Transfers[i])
	}
	for i := range in.MapProposals {
		w.mapProposal(&in.MapProposals[i])
	}
	w.drain(in.Draining)
	for r := w.timers.due(w.now); r != nil; r = w.timers.due(w.now) {
		w.mark(r)
	}
	for len(w.dirty) > 0 && !w.failed {
		// A replica may mark others (a joined Locate does not, a freed snapshot slot does).
		batch := w.dirty
		w.dirty = nil
		for _, r := range batch {
			r.dirty = false
			r.work()
			if w.failed {
				break
			}
		}
		if w.dirty == nil {
			w.dirty = batch[:0]
		}
	}
	w.drained()
	out.Next = w.timers.next()
	w.in, w.out = nil, nil
}

func (o *Output) reset() {
	clear(o.Appends)
	clear(o.Messages)
	clear(o.Replies)
	clear(o.Snapshots)
	clear(o.MapProposed)
	*o = Output{Appends: o.Appends[:0], Messages: o.Messages[:0], Replies: o.Replies[:0], Snapshots: o.Snapshots[:0],
		RemoveFiles: o.RemoveFiles[:0], Leaders: o.Leaders[:0], Transfers: o.Transfers[:0], MapProposed: o.MapProposed[:0],
		Logs: o.Logs[:0]}
}

// mark queues a replica for work in this step (or the next one).
func (w *Worker) mark(r *replica) {
	if !r.dirty {
		r.dirty = true
		w.dirty = append(w.dirty, r)
	}
}

// synced delivers what waited for a step's durability.
func (w *Worker) synced(a *logstore.Append) {
	r := w.byShard[a.Shard]
	if r == nil || r.id != a.Replica {
		return
	}
	if a.NeedSync && len(r.syncing) > 0 {
		r.syncing = r.syncing[1:]
	}
	if a.Base != nil {
		r.baseDurable(a.Base)
	}
	for _, m := range a.Responses {
		if m.GetTo() == r.id {
			r.step(m)
		} else {
			r.send(m)
		}
	}
	w.mark(r)
}

// maxClosed bounds the streams remembered as closed.
const maxClosed = 4096

func (w *Worker) close(s StreamID) {
	if w.closed == nil {
		w.closed = map[StreamID]struct{}{}
	}
	w.closed[s] = struct{}{}
	if w.closedOrder = append(w.closedOrder, s); len(w.closedOrder) > maxClosed {
		delete(w.closed, w.closedOrder[0])
		w.closedOrder = w.closedOrder[1:]
	}
}

func (w *Worker) isClosed(s StreamID) bool {
	_, ok := w.closed[s]
	return ok
}

func (w *Worker) tickAll() {
	w.tick++
	for n, until := range w.down {
		if w.tick >= until {
			delete(w.down, n)
		}
	}
	campaigns := w.cfg.Limits.Campaigns
	for _, r := range w.replicas {
		r.rn.Tick()
		r.ticked(&campaigns)
		if r.dirty || !r.rn.HasReady() {
			continue
		}
		w.mark(r)
	}
}

// fatal stops the worker: going on would make replicas differ.
func (w *Worker) fatal(err error) {
	if !w.failed {
		w.failed = true
		w.out.Fatal = err
	}
}

func (w *Worker) log(level int, r *replica, msg string, args ...any) {
	l := Log{Level: level, Message: msg, Args: args}
	if r != nil {
		l.Shard = r.shard
	}
	w.out.Logs = append(w.out.Logs, l)
}

// Levels of Log, as slog has them.
const (
	levelInfo  = 0
	levelWarn  = 4
	levelError = 8
)
