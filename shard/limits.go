package shard

import "math"

// Limits bound what one shard keeps. They are part of the replicated state:
// each replica refuses the same command, whatever binary it runs. A refusal is
// StatusLimit with the name given here.
type Limits struct {
	// Registrations that are live at once ("registrations").
	Registrations uint32
	// WaitersPerName bounds the queue of one name ("waiters_per_name").
	WaitersPerName uint32
	// WaitsPerRegistration bounds the waits of one registration
	// ("waits_per_registration").
	WaitsPerRegistration uint32
	// HoldsPerRegistration bounds the holds of one registration
	// ("holds_per_registration").
	HoldsPerRegistration uint32
	// ContendedPerRegistration bounds what the end of a registration has to
	// settle within its own entry: its waits, its shared and counted holds and
	// its exclusive holds with waiters ("contended_per_registration").
	ContendedPerRegistration uint32
	// OutcomesPerRegistration is how many remembered outcomes stop a
	// registration from acquiring more ("outcomes_per_registration"). Refusals
	// for that reason, and cancels of acquires not seen yet, are themselves
	// remembered up to twice as many; the ends of holds and waits always are.
	OutcomesPerRegistration uint32
	// EventsPerRegistration bounds the epoch events kept per registration;
	// older ones are dropped and reported as such. It refuses nothing.
	EventsPerRegistration uint32
}

// DefaultLimits suit a shard of a few gigabytes at most.
func DefaultLimits() Limits {
	return Limits{
		Registrations:            200_000,
		WaitersPerName:           100_000,
		WaitsPerRegistration:     8_192,
		HoldsPerRegistration:     1_000_000,
		ContendedPerRegistration: 8_192,
		OutcomesPerRegistration:  65_536,
		EventsPerRegistration:    128,
	}
}

// limitCode is stored with remembered refusals; never renumber.
type limitCode uint8

const (
	limitNone limitCode = iota
	limitRegistrations
	limitWaitersPerName
	limitWaitsPerRegistration
	limitHoldsPerRegistration
	limitContendedPerRegistration
	limitOutcomesPerRegistration
	limitCodes
)

func (l *Limits) name(c limitCode) (string, uint64) {
	switch c {
	case limitRegistrations:
		return "registrations", uint64(l.Registrations)
	case limitWaitersPerName:
		return "waiters_per_name", uint64(l.WaitersPerName)
	case limitWaitsPerRegistration:
		return "waits_per_registration", uint64(l.WaitsPerRegistration)
	case limitHoldsPerRegistration:
		return "holds_per_registration", uint64(l.HoldsPerRegistration)
	case limitContendedPerRegistration:
		return "contended_per_registration", uint64(l.ContendedPerRegistration)
	case limitOutcomesPerRegistration:
		return "outcomes_per_registration", uint64(l.OutcomesPerRegistration)
	}
	return "", 0
}

// Fixed bounds and periods, all of leader time in nanoseconds where a time.
const (
	// MaxName is the longest name in bytes.
	MaxName = 512
	// MaxClient is the longest client name in bytes.
	MaxClient = 256
	// MaxText is the longest ForceRelease.By or Why in bytes.
	MaxText = 512
	// MaxWait is the longest wait limit: a day.
	MaxWait = 86_400_000_000_000
	// MaxLockDelay is the longest lock-delay: a minute. Lock-delays are kept in
	// whole milliseconds, rounded up.
	MaxLockDelay = 60_000_000_000
	// MinTTL and MaxTTL bound the TTL of a session.
	MinTTL = 1_000_000_000
	MaxTTL = 600_000_000_000
	// OutcomeRetention is how long the outcome of an acquire is remembered
	// after its hold or wait is over.
	OutcomeRetention = 240_000_000_000
	// LeaveAfter is how long an empty registration must have been unused
	// before it may leave.
	LeaveAfter = 600_000_000_000
	// MaxCounter bounds tokens, registration numbers and epochs: 2^53, exact
	// in JSON and in a BIGINT.
	MaxCounter = 1 << 53
)

// Config is the beginning of a shard's state.
type Config struct {
	ID ID
	// Owns are the names that the shard owns.
	Owns []Selector
	// Floor is the first token, registration number and epoch: 1 or more,
	// below 2^53. 0 means 1.
	Floor uint64
	// Index and Term are what Applied and AppliedTerm begin with: those of the
	// initial snapshot that all replicas start from.
	Index uint64
	Term  uint64
	// Limits; the zero value means DefaultLimits.
	Limits Limits
}

// none is the handle 0, which no slab gives out.
const none uint32 = 0

// never is a time that does not come.
const never = math.MaxInt64
