// Package core decides everything that a session of the SDK decides: when to
// renew, what to send again after a reconnect, how long each lease can be
// believed, when a hold is lost, when to try another gateway.
//
// It is exported for the simulator (ops/sim); no compatibility promise.
//
// It is a function of its inputs and of the time that comes with each: no
// clock, no goroutine, no I/O; randomness is handed in. Every method takes the
// time and appends what must be done to an Output. Time is a clock that keeps
// running while the host is suspended, from any origin.
//
// # How long a lease is believed
//
// A grant counts what was left of the registration's deadline when the shard's
// leader proposed it, from the first sending of the acquire. A covering
// acknowledgement of a RenewOp counts one TTL from the sending of that RenewOp.
// The later of the two is the lease. The deadline that callers see is the lease
// less Config.DriftPPM of the TTL (each of two clocks may be 1% off) and an
// allowance for scheduling (20 ms or 0.5% of the TTL, whichever is more).
//
// # Invariants
//
//	K1  A sending time is taken before the operation is handed to the stream,
//	    so no lease counts from later than its sending.
//	K2  Timers that are due are served before any input: what was lost while
//	    the process stood still is lost before a buffered renewal is read.
//	K3  A hold that was reported lost is never believed again, and if the
//	    service may still have it, a Cancel for it is repeated until it is
//	    acknowledged (after the lock-delay where one was asked for).
//	K4  An acquire that was sent leaves the table only when the service said
//	    that it holds nothing (ended, cancelled, released, lost) or when its
//	    registration ended. A refusal of what was asked for twice under one seq
//	    says nothing about the first asking, so it is cancelled. done_below
//	    never passes an acquire in the table.
//	K5  A seq names one acquire for ever. Asking anew takes a new one.
//	K6  The known epoch of a registration rises only with events that were
//	    applied, or with an inventory.
//	K7  Attachments rise by one with every stream that carries a Resume.
//	K8  While a stream is up a renewal is due within TTL/3, and while none is
//	    up a dial is under way or due within a second.
//	K9  No effect depends on the order of a map's iteration.
package core
