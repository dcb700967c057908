package worker

import (
	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/placement"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
)

// Time is the node's monotonic clock in nanoseconds since an arbitrary start;
// the worker never reads a clock itself.
type Time int64

// StreamID names one gateway stream of this node; never reused.
type StreamID uint64

// NodeID names a node.
type NodeID uint64

// RaftMessage is a raft message with its envelope. From and To within Msg are
// replica ids.
type RaftMessage struct {
	Shard shard.ID
	// Peer is the node it came from, or goes to.
	Peer NodeID
	Msg  *raftpb.Message
	// SnapshotFile is set on MsgSnap only. Outbound: the local file to stream.
	// Inbound: the received and verified local file, already durable.
	SnapshotFile string
	// Inbound MsgSnap only: the state restored from SnapshotFile, its Applied
	// equal to the snapshot's index. Restored for a lock shard, RestoredMap for
	// the meta shard. A message without it is dropped and its file removed.
	Restored    *shard.Machine
	RestoredMap *placement.Machine
}

// Request is one command or read that came by a gateway stream. Locate goes to
// every worker of the node: each answers for its own shards, and the host joins
// the answers.
type Request struct {
	Stream StreamID
	Req    *nodev1.Request
}

// Renewals are heartbeats that came by a gateway stream. Every worker of the
// node gets every batch and picks the sessions it knows.
type Renewals struct {
	Stream StreamID
	Batch  *nodev1.RenewBatch
}

// SnapshotWritten reports the end of a WriteSnapshot effect.
type SnapshotWritten struct {
	Shard shard.ID
	File  string
	Index uint64
	Bytes int64
	Err   error
}

// SnapshotSent reports the end of streaming a snapshot to a peer.
type SnapshotSent struct {
	Shard   shard.ID
	Replica uint64
	Err     error
}

// Transfer asks for a planned leader transfer. Done is called (through
// Output.Transfers) when it ended.
type Transfer struct {
	ID    uint64
	Shard shard.ID
	To    NodeID
}

// TransferDone ends a Transfer; Err is nil once this replica saw the target
// lead.
type TransferDone struct {
	ID     uint64
	Leader NodeID
	Err    error
}

// MapProposal proposes a change of the placement map (meta shard only).
type MapProposal struct {
	ID uint64
	// Data is a placement command, encoded by package placement.
	Data []byte
}

// MapProposed ends a MapProposal. OutcomeUnknown: look before asking again.
type MapProposed struct {
	ID  uint64
	Map *placementv1.Map
	Err error
}

// Input is everything that happened since the last step. Slices may be empty;
// the worker keeps none of them but keeps what they point to.
type Input struct {
	Now Time
	// WallMS is the wall clock, for people only.
	WallMS int64
	// Ticks is how many raft ticks (100 ms) have passed since the last step;
	// the caller caps it at the election timeout.
	Ticks int
	// Stalled is how long the whole process was found to have stood still (a
	// pause, a suspended host): leases are moved later by it.
	Stalled       int64
	Messages      []RaftMessage
	Requests      []Request
	Renewals      []Renewals
	StreamsClosed []StreamID
	// Synced are steps that became durable, in order.
	Synced           []logstore.Append
	SnapshotsWritten []SnapshotWritten
	SnapshotsSent    []SnapshotSent
	// Unreachable are peers to which a message was dropped.
	Unreachable []NodeID
	// PeersDown are nodes whose connection was refused or reset just now: a
	// hint that lets followers of leaders there campaign early.
	PeersDown    []NodeID
	Transfers    []Transfer
	MapProposals []MapProposal
	// Draining: the node is about to stop; hand every leadership over.
	Draining bool
}

// Reply goes to one gateway stream.
type Reply struct {
	Stream StreamID
	// Exactly one of these is set.
	Response *nodev1.Response
	Renewed  *nodev1.Renewed
	Push     *nodev1.Push
}

// WriteSnapshot asks the host to write a snapshot to File (temporary name,
// sync, rename, sync of the folder) on a goroutine of its own and to report
// SnapshotWritten. At most a few run at once.
type WriteSnapshot struct {
	Shard shard.ID
	File  string
	Index uint64
	// Write streams the content; safe to call from another goroutine.
	Snapshot interface {
		WriteSnapshot(w Writer) (int64, error)
		Close()
	}
}

// Writer is io.Writer, named so that this file needs no io.
type Writer interface{ Write(p []byte) (int, error) }

// LeaderChange reports what a replica now believes about its shard.
type LeaderChange struct {
	Shard shard.ID
	Term  uint64
	// Leader is 0 when unknown.
	Leader NodeID
	// Ready: this node leads and the first entry of its term has applied.
	Ready bool
}

// Log is one structured log line about a state change.
type Log struct {
	Level   int // slog levels
	Message string
	Shard   shard.ID
	Args    []any
}

// Output is everything to be done after a step. The caller submits Appends to
// the log store and sends Messages without waiting for the disk. The next Step
// with the same Output reuses its slices: who keeps one copies it. What the
// elements point to is not touched again.
type Output struct {
	Appends     []logstore.Append
	Messages    []RaftMessage
	Replies     []Reply
	Snapshots   []WriteSnapshot
	RemoveFiles []string
	Leaders     []LeaderChange
	Transfers   []TransferDone
	MapProposed []MapProposed
	// Map is set when a newer placement map was applied (meta shard).
	Map  *placementv1.Map
	Logs []Log
	// Next is when Step must be called again at the latest; 0: with the next
	// tick.
	Next Time
	// Drained: no leadership is left here, or none can be handed over.
	Drained bool
	// Fatal: the node must stop at once with this message (corruption, an
	// unknown command).
	Fatal error
}
