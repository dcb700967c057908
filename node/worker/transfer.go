package worker

import (
	"cmp"
	"slices"

	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// A planned transfer goes: nothing new is proposed; a Handover with what silent
// registrations have left, as the last entry; once it applied and the target
// has everything, raft's transfer; then whoever leads is reported. Commands that
// arrive meanwhile wait in the queue. If it fails, the old leader goes on, after
// an empty entry.
type transfer struct {
	phase    movePhase
	id       uint64 // 0: the worker's own wish
	to       uint64 // replica
	deadline Time
	handover uint64 // index of the Handover, 0 if none was needed
}

type movePhase uint8

const (
	moveNone movePhase = iota
	// moveHandover: waiting for the Handover to apply and the target to have it.
	moveHandover
	// moveSent: raft's own transfer is in progress.
	moveSent
	// moveWatching: this replica leads no more, the new leader is not known.
	moveWatching
)

// maxHandover bounds the registrations named in one Handover; with more silent
// ones the transfer goes without, and they get a full TTL.
const maxHandover = 16384

func (w *Worker) transfer(t *Transfer) {
	done := func(leader NodeID, err error) {
		w.out.Transfers = append(w.out.Transfers, TransferDone{ID: t.ID, Leader: leader, Err: err})
	}
	r := w.byShard[t.Shard]
	if r == nil {
		done(0, ErrNotLeader)
		return
	}
	leader := r.node(r.lead)
	switch {
	case leader == t.To && leader != 0:
		done(leader, nil)
		return
	case !r.leading || !r.ready:
		done(leader, ErrNotLeader)
		return
	case r.move.phase != moveNone || r.giveUp != 0:
		done(leader, ErrTransferBusy)
		return
	}
	for _, p := range r.peers {
		if p.Node == t.To {
			if err := r.startTransfer(t.ID, p.Replica); err != nil {
				done(leader, err)
			}
			return
		}
	}
	done(leader, ErrTransferTarget)
}

// startTransfer begins to hand the office to a replica.
func (r *replica) startTransfer(id, to uint64) error {
	p, ok := r.progress(to)
	if !ok || !p.voter || !p.replicating || !p.active || to == r.id {
		return ErrTransferTarget
	}
	m := transfer{phase: moveHandover, id: id, to: to, deadline: r.w.now + r.w.electionTimeout()}
	if r.m != nil {
		if c := (shard.Command{Kind: shard.KindHandover, Handover: r.silent()}); len(c.Handover) > 0 && len(c.Handover) <= maxHandover {
			b := shard.Batch{Time: r.leaderTime(), WallMS: r.w.wall, Commands: []shard.Command{c}}
			data := b.AppendTo(nil)
			if r.rn.Step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(r.id), Entries: []*raftpb.Entry{{Data: data}}}) != nil {
				return ErrOverloaded
			}
			r.proposed++
			m.handover, r.blockAcks = r.proposed, r.proposed
			r.load++
			r.loadBytes += cost(&c)
			r.pending = append(r.pending, proposal{index: r.proposed, term: r.term, at: r.w.now, ops: []op{{kind: shard.KindHandover}}, bytes: cost(&c)})
		}
	}
	r.move = m
	r.w.mark(r)
	return nil
}

// silent lists what the registrations have left that were not heard from
// within a third of their TTL.
func (r *replica) silent() []shard.Remaining {
	left := r.leases.Silent(int64(r.w.now))
	out := make([]shard.Remaining, 0, len(left))
	for _, l := range left {
		if v, ok := r.m.Get(l.Registration); ok {
			out = append(out, shard.Remaining{Registration: l.Registration, Epoch: v.Epoch, Left: l.Left})
		}
	}
	return out
}

// advanceTransfer takes the next step of a transfer if it can be taken.
func (r *replica) advanceTransfer() {
	m := &r.move
	switch m.phase {
	case moveHandover:
		if !r.leading {
			return
		}
		if r.w.now >= m.deadline {
			r.failTransfer(ErrTransferTarget)
			return
		}
		if len(r.pending) > 0 || r.applied() < r.proposed {
			return
		}
		if p, ok := r.progress(m.to); !ok || !p.replicating || p.match != r.proposed {
			return
		}
		// Raft gives a transfer up after an election timeout, counted in ticks.
		m.phase, m.deadline = moveSent, r.w.now+r.w.electionTimeout()+2*Time(r.w.cfg.Tick)
		r.rn.TransferLeader(m.to)
	case moveSent:
		if r.w.now < m.deadline {
			return
		}
		if r.rn.BasicStatus().LeadTransferee != raft.None {
			m.deadline = r.w.now + Time(r.w.cfg.Tick)
			return
		}
		r.failTransfer(ErrTransferFailed)
	case moveWatching:
		if r.w.now >= m.deadline {
			r.finishTransfer(0, ErrTransferFailed)
		}
	}
}

// failTransfer: this leader goes on. Acknowledgements resume once an entry
// behind the Handover has applied, so that no later leader can take it for the
// last word.
func (r *replica) failTransfer(err error) {
	r.finishTransfer(r.w.cfg.Node, err)
	r.forceTime = r.blockAcks != 0
}

func (r *replica) finishTransfer(leader NodeID, err error) {
	if r.move.id != 0 {
		r.w.out.Transfers = append(r.w.out.Transfers, TransferDone{ID: r.move.id, Leader: leader, Err: err})
	}
	r.move = transfer{}
	if !r.leading {
		r.failQueue()
	}
}

// loseTransfer: the office ended, by the transfer or otherwise.
func (r *replica) loseTransfer() {
	if r.move.phase != moveNone {
		r.move.phase, r.move.deadline = moveWatching, r.w.now+3*r.w.electionTimeout()
		r.watchTransfer()
	}
}

// watchTransfer ends a transfer once it is known who leads.
func (r *replica) watchTransfer() {
	if r.move.phase != moveWatching || r.lead == raft.None {
		return
	}
	var err error
	if r.lead != r.move.to {
		err = ErrOtherLeader
	}
	r.finishTransfer(r.node(r.lead), err)
}

// ownEntryApplied unblocks acknowledgements (W6).
func (r *replica) ownEntryApplied(e *raftpb.Entry) {
	if r.blockAcks != 0 && e.GetTerm() == r.term && e.GetIndex() > r.blockAcks {
		r.blockAcks = 0
		r.releaseHeld()
	}
}

// giveUpTransfer ends a transfer that can't go on, because nothing applies here.
func (r *replica) giveUpTransfer() {
	if r.move.phase == moveHandover || r.move.phase == moveSent {
		r.failTransfer(ErrTransferFailed)
	}
}

// bestTarget picks a voter to hand the office to: live, replicating, and with
// the longest log; attempt rotates among equals. 0: there is none.
func (r *replica) bestTarget(attempt int) uint64 {
	type candidate struct{ id, match uint64 }
	var cs []candidate
	for _, p := range r.peers {
		if _, down := r.w.down[p.Node]; p.Replica == r.id || p.Learner || down {
			continue
		}
		if pr, ok := r.progress(p.Replica); ok && pr.voter && pr.replicating && pr.active {
			cs = append(cs, candidate{p.Replica, pr.match})
		}
	}
	if len(cs) == 0 {
		return 0
	}
	best := slices.MaxFunc(cs, func(a, b candidate) int { return cmp.Compare(a.match, b.match) }).match
	cs = slices.DeleteFunc(cs, func(c candidate) bool { return c.match < best })
	return cs[(int(r.shard)+attempt)%len(cs)].id
}

const (
	// drainTriesPerPeer bounds the attempts to hand one office over.
	drainTriesPerPeer = 2
	// drainGiveUpTicks is after how many ticks a replica counts as one that
	// can't be handed over.
	drainGiveUpTicks = 50
)

// drain hands every leadership over, a few at a time.
func (w *Worker) drain(on bool) {
	if !on {
		if w.draining {
			for _, r := range w.replicas {
				r.drainTries, r.drainTicks = 0, 0
			}
		}
		w.draining = false
		return
	}
	w.draining = true
	moving := 0
	for _, r := range w.replicas {
		if r.move.phase != moveNone {
			moving++
		}
	}
	for _, r := range w.replicas {
		if !r.leading {
			r.drainTicks = 0
			continue
		}
		r.drainTicks += w.in.Ticks
		if moving >= w.cfg.Limits.Transfers || !r.ready || r.move.phase != moveNone || r.giveUp != 0 || r.hopeless() {
			continue
		}
		to := r.bestTarget(r.drainTries)
		if to == 0 {
			continue
		}
		r.drainTries++
		if r.startTransfer(0, to) == nil {
			moving++
		}
	}
}

func (r *replica) hopeless() bool {
	return r.drainTries >= drainTriesPerPeer*len(r.peers) || r.drainTicks >= drainGiveUpTicks
}

// drained reports the end of draining.
func (w *Worker) drained() {
	if !w.draining {
		return
	}
	for _, r := range w.replicas {
		if r.leading && !(r.hopeless() && r.move.phase == moveNone) || r.move.phase == moveWatching {
			return
		}
	}
	w.out.Drained = true
}
