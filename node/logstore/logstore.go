// Package logstore is the durable log of every raft replica on a node: one
// store, one writer, one sync for the appends of all shards (group commit).
//
// The package itself holds the contract; disk implements it on Pebble and mem
// is the model that the simulator and tests crash at will.
package logstore

import (
	"errors"

	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
)

// ErrCorrupt: what is stored cannot be trusted (a failed checksum, a gap, an
// impossible combination). The node must not go on; its disk is to be replaced
// and the node joins anew under a new id.
var ErrCorrupt = errors.New("log store is corrupt")

// ErrInvalid: a step that would leave an impossible state was submitted. It is
// a bug of the caller; nothing of the step is stored.
var ErrInvalid = errors.New("invalid step for the log store")

// HardState is raft's durable triple. It is written whole.
type HardState struct {
	Term, Vote, Commit uint64
}

// Base is where a replica's log begins: everything up to Index is contained in
// the snapshot file named Snapshot.
type Base struct {
	Index, Term uint64
	ConfState   *raftpb.ConfState
	// Snapshot is the file name within the node's snapshot folder.
	Snapshot string
}

// Append is one durable step of one replica. Steps of a shard apply in the
// order in which they were submitted; all steps of one Submit, over all
// shards, become durable together.
type Append struct {
	Shard   shard.ID
	Replica uint64
	// Entries replace everything stored from Entries[0].Index on.
	Entries []*raftpb.Entry
	// HardState is nil when unchanged.
	HardState *HardState
	// Base is nil when unchanged. With ResetLog every stored entry is dropped
	// (an incoming snapshot replaced the log); else entries up to Base.Index
	// less the kept tail are (truncation): TruncateTo is the last index dropped.
	Base       *Base
	ResetLog   bool
	TruncateTo uint64
	// NeedSync: someone waits for durability. A Submit without any may be
	// written lazily.
	NeedSync bool
	// Responses are raft messages that may be delivered only once this step
	// and all earlier ones are durable. The store does not look at them.
	Responses []*raftpb.Message
}

// ReplicaState is what a replica finds after a restart.
type ReplicaState struct {
	Shard     shard.ID
	Replica   uint64
	HardState HardState
	Base      Base
	// Entries from after Base.Index - kept tail up to the last one, without a
	// gap. The first may lie at or below Base.Index (the kept tail).
	Entries []*raftpb.Entry
}

// Store keeps the logs of all replicas of a node.
type Store interface {
	// Load returns every replica's state. Once, before the first Submit. A gap,
	// a failed checksum or an impossible combination is an error that wraps
	// ErrCorrupt: the node must not start.
	Load() ([]ReplicaState, error)
	// Submit queues the steps in order. It does not wait for the disk. When
	// steps became durable, the store calls the function given to it at
	// construction with them, in the order of submission, from one goroutine
	// (mem: when told to).
	Submit(steps []Append)
	// Close stops after everything submitted was handled.
	Close() error
}
