package worker

import (
	"fmt"

	"github.com/mortise-lock/mortise/placement"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
)

// op is who waits for a command's result.
type op struct {
	stream StreamID // 0: the worker itself
	id     uint64
	kind   shard.Kind
	reg    shard.Registration
	acq    shard.AcquireID
	// mapID answers a MapProposal.
	mapID uint64
}

// queued is a command that waits for its proposal.
type queued struct {
	op  op
	cmd shard.Command
	// data is a whole entry's content instead (meta shard).
	data []byte
}

// own is a command of the leader itself; they go before those of sessions.
type own = queued

// proposal is an entry proposed in this term that has not applied.
//
// Pending ops are found by (index, term): an entry that applies at the index
// with another term is somebody else's, and ours is gone.
type proposal struct {
	index uint64
	term  uint64
	at    Time
	ops   []op
	bytes int
}

func cost(c *shard.Command) int {
	return 96 + len(c.Name) + len(c.Client) + len(c.By) + len(c.Why) + 24*len(c.Handover)
}

// admit queues a command, or refuses it.
func (r *replica) admit(stream StreamID, id uint64, c *shard.Command) {
	if !r.leading {
		r.notLeader(stream, id)
		return
	}
	commands, bytes := r.w.cfg.Limits.PendingCommands, r.w.cfg.Limits.PendingBytes
	if c.Kind != shard.KindAcquire {
		// What makes room is let in longer.
		commands, bytes = commands+commands/4, bytes+bytes/4
	}
	switch {
	case r.load >= commands:
		r.overloaded(stream, id, "pending_commands", r.w.cfg.Limits.PendingCommands)
		return
	case r.loadBytes >= bytes:
		r.overloaded(stream, id, "pending_bytes", r.w.cfg.Limits.PendingBytes)
		return
	}
	r.load++
	r.loadBytes += cost(c)
	r.queue = append(r.queue, queued{op: op{stream: stream, id: id, kind: c.Kind, reg: c.Registration, acq: c.Acquire}, cmd: *c})
	r.w.mark(r)
}

// canPropose: raft drops proposals during a transfer, a handover must stay the
// last entry, and a leader that gives up takes nothing more in.
func (r *replica) canPropose() bool {
	return r.leading && r.move.phase == moveNone && r.giveUp == 0 && len(r.pending) < r.w.cfg.Limits.InflightEntries
}

// propose puts everything that waits into one MsgProp: usually one entry.
func (r *replica) propose() {
	if !r.canPropose() {
		return
	}
	if r.m == nil {
		r.proposeMap()
		return
	}
	r.takeDue()
	if len(r.queue) == 0 && len(r.own) == 0 && !r.timeToLog() {
		return
	}
	now := r.leaderTime()
	l := &r.w.cfg.Limits
	r.w.scratch = r.w.scratch[:0]
	var entries []*raftpb.Entry
	var made []proposal
	var ends []int
	batch := shard.Batch{Time: now, WallMS: r.w.wall}
	ownLeft, queueLeft := r.own, r.queue
	for {
		p := proposal{term: r.term, at: r.w.now}
		batch.Commands = batch.Commands[:0]
		take := func(qs *[]queued) {
			n := 0
			for n < len(*qs) && len(batch.Commands) < l.BatchCommands && (p.bytes < l.BatchBytes || len(batch.Commands) == 0) {
				q := &(*qs)[n]
				p.bytes += cost(&q.cmd)
				p.ops = append(p.ops, q.op)
				batch.Commands = append(batch.Commands, q.cmd)
				n++
			}
			*qs = (*qs)[n:]
		}
		p.ops = make([]op, 0, min(len(ownLeft)+len(queueLeft), l.BatchCommands))
		take(&ownLeft)
		take(&queueLeft)
		r.w.scratch = batch.AppendTo(r.w.scratch)
		ends = append(ends, len(r.w.scratch))
		p.index = r.proposed + uint64(len(made)) + 1
		made = append(made, p)
		if len(ownLeft)+len(queueLeft) == 0 || len(r.pending)+len(made) >= l.InflightEntries {
			break
		}
	}
	// raft copies what it is given, so the scratch buffer serves again
	// (TestProposalsAreCopied holds raft to it).
	from := 0
	for _, end := range ends {
		entries = append(entries, &raftpb.Entry{Data: r.w.scratch[from:end:end]})
		from = end
	}
	if err := r.rn.Step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(r.id), Entries: entries}); err != nil {
		// Dropped for certain. Either this leader is none any more, and the next
		// Ready says so; or raft's own limit was reached, and it is tried again.
		return
	}
	r.proposed += uint64(len(made))
	r.pending = append(r.pending, made...)
	r.timeLogged, r.forceTime = r.w.now, false
	r.w.counters.Proposals += uint64(len(made))
	for i := range made {
		r.w.counters.Commands += uint64(len(made[i].ops))
	}
	r.own = compact(r.own, ownLeft)
	r.queue = compact(r.queue, queueLeft)
}

// compact moves what is left to the front and lets go of the rest.
func compact(all, left []queued) []queued {
	n := copy(all, left)
	clear(all[n:])
	if n == 0 && cap(all) > 4096 {
		return nil
	}
	return all[:n]
}

// proposeMap proposes map commands, one per entry.
func (r *replica) proposeMap() {
	for len(r.queue) > 0 && r.canPropose() {
		q := r.queue[0]
		if r.rn.Step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(r.id), Entries: []*raftpb.Entry{{Data: q.data}}}) != nil {
			return
		}
		r.proposed++
		r.pending = append(r.pending, proposal{index: r.proposed, term: r.term, at: r.w.now, ops: []op{q.op}, bytes: len(q.data)})
		r.w.counters.Proposals++
		r.queue = compact(r.queue, r.queue[1:])
	}
}

// mapProposal takes a change of the placement map in.
func (w *Worker) mapProposal(p *MapProposal) {
	r := w.byShard[0]
	switch {
	case r == nil || r.meta == nil || !r.leading:
		w.out.MapProposed = append(w.out.MapProposed, MapProposed{ID: p.ID, Err: ErrNotLeader})
	case len(r.queue) >= maxMapQueue:
		w.out.MapProposed = append(w.out.MapProposed, MapProposed{ID: p.ID, Err: ErrOverloaded})
	default:
		// What can't be applied must not come into the log: every replica would
		// stop at it, at each start again.
		if _, err := placement.DecodeCommand(p.Data); err != nil {
			w.out.MapProposed = append(w.out.MapProposed, MapProposed{ID: p.ID, Err: fmt.Errorf("%w: %w", ErrInvalid, err)})
			return
		}
		r.load++
		r.loadBytes += len(p.Data)
		r.queue = append(r.queue, queued{op: op{mapID: p.ID}, data: p.Data})
		w.mark(r)
	}
}

// maxMapQueue bounds the map changes that wait for their proposal.
const maxMapQueue = 256

// failPending answers what was proposed and has not applied: it may still
// commit.
func (r *replica) failPending() {
	for i := range r.pending {
		for j := range r.pending[i].ops {
			r.failOp(&r.pending[i].ops[j], false)
		}
	}
	r.pending, r.load, r.loadBytes = nil, 0, 0
}

// failQueue answers what was never proposed.
func (r *replica) failQueue() {
	for i := range r.queue {
		r.failOp(&r.queue[i].op, true)
	}
	r.queue, r.load, r.loadBytes = nil, 0, 0
}

func (r *replica) failOp(o *op, notProposed bool) {
	switch {
	case o.mapID != 0:
		err := ErrOutcomeUnknown
		if notProposed {
			err = ErrNotLeader
		}
		r.w.out.MapProposed = append(r.w.out.MapProposed, MapProposed{ID: o.mapID, Err: err})
	case o.stream == 0:
	case notProposed:
		r.notLeader(o.stream, o.id)
	default:
		r.outcomeUnknown(o.stream, o.id)
	}
}
