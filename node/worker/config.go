package worker

import (
	"fmt"
	"math"
	"time"

	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/placement"
	"github.com/mortise-lock/mortise/shard"
)

// Config is what a worker is made of. New copies what it needs.
type Config struct {
	Node NodeID
	// Replicas are those that this worker hosts, in any order; a shard at most
	// once.
	Replicas []Replica

	// Tick is the length of a raft tick; unset: 100 ms.
	Tick time.Duration
	// ElectionTick and HeartbeatTick count ticks; unset: 10 and 2. The election
	// timeout is drawn from [ElectionTick, 2*ElectionTick).
	ElectionTick, HeartbeatTick int
	// DiskStall is how long an append may wait for its sync before this node
	// gives up the leadership of the shard; unset: 2 s.
	DiskStall time.Duration

	Limits    Limits
	Snapshots SnapshotPolicy
}

// Replica is one member of one shard's group that lives here.
type Replica struct {
	Shard   shard.ID
	Replica uint64
	// Peers are all members by the placement map, this one included, in map
	// order.
	Peers []Peer
	// State is what the log store loaded.
	State logstore.ReplicaState
	// Machine is the state restored from State.Base.Snapshot, for lock shards;
	// Meta the same for shard 0. Exactly one is set. The worker owns it from
	// now on.
	Machine *shard.Machine
	Meta    *placement.Machine
}

// Peer is a member of a group.
type Peer struct {
	Replica uint64
	Node    NodeID
	Learner bool
}

// Limits bound what a worker holds per shard. Unset ones have defaults.
type Limits struct {
	// PendingCommands and PendingBytes bound the commands of one shard that
	// wait for their proposal or for their entry to apply. Acquires are refused
	// from here on, all other commands from 1.25 times that. Unset: 32,768 and
	// 16 MiB.
	PendingCommands, PendingBytes int
	// Reads bounds the reads and renewals of one shard that wait for a
	// confirmation; unset: 65,536.
	Reads int
	// BatchCommands and BatchBytes bound one log entry; unset: 4,096 and
	// 256 KiB.
	BatchCommands, BatchBytes int
	// InflightEntries bounds the entries of a shard that were proposed here and
	// have not applied; what comes meanwhile gathers for the next one. Unset: 8.
	InflightEntries int
	// ExpirePerEntry bounds the registrations that one entry ends; unset: 512.
	ExpirePerEntry int
	// Transfers bounds the leader transfers of a draining worker at a time;
	// unset: 8.
	Transfers int
	// Campaigns bounds the early campaigns begun in one tick; unset: 64.
	Campaigns int
}

// SnapshotPolicy says when state is written to a file and the log truncated.
type SnapshotPolicy struct {
	// Entries and Bytes of log after which a snapshot is due, up to a fifth
	// more by shard so that not all are due together. Unset: 100,000 and 8 MiB;
	// Bytes counts at least the size of the last snapshot, up to 64 MiB.
	Entries uint64
	Bytes   int64
	// KeepEntries and KeepBytes bound the tail of the log that stays for slow
	// followers. Unset: 4,096 and 2 MiB.
	KeepEntries uint64
	KeepBytes   int64
	// Concurrent bounds the snapshots being written; unset: 2.
	Concurrent int
}

func orDefault[T int | int64 | uint64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

func (c *Config) setDefaults() {
	orDefault(&c.Tick, 100*time.Millisecond)
	orDefault(&c.ElectionTick, 10)
	orDefault(&c.HeartbeatTick, 2)
	orDefault(&c.DiskStall, 2*time.Second)
	orDefault(&c.Limits.PendingCommands, 32768)
	orDefault(&c.Limits.PendingBytes, 16<<20)
	orDefault(&c.Limits.Reads, 65536)
	orDefault(&c.Limits.BatchCommands, 4096)
	orDefault(&c.Limits.BatchBytes, 256<<10)
	orDefault(&c.Limits.InflightEntries, 8)
	orDefault(&c.Limits.ExpirePerEntry, 512)
	orDefault(&c.Limits.Transfers, 8)
	orDefault(&c.Limits.Campaigns, 64)
	orDefault(&c.Snapshots.Entries, 100_000)
	orDefault(&c.Snapshots.Bytes, 8<<20)
	orDefault(&c.Snapshots.KeepEntries, 4096)
	orDefault(&c.Snapshots.KeepBytes, 2<<20)
	orDefault(&c.Snapshots.Concurrent, 2)
}

func (c *Config) validate() error {
	if c.Node == 0 {
		return fmt.Errorf("worker: node id must not be 0")
	}
	if c.ElectionTick <= c.HeartbeatTick {
		return fmt.Errorf("worker: election tick %d must be greater than heartbeat tick %d", c.ElectionTick, c.HeartbeatTick)
	}
	seen := map[shard.ID]bool{}
	for i := range c.Replicas {
		r := &c.Replicas[i]
		if seen[r.Shard] {
			return fmt.Errorf("worker: shard %d has two replicas on one node", r.Shard)
		}
		seen[r.Shard] = true
		if err := r.validate(c.Node); err != nil {
			return fmt.Errorf("worker: shard %d replica %d: %w", r.Shard, r.Replica, err)
		}
	}
	return nil
}

func (r *Replica) validate(node NodeID) error {
	if r.Replica == 0 || r.Replica >= math.MaxUint64-1 {
		return fmt.Errorf("replica id must be 1 to %d", uint64(math.MaxUint64-2))
	}
	if (r.Machine == nil) == (r.Meta == nil) {
		return fmt.Errorf("must have exactly one of a lock machine and a map machine")
	}
	if (r.Shard == 0) != (r.Meta != nil) {
		return fmt.Errorf("the map machine belongs to shard 0 and to no other")
	}
	if r.State.Shard != r.Shard || r.State.Replica != r.Replica {
		return fmt.Errorf("loaded state is that of shard %d replica %d", r.State.Shard, r.State.Replica)
	}
	self := false
	for _, p := range r.Peers {
		if p.Replica == r.Replica {
			if p.Node != node {
				return fmt.Errorf("the map puts it on node %d", p.Node)
			}
			self = true
		}
	}
	if !self {
		return fmt.Errorf("the map does not list it")
	}
	applied := uint64(0)
	if r.Machine != nil {
		applied = r.Machine.Applied()
	} else {
		applied = r.Meta.Applied()
	}
	s := &r.State
	if applied != s.Base.Index {
		return fmt.Errorf("the restored state is that of index %d, its log begins after %d", applied, s.Base.Index)
	}
	last := s.Base.Index
	if n := len(s.Entries); n > 0 {
		last = s.Entries[n-1].GetIndex()
		if first := s.Entries[0].GetIndex(); last != first+uint64(n)-1 || first > s.Base.Index+1 || last < s.Base.Index {
			return fmt.Errorf("%d stored entries %d to %d don't fit the base at %d: the log is damaged", n, first, last, s.Base.Index)
		}
	}
	if s.HardState.Commit < s.Base.Index || s.HardState.Commit > last {
		return fmt.Errorf("stored commit %d is not within %d to %d: the log is damaged", s.HardState.Commit, s.Base.Index, last)
	}
	if s.Base.ConfState == nil || len(s.Base.ConfState.GetVoters()) == 0 {
		return fmt.Errorf("stored base has no voters")
	}
	return nil
}
