package worker

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// message steps an inbound raft message, if it is one that a member of the
// shard's group may send to this replica. Anything else is dropped and
// counted: raft panics on some of what can't be.
func (w *Worker) message(m *RaftMessage) {
	r := w.byShard[m.Shard]
	if r == nil || m.Msg == nil || !r.sound(m) {
		w.counters.Misdirected++
		if m.SnapshotFile != "" {
			w.out.RemoveFiles = append(w.out.RemoveFiles, m.SnapshotFile)
		}
		return
	}
	delete(w.down, m.Peer) // it speaks, so it is up again
	switch m.Msg.GetType() {
	case raftpb.MsgSnap:
		r.stepSnapshot(m)
	case raftpb.MsgVote, raftpb.MsgPreVote:
		if _, down := w.down[r.node(r.lead)]; down && !r.leading && r.lead != 0 {
			// A follower that heard from its leader just now ignores candidates; this
			// leader's connection broke.
			_ = r.rn.ForgetLeader()
		}
		r.step(m.Msg)
	case raftpb.MsgAppResp:
		r.acknowledged(m.Msg)
		r.step(m.Msg)
	default:
		r.step(m.Msg)
	}
	w.mark(r)
}

// sound checks what raft takes for granted.
func (r *replica) sound(rm *RaftMessage) bool {
	m := rm.Msg
	if m.GetTo() != r.id || m.GetFrom() == r.id || r.node(m.GetFrom()) != rm.Peer || rm.Peer == 0 || m.GetTerm() == 0 {
		return false
	}
	switch m.GetType() {
	case raftpb.MsgVote, raftpb.MsgPreVote, raftpb.MsgVoteResp, raftpb.MsgPreVoteResp, raftpb.MsgTimeoutNow:
		return true
	case raftpb.MsgHeartbeat:
		// A leader tells a follower only of commits that the follower acknowledged.
		return m.GetTerm() < r.term || m.GetCommit() <= r.log.last()
	case raftpb.MsgHeartbeatResp:
		return len(m.GetContext()) == 0 || len(m.GetContext()) == 8
	case raftpb.MsgAppResp:
		return m.GetReject() || m.GetTerm() != r.term || !r.leading || m.GetIndex() <= r.log.last()
	case raftpb.MsgSnap:
		md := m.GetSnapshot().GetMetadata()
		return md.GetIndex() > 0 && md.GetTerm() > 0 && md.GetTerm() <= m.GetTerm() && len(md.GetConfState().GetVoters()) > 0 &&
			rm.SnapshotFile != "" && rm.restoredAt() == md.GetIndex() && (rm.Restored != nil) == (r.m != nil)
	case raftpb.MsgApp:
		return r.soundAppend(m)
	}
	return false
}

func (rm *RaftMessage) restoredAt() uint64 {
	switch {
	case rm.Restored != nil && rm.RestoredMap == nil:
		return rm.Restored.Applied()
	case rm.Restored == nil && rm.RestoredMap != nil:
		return rm.RestoredMap.Applied()
	}
	return 0
}

func (r *replica) soundAppend(m *raftpb.Message) bool {
	index, term := m.GetIndex(), m.GetLogTerm()
	for _, e := range m.GetEntries() {
		index++
		if e.GetIndex() != index || e.GetTerm() < term || e.GetTerm() > m.GetTerm() {
			return false
		}
		term = e.GetTerm()
		if index <= r.commit {
			// Committed entries are the same everywhere.
			if t, err := r.log.Term(index); err == nil && t != term {
				r.w.log(levelError, r, "an append contradicts a committed entry; dropped",
					"index", index, "have_term", t, "got_term", term, "from", m.GetFrom())
				return false
			}
		}
	}
	return true
}

// unreachable: a message to the node was dropped, so raft must not count on it.
func (w *Worker) unreachable(n NodeID) {
	for _, r := range w.replicas {
		if !r.leading {
			continue
		}
		for _, p := range r.peers {
			if p.Node == n && p.Replica != r.id {
				r.rn.ReportUnreachable(p.Replica)
			}
		}
	}
}

// progress of a peer as the leader sees it.
type progress struct {
	match               uint64
	replicating, active bool
	voter               bool
}

func (r *replica) progress(replica uint64) (p progress, ok bool) {
	r.rn.WithProgress(func(id uint64, typ raft.ProgressType, pr trackerProgress) {
		if id == replica {
			p = progress{pr.Match, pr.State == stateReplicate, pr.RecentActive, typ == raft.ProgressTypePeer}
			ok = true
		}
	})
	return p, ok
}
