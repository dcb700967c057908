// Package worker is the loop of a node: many raft replicas, one per shard, as a
// function from what happened (Input) to what must be done (Output). It reads
// no clock, does no I/O, starts no goroutine, and uses no randomness but raft's
// own election jitter. The same code runs in production over a real disk and
// network, and in tests over modelled ones.
//
// # A step
//
// Messages are stepped first, then the responses of what became durable, then
// ticks, renewals and requests. After that every replica with work is run:
// proposals (one MsgProp per pass, many commands per entry), raft's Ready,
// applies inline, answers; until nothing is left. Everything to be written goes
// out in Output.Appends, everything to be sent in Output.Messages: messages
// leave before the local sync, responses to an append after it, by Synced.
//
// # Invariants
//
//	W1  The responses of an append are delivered after it and all earlier ones
//	    of its shard are durable, in order, and never otherwise.
//	W2  log holds every entry from the kept tail to the last one that raft handed
//	    out; it may lead the disk, and never lags behind what raft counts as
//	    stable.
//	W3  Reads and acknowledgements are given by a leader whose own term's first
//	    entry has applied, after a confirmation that began after they arrived.
//	W4  A renewal is acknowledged only in the order: deadline moved,
//	    confirmation begun, confirmed and its index applied, same office,
//	    registration live, no expiry of it proposed, no handover out.
//	W5  An Expire carries the epoch and term it was decided at; from its proposal
//	    on the registration gets no acknowledgement until it is known to have had
//	    no effect.
//	W6  From the proposal of a Handover on no deadline moves and nothing is
//	    acknowledged, until a later entry of the same term has applied.
//	W7  A new leader uses a Handover only if its own first entry directly follows
//	    it; otherwise every registration gets a full TTL from then on.
//	W8  Every request that was admitted is answered: by its entry's apply, or
//	    with NOT_LEADER if it was never proposed, or with OUTCOME_UNKNOWN.
//	W9  No effect depends on the order of a map's iteration.
//	W10 The snapshot file named by the log's base exists: a superseded file is
//	    removed only after its successor's base is durable and nobody streams it.
//	W11 The stored commit index may lag behind what was committed, which raft
//	    allows: it is not worth a write of its own. It never lies before the base.
//
// # Time
//
// Leases run on the node's monotonic clock. Leader time, which is data in the
// log, continues from the largest value there by what has passed on that clock.
// Both move when Step is called; Output.Next says when that must be.
package worker
