// Package history holds what happened in a run of Mortise as an observer with
// one true clock saw it: the simulator on virtual time, or one test process
// that drives real servers. A checker reads it (package ops/checker).
//
// # Contract
//
// Events are in the order of At; events with equal At are in the order in
// which they happened. Times are nanoseconds of the observer's clock, never of
// a client's or a node's own (those may be off in value and in rate). An
// operation has one Invoke and at most one Return; without a Return, or with
// OutcomeUnknown, it may take effect at any moment after its Invoke, or never.
package history

// Time is nanoseconds of the observer's clock since the run began.
type Time int64

// Kind is the kind of an Event.
type Kind uint8

// Kinds of events, and the fields that each uses besides At and Client.
const (
	// Invoke: a client begins an operation. Op, Call, Session, Name and, for
	// acquires, Mode, Permits, Limit, WaitFor; for releases, Token; for cancels,
	// Of.
	Invoke Kind = iota + 1
	// Return: an operation ended. Op, Call, Outcome, Name; Token and Fenced of a
	// grant; Holders and Waiters of a describe.
	Return
	// BeliefBegins: from here on the client acts as a holder (its grant's
	// context is alive). Call (that of the acquire), Session, Name, Mode,
	// Permits, Limit, Token.
	BeliefBegins
	// BeliefEnds: the first moment at which the client, would it look
	// (Grant.Err), learns that it holds nothing. Call, Name, Token. For a paused
	// client this is the moment at which its clock passed the deadline, or the
	// wake-up if the loss reached it only then; Paused intervals are events of
	// their own.
	BeliefEnds
	// Paused and Resumed: a client's process stood still in between.
	Paused
	Resumed
	// ClientDied: it is gone for good without a goodbye. Session.
	ClientDied
	// SessionOpened: Session, TTL.
	SessionOpened
	// SessionOver: the client knows that its session has ended. Session.
	SessionOver
	// Write: the client wrote to the protected store. Name, Token; Accepted is
	// the store's verdict. Unchecked: the store was told not to compare tokens.
	Write
	// Applied: a replica's state after an entry. Node, Shard, Index, Hash.
	Applied
	// Fault: something was broken. Node or Client, Note names what.
	Fault
	// Healed: no fault is in force from here on.
	Healed
	// Served: a shard granted an acquire that was asked after Healed. Shard.
	Served
	// Baseline: what is left at the end. Note names what is counted, Count.
	Baseline
	// Waiting: the client was told that its acquire waits in the queue. Call,
	// Seq.
	Waiting
	// Forced: an operator asks the service to take something away; from here on
	// holds may end without their clients' knowing. Session (revoked) or Name
	// (forced open).
	Forced
)

// Op is the kind of an operation.
type Op uint8

// Operations.
const (
	Acquire Op = iota + 1
	Release
	Cancel
	Describe
	CloseSession
)

// Mode of a lock.
type Mode uint8

// Modes.
const (
	Exclusive Mode = iota + 1
	Shared
	Counted
)

// Outcome of an operation.
type Outcome uint8

// Outcomes.
const (
	// OutcomeUnknown: it may have happened, or may still happen.
	OutcomeUnknown Outcome = iota
	// OK: an acquire was granted, a release freed the hold, a describe answered,
	// a cancel was confirmed. A release that only the end of its session answered
	// is unknown, not OK.
	OK
	// Busy: an acquire ended without a grant (its wait was over).
	Busy
	// Cancelled: an acquire ended by the caller's own word.
	Cancelled
	// Refused: the service said no, nothing has happened and never will.
	Refused
	// Lost: the hold (of a release) or the session was over.
	Lost
)

// Holder is one holder in a describe's answer.
type Holder struct {
	Session string // empty where the observer can't tell
	Client  string
	Token   uint64
	Mode    Mode
	Permits uint32
}

// Event is one thing that happened. Which fields count is said at its Kind.
type Event struct {
	At     Time
	Kind   Kind
	Client int // index of the client's process, -1 for none; never reused
	Node   int // index of the node, -1 for none

	Op      Op
	Call    uint64 // joins the events of one operation; never reused in a run
	Outcome Outcome
	// Of: for a Cancel, the Call of the acquire that is given up.
	Of uint64
	// Seq, in Waiting and in the Return of an acquire, is the identity under
	// which the service knows the acquire: another one when the client's library
	// asked anew, which gives the place in the queue up. 0: not known. It also
	// says that there is such a library: one that sees an acquire through, and
	// gives a hold back on which its caller can't rely any more.
	Seq uint64

	Session string
	Name    string
	Mode    Mode
	Permits uint32
	Limit   uint32
	Token   uint64
	TTL     Time
	WaitFor Time // 0: don't wait; -1: without limit

	Holders []Holder
	Waiters int

	Accepted, Unchecked bool

	Shard uint32
	Index uint64
	Hash  uint64
	Count int64
	Note  string
}

// Recorder takes events in the order of the observer's clock.
type Recorder interface{ Record(Event) }
