package core

import (
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/mortise-lock/mortise/shard"
)

// Time is the gateway's monotonic clock: time since its start.
type Time = time.Duration

// StreamID names a client's session stream; never reused.
type StreamID uint64

// CallID names a unary call; never reused.
type CallID uint64

// Kind is the kind of an Input.
type Kind uint8

// Kinds of inputs and the fields that each reads.
const (
	// StreamOpened: a client opened a session stream. Stream.
	StreamOpened Kind = iota + 1
	// StreamFrame: one frame of it. Stream, Frame.
	StreamFrame
	// StreamHalfClosed: the client will send no more but still listens. Stream.
	// It is ended in good order once everything it asked for is answered.
	StreamHalfClosed
	// StreamClosed: it ended from the client's side or broke. Stream.
	StreamClosed
	// CallStarted: a unary call. Call, Request, Deadline (0: none), OwnID.
	CallStarted
	// CallGone: the caller of an unanswered call went away. Call.
	CallGone
	// CallUndelivered: the answer of an acquire without a request id of the
	// caller's could not be written. Request (the AcquireRequest, with id).
	CallUndelivered
	// NodeUp: the stream to a node is open. Node.
	NodeUp
	// NodeDown: it broke. Node.
	NodeDown
	// NodeFrame: a frame from a node. Node, Response.
	NodeFrame
	// MapUpdate: a placement map, with its router. Map, Router.
	MapUpdate
	// Tick: the time that Core.Next named has come.
	Tick
	// Shutdown: ask every client to resume elsewhere and refuse new ones.
	Shutdown
)

// Input is one event.
type Input struct {
	Kind     Kind
	Stream   StreamID
	Frame    *lockv1.SessionRequest
	Call     CallID
	Request  any
	Deadline Time
	// OwnID: the caller named no request id; the shell chose one.
	OwnID    bool
	Node     uint64
	Response *nodev1.ExchangeResponse
	Map      *placementv1.Map
	Router   Router
}

// Router tells which shard a name belongs to.
type Router interface {
	Route(name string) (shard.ID, bool)
}

// Output gathers effects. The caller carries them out and calls Reset.
type Output struct {
	// Nodes to send to, each at most once per Output.
	Nodes []NodeSend
	// Streams to send to, each at most once per Output.
	Streams []StreamSend
	Answers []Answer
	// DropNodes: streams that were silent for too long, to be opened anew.
	DropNodes []uint64
	// WantMap: a shard refused by a newer map than ours; fetch it.
	WantMap bool
	// Notes are lines for the log, one per decision worth telling.
	Notes []Note
}

// NodeSend is one frame to a node. Requests are shared with later resends:
// read them, don't write.
type NodeSend struct {
	Node     uint64
	Echo     uint64 // ms of the node's clock
	Requests []*nodev1.Request
	Renew    []*nodev1.Renew
}

// StreamSend is one frame to a client; End closes the stream after it, with
// Failure as its status (nil: OK).
type StreamSend struct {
	Stream  StreamID
	Time    uint64 // ms of the gateway's clock
	Events  []*lockv1.SessionEvent
	End     bool
	Failure *lockv1.Failure
}

// Answer ends one unary call.
type Answer struct {
	Call     CallID
	Response any // a *lockv1.…Response; nil when Failure is set
	Failure  *lockv1.Failure
}

// Note is one line for the log.
type Note struct {
	// Audit lines are kept whatever the log level.
	Audit   bool
	Message string
	Attrs   []any // key, value, …
}

// Reset empties the output and keeps its memory.
func (o *Output) Reset() {
	clear(o.Nodes)
	clear(o.Streams)
	clear(o.Answers)
	clear(o.Notes)
	*o = Output{Nodes: o.Nodes[:0], Streams: o.Streams[:0], Answers: o.Answers[:0],
		DropNodes: o.DropNodes[:0], Notes: o.Notes[:0]}
}

// Sessions mints and verifies session strings.
type Sessions interface {
	Mint(Identity) string
	// Verify reads a string that some gateway of this cluster minted; a nil
	// error is a proof of that.
	Verify(s string) (Identity, error)
}

// Identity is what a session string says.
type Identity struct {
	Session shard.SessionID
	TTL     time.Duration
	Client  string
	// OpenedMS is the wall clock of the opening gateway.
	OpenedMS int64
}

// Config of a Core. Everything is required except Limits' zero fields.
type Config struct {
	Sessions Sessions
	// Random returns 64 random bits; for jitter and session ids.
	Random func() uint64
	// WallMS is the wall clock, stamped into session strings; it decides only
	// whether a session that is registered nowhere may be a fresh one.
	WallMS func() int64
	Limits Limits
}

// Limits bound what clients can make a gateway hold. Zero fields get the
// default in brackets.
type Limits struct {
	// Streams open at once [20,000].
	Streams int
	// StreamOps: unanswered operations per session stream, waits included [65,536].
	StreamOps int
	// Calls: unary calls in progress [20,000].
	Calls int
	// UnarySessions whose registrations are remembered [100,000].
	UnarySessions int
}

func (l *Limits) setDefaults() {
	for _, f := range []struct {
		v *int
		d int
	}{{&l.Streams, 20_000}, {&l.StreamOps, 65_536}, {&l.Calls, 20_000}, {&l.UnarySessions, 100_000}} {
		if *f.v <= 0 {
			*f.v = f.d
		}
	}
}

// Rules of the wire contract, checked here once for all callers.
const (
	MaxFrameOps     = 1024
	MinTTL          = time.Second
	MaxTTL          = 600 * time.Second
	DefaultTTL      = 10 * time.Second
	MaxWaitMS       = 86_400_000
	MaxLockDelayMS  = 60_000
	MaxClientBytes  = 256
	MaxReasonBytes  = 512
	MaxToken        = 1<<53 - 1
	MaxPermits      = 1 << 20
	DefaultPageSize = 100
	MaxPageSize     = 1000
	DefaultSessions = 1000
	MaxSessions     = 10_000
)

// Times of the protocol.
const (
	// staleAfter: frames with an older echo act on nothing; streams that were
	// silent for it are dropped.
	staleAfter = 30 * time.Second
	// beatEvery: the longest silence of ours on any stream.
	beatEvery = 5 * time.Second
	// deafAfter: a node that says nothing for so long, and owes an answer, is
	// taken for unreachable.
	deafAfter = 5 * time.Second
	// gatherRenewals: how long renewals are gathered into one batch.
	gatherRenewals = 25 * time.Millisecond
	// renewRetry: a renewal that nobody covered is asked again after it.
	renewRetry = 400 * time.Millisecond
	backoffMin = 20 * time.Millisecond
	backoffMax = 250 * time.Millisecond
	// maxHops: leaders tried at once, by hints alone, before backing off.
	maxHops = 4
	// DefaultCall is the time a unary call gets beyond its wait.
	DefaultCall = 5 * time.Second
)
