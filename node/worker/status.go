package worker

import (
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3"
)

// Status is one replica as it sees itself.
type Status struct {
	Shard   shard.ID
	Replica uint64
	// Role is FOLLOWER, CANDIDATE, LEADER or LEARNER.
	Role string
	Term uint64
	// Leader is the node believed to lead; 0 for none.
	Leader NodeID
	// Ready: it leads and the first entry of its term has applied.
	Ready                    bool
	Commit, Applied          uint64
	FirstIndex, LastIndex    uint64
	LogBytes                 int64
	Holds, Waits, Sessions   int
	MachineBytes             int64
	Pending, Queued, Waiters int
	// StalledNS is how long the oldest append has waited for its sync.
	StalledNS int64
}

// Status returns the status of a shard's replica; false if it is not here.
// Between steps only, like everything below.
func (w *Worker) Status(id shard.ID) (Status, bool) {
	r := w.byShard[id]
	if r == nil {
		return Status{}, false
	}
	s := Status{Shard: id, Replica: r.id, Term: r.term, Leader: r.node(r.lead), Ready: r.leading && r.ready, Commit: r.commit,
		Applied: r.applied(), FirstIndex: r.log.dummyIndex + 1, LastIndex: r.log.last(), LogBytes: r.log.bytes,
		Pending: len(r.pending), Queued: len(r.queue), Waiters: len(r.waiters), StalledNS: int64(r.stalledFor())}
	switch r.state {
	case raft.StateLeader:
		s.Role = "LEADER"
	case raft.StateFollower:
		s.Role = "FOLLOWER"
		for _, p := range r.peers {
			if p.Replica == r.id && p.Learner {
				s.Role = "LEARNER"
			}
		}
	default:
		s.Role = "CANDIDATE"
	}
	if r.m != nil {
		st := r.m.Stats()
		s.Holds, s.Waits, s.Sessions, s.MachineBytes = int(st.Holds), int(st.Waits), int(st.Registrations), int64(st.Bytes)
	}
	return s, true
}

// Shards lists the shards hosted here, in order.
func (w *Worker) Shards() []shard.ID {
	ids := make([]shard.ID, len(w.replicas))
	for i, r := range w.replicas {
		ids[i] = r.shard
	}
	return ids
}

// Applied returns the applied index of a shard's replica, 0 if it is not here.
func (w *Worker) Applied(id shard.ID) uint64 {
	if r := w.byShard[id]; r != nil {
		return r.applied()
	}
	return 0
}

// Hash returns the hash of a shard's state and the applied index it is of. It
// may take as long as the state is large.
func (w *Worker) Hash(id shard.ID) (applied, hash uint64, ok bool) {
	r := w.byShard[id]
	if r == nil {
		return 0, 0, false
	}
	if r.m != nil {
		return r.m.Applied(), r.m.Hash(), true
	}
	return r.meta.Applied(), r.meta.Hash(), true
}

// Counters returns the counts since New.
func (w *Worker) Counters() Counters { return w.counters }

// Sessions is the number of sessions registered in any shard hosted here.
func (w *Worker) Sessions() int { return len(w.sessions) }
