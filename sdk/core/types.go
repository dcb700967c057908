package core

import (
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
)

// Time is a point on a clock that runs on while the host is suspended.
type Time = time.Duration

// Limits and intervals.
const (
	// MaxWait is the longest wait that the service accepts for one acquire;
	// longer ones are asked for again.
	MaxWait = 24 * time.Hour
	// MaxLockDelay is the longest lock-delay that the service accepts.
	MaxLockDelay = 60 * time.Second
	// minAllowance is the least scheduling allowance of a deadline.
	minAllowance = 20 * time.Millisecond
	// inventoryEvery is the low rate at which holds are compared.
	inventoryEvery = 60 * time.Second
	// inventoryGap is the least time between two comparisons on suspicion.
	inventoryGap = time.Second
	// rememberedRenewals bounds the renewals whose sending times are kept.
	rememberedRenewals = 64
	maxDialBackoff     = time.Second
)

// Config of a session.
type Config struct {
	Client    string        // shown to others
	TTL       time.Duration // asked for; the service has the last word
	DriftPPM  int           // clock-rate margin, in millionths of the TTL
	Endpoints int           // how many gateways there are, 1 or more
	First     int           // the one to begin with
	RetryBase time.Duration // first delay after a refusal that may be retried
	RetryMax  time.Duration // longest such delay
	Rand      func() uint64
}

// StreamID names one attempt to have a stream. Never reused.
type StreamID uint64

// ID names an acquire of a caller, over all the seqs it may need.
type ID uint64

// Request is what a caller wants.
type Request struct {
	Name      string
	Mode      lockv1.Mode
	Permits   uint32 // counted only
	Limit     uint32 // counted only
	Wait      time.Duration
	LockDelay time.Duration
	MaxHold   time.Duration // 0: no cap
}

// Registration names a session's presence in a shard.
type Registration struct {
	Shard  uint32
	Number uint64
}

// Dial asks for a stream to a gateway; answer with Connected or Broken.
type Dial struct {
	Stream   StreamID
	Endpoint int
	// Fresh: a connection in use to that gateway may be dead; make a new one.
	Fresh bool
}

// Cover moves the deadline of every hold of a registration.
type Cover struct {
	Registration Registration
	Deadline     Time
}

// ResultKind says what happened to a caller's acquire.
type ResultKind uint8

// Kinds of results.
const (
	// ResultGranted: held. Token, Registration, Deadline and CapAt are set.
	ResultGranted ResultKind = iota + 1
	// ResultFailed: over without a grant. Reason, Holders, Failure.
	ResultFailed
	// ResultQueued: waiting. Position, Holders.
	ResultQueued
	// ResultRetrying: refused for now and asked anew later. Failure.
	ResultRetrying
	// ResultSuspect: renewals are late. Deadline.
	ResultSuspect
	// ResultLost: a hold is over. Lost.
	ResultLost
	// ResultReleased: the answer to a release; Failure if it was not held.
	ResultReleased
)

// LostReason says why a hold was lost.
type LostReason uint8

// Reasons. Deadline and MaxHold are the client's own conclusions.
const (
	LostDeadline LostReason = iota + 1
	LostMaxHold
	LostClosed
	LostExpired
	LostForced
	LostRevoked
	LostReleasedByToken
	LostSession
)

// Result is news for a caller.
type Result struct {
	ID   ID
	Kind ResultKind
	// Seq is the acquire's at the service (ResultGranted, ResultQueued): a new
	// one when it was asked for anew.
	Seq          uint64
	Token        uint64
	Registration Registration
	// Deadline of the grant by itself (ResultGranted) or at present
	// (ResultSuspect). Covers of the registration may move it later.
	Deadline Time
	CapAt    Time // end by MaxHold; 0: none
	Lost     LostReason
	Reason   lockv1.EndReason
	Position uint64
	Holders  []*lockv1.Holder
	Failure  *lockv1.Failure
}

// Output is what must be done. Its slices are appended to; the shell empties
// them.
type Output struct {
	Dial    []Dial
	Drop    []StreamID
	Ops     []*lockv1.SessionOp // for Stream, in order
	Stream  StreamID            // the stream in use; 0: none
	Results []Result
	Covers  []Cover
	Ended   []Registration // no cover will follow
	// Closed: the session is over, by Close (Failure nil) or by refusal.
	Closed  bool
	Failure *lockv1.Failure
	// Wake is when to call Tick at the latest; 0: no need.
	Wake Time
}

// Reset empties an output for reuse.
func (o *Output) Reset() {
	clear(o.Ops)
	clear(o.Results)
	*o = Output{Dial: o.Dial[:0], Drop: o.Drop[:0], Ops: o.Ops[:0], Results: o.Results[:0],
		Covers: o.Covers[:0], Ended: o.Ended[:0]}
}

type phase uint8

const (
	phaseQueued     phase = iota // not sent under this seq
	phaseAsked                   // sent, not answered
	phaseWaiting                 // queued at the shard
	phasePaused                  // refused for now; asks anew when due
	phaseBacked                  // granted, but its lease is over: waits for a cover
	phaseHeld                    // the caller has it
	phaseLingering               // lost here; cancelled when its lock-delay is over
	phaseReleasing               // release is sent, or to be sent again
	phaseCancelling              // cancel is sent, or to be sent again
)

// acquire is one row of the table. id is 0 once no caller is interested.
type acquire struct {
	id        ID
	seq       uint64
	req       Request
	phase     phase
	firstSent Time
	at        Time // when it was granted (received), or began to wait
	own       Time // lease by the grant itself, without margin
	capAt     Time
	reg       Registration
	token     uint64
	tries     int
	resent    bool // its release was sent more than once
	// doubt: it was asked for more than once under this seq, so that a refusal
	// may be about the last asking only.
	doubt   bool
	suspect bool

	due Time // when it needs attention; 0: never
	idx int  // in the heap; -1: not there
}

// registration is a session's presence in one shard as far as it is known.
type registration struct {
	number  uint64
	ended   uint64 // every number up to this one is over
	known   uint64 // newest epoch applied (K6); 0: none
	covered Time   // sending time of the newest covering renewal
	isCov   bool
	// Inventories.
	asked   Time // since when the one to come has been asked for
	pending bool
	needed  bool // events were dropped: no credit before it
}
