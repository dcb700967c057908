// Package core decides everything that a gateway decides: where a request
// goes, when it is sent again, when a session is registered, attached, renewed
// and closed, and what a caller is told.
//
// It is a function of its inputs and of the time that comes with each: no
// clock, no goroutine, no I/O; randomness is handed in. Core.Step takes one
// Input and appends what must be done to an Output. The shell around it
// (package gateway) owns the streams and the timer.
//
// # How a request travels
//
// Each outstanding request is in the list of its shard, in the order in which
// it was accepted. A request is in flight at one node at most (request.node),
// or parked. A shard sends while its leader is known, that leader's stream is
// up and no backoff is running. When a leader becomes known, everything in the
// shard's list that is not in flight there is sent there, in list order, under
// fresh ids; answers to earlier ids are ignored. All requests are idempotent,
// so sending again is always safe, and the order of one session's operations
// in one shard is that of its client.
//
// # Invariants
//
//	G1  A request is in Core.byID exactly while request.node != 0, and in the
//	    list of its shard exactly while it is outstanding.
//	G2  A unary call is answered at most once; after Output.Answers names it,
//	    Core.calls does not hold it (background cancels carry no answer).
//	G3  Nothing of a session stream is sent to a shard before that stream's
//	    attachment is in force there (Register or Attach was answered).
//	G4  At most one Register or Attach per (session, shard) is outstanding;
//	    what comes meanwhile queues in order behind it.
//	G5  The leader cache of a shard never goes back to a lower term.
//	G6  A renewal is forwarded only within TTL/3 of its arrival.
//	G7  The end of a client stream cancels nothing; it only forgets.
//	G8  A unary acquire under a request id of the gateway's, whose caller was
//	    not told "granted", leaves behind a Cancel that is repeated until it
//	    is acknowledged, or its registration is gone, or two TTLs and a minute
//	    passed. Under a request id of the caller's nothing is ever cancelled
//	    but by the caller: a repetition at another gateway may have been
//	    granted meanwhile, and a Cancel would take that grant away.
//	G9  No effect depends on the order of a map's iteration.
package core
