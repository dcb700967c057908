package shard

// ID names a shard. 0 is the meta shard, which owns no lock names.
type ID uint32

// Token is a fencing token. For one name it only ever rises. Always below 2^53.
type Token uint64

// SessionID is the 128-bit identity of a session.
type SessionID [16]byte

// Registration is the counter part of a registration number; the whole number
// is (shard, counter). Never reused within a shard. 0 is none.
type Registration uint64

// LeaderTime is a shard's own time in nanoseconds. It is data in the log: each
// leader continues from the largest time it finds there. It says nothing about
// any wall clock.
type LeaderTime int64

// AcquireID names an acquire within its registration: Seq on session streams,
// RequestID for unary calls. Exactly one of them is set.
type AcquireID struct {
	Seq       uint64
	RequestID [16]byte
}

// Mode says what other holders a hold tolerates.
type Mode uint8

// Modes. The numbers are those of the wire and of stored bytes.
const (
	Exclusive Mode = 1
	Shared    Mode = 2
	Counted   Mode = 3
)

// Kind is the kind of a command. The numbers are stored in logs: never reuse
// or renumber one.
type Kind uint8

// Kinds of commands; doc.go says what each does.
const (
	KindRegister     Kind = 1
	KindAttach       Kind = 2
	KindAcquire      Kind = 3
	KindWaitOver     Kind = 4
	KindCancel       Kind = 5
	KindRelease      Kind = 6
	KindExpire       Kind = 7
	KindClose        Kind = 8
	KindLeave        Kind = 9
	KindWake         Kind = 10
	KindForceRelease Kind = 11
	// KindHandover carries the remaining times of silent sessions over a
	// planned leader transfer. It changes no state; Apply reports it.
	KindHandover Kind = 12
)

// Reason says why a hold, a wait or a registration ended. The numbers are
// stored.
type Reason uint8

// Reasons.
const (
	ReasonNone              Reason = 0
	ReasonExpired           Reason = 1 // no renewal reached the leader in time
	ReasonForced            Reason = 2 // operator released the hold
	ReasonRevoked           Reason = 3 // operator ended the session
	ReasonReleasedByToken   Reason = 4 // released by one who did not name the session
	ReasonClosed            Reason = 5 // session closed
	ReasonBusy              Reason = 6 // not free, and no wait wanted
	ReasonWaitOver          Reason = 7 // wait limit passed
	ReasonCancelled         Reason = 8 // cancelled by the caller
	ReasonReleased          Reason = 9 // released by the session itself
	ReasonRegistrationEnded Reason = 10
	ReasonLeft              Reason = 11 // empty registration left by itself
)

// Status is the outcome of applying one command.
type Status uint8

// Statuses.
const (
	// StatusOK: done; for Acquire see Result.State.
	StatusOK Status = 0
	// StatusNoRegistration: the registration is not live.
	StatusNoRegistration Status = 1
	// StatusOldAttachment: the command came by a stream that was superseded.
	StatusOldAttachment Status = 2
	// StatusStale: the acquire is below done_below.
	StatusStale Status = 3
	// StatusMismatch: a known identity returned with another name or mode.
	StatusMismatch Status = 4
	// StatusNotOwner: the shard does not own the name.
	StatusNotOwner Status = 5
	// StatusTokenNotCurrent: no present hold of the name has that token.
	StatusTokenNotCurrent Status = 6
	// StatusModeConflict: in use with a mode that can't be mixed with this one.
	StatusModeConflict Status = 7
	// StatusLimitDisagrees: in use with another number of permits.
	StatusLimitDisagrees Status = 8
	// StatusLimit: a limit of the shard was reached; see Result.Limit.
	StatusLimit Status = 9
	// StatusNoEffect: Expire, WaitOver, Wake or Leave found nothing to do.
	StatusNoEffect Status = 10
	// StatusInvalid: the command breaks a rule that gateways check (defence).
	StatusInvalid Status = 11
)

// AcquireState is the present truth of an acquire.
type AcquireState uint8

// States of an acquire.
const (
	AcquireNone    AcquireState = 0
	AcquireGranted AcquireState = 1
	AcquireWaiting AcquireState = 2
	AcquireEnded   AcquireState = 3
)
