// Package shard is the state machine of one lock shard: commands in, results
// and events out. It is pure: a function of (state, command), without clock,
// randomness, I/O or goroutines. Every replica of a shard applies the same
// bytes and gets the same state. It also holds what decides which shard a name
// belongs to (Selector, Router).
//
// # Model
//
// A registration is a session's presence in the shard. It has acquires, each
// named by an AcquireID: a hold, a wait, or a remembered outcome. A name is
// held, waited for, delayed, or free; a free name needs no memory.
//
// Time is leader time, which is data in the entries. Wall time is only shown
// to people.
//
// # What commands do
//
//   - Register finds or makes the session's registration; Attach raises the
//     attachment in force. Every command with an attachment above the one in
//     force raises it; below it (and not 0) it is refused.
//   - Acquire grants, queues or refuses. A duplicate answers the present truth
//     of its acquire. A refusal is final for that AcquireID: whoever wants to
//     try again asks under a new one.
//   - WaitOver ends a wait, never a hold. Cancel makes sure that an acquire
//     holds nothing now and later. Release frees the hold with that token.
//   - Expire, Close and Leave end a registration with all that it has. A
//     lock-delay follows an expiry and a revocation, not a close or release.
//   - Wake ends a lock-delay. ForceRelease ends holds for an operator.
//   - Handover changes nothing; its content is reported to the host.
//
// A hold that ends otherwise than by the session's own act raises its
// registration's epoch and is kept as a numbered event. The session's own acts
// are Release and Cancel with registration, AcquireID and exactly the
// attachment in force.
//
// # Invariants
//
// Check (in tests) verifies them after every step.
//
//  1. At most one exclusive hold per name, and no other hold beside it.
//  2. Shared and counted holds are never mixed; the permits in use of a
//     counted name do not exceed its limit, which all its holds and waits
//     share.
//  3. Tokens rise: each grant's is the shard's next_token, which only grows;
//     the holds of a name are in order of token.
//  4. The first waiter of a name does not fit: what can be granted has been.
//     A queue is in the order in which its acquires applied.
//  5. A name has an extra record exactly if it is not simply held exclusively
//     without waiters; an exclusive hold is in its registration's contended
//     list exactly if its name has waiters, shared and counted ones always.
//  6. Every hold and wait belongs to a live registration, except uncontended
//     exclusive holds of registrations that have ended, which are free by
//     rule.
//  7. An AcquireID of a registration is at most one of hold, wait, outcome. An
//     outcome of a seq is at or above done_below.
//  8. No limit is exceeded: contended holds and waits of one registration
//     together stay within ContendedPerRegistration.
//  9. Results, events, reads, hashes and snapshots do not depend on how much of
//     what is over by rule (holds and outcomes of ended registrations, outcomes
//     whose time is over, lock-delays whose time is over and that nobody waits
//     for) has been removed, nor on handles, slots or the layout of indexes.
//     What would depend on it removes the leftovers concerned first (touch,
//     findAcquire, rememberedBy).
//  10. A page that an open snapshot shows is never written.
//
// # Cost
//
// Acquire, release and cancel take constant time in locks, sessions and queue
// length, apart from the heap of wait limits, which is logarithmic in the waits
// of the shard. Ending a registration costs its waits and contended holds,
// which limits bound; its other holds are removed a few per entry.
package shard
