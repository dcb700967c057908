// Package mortise takes locks from a Mortise cluster.
//
//	client, err := mortise.Open(ctx, mortise.Config{Endpoints: []string{"127.0.0.1:7420"}})
//	...
//	grant, err := client.Lock(ctx, "invoice/INV-55102")
//	if err != nil {
//		return err
//	}
//	defer grant.Release(ctx)
//	// grant.Token() goes to whatever the lock protects; see package fence.
//
// Renewal, reconnecting and going on at another gateway are automatic, and
// last until Release. Every acquire returns a new Grant; a Grant is never
// re-locked. When protection ends, the context of the grant ends, with a
// *LostError as its cause.
//
// # Which one to take
//
//	one at a time                            Lock, TryLock, Do
//	many readers or one writer               RLock, TryRLock, Lock
//	up to N at a time                        Acquire
//	the resource can check a token           any of these, with package fence
//	the resource cannot                      the same WithLockDelay
//	one liveness scope per worker            NewSession
//
// # What a lock cannot do
//
// A process may stand still at any instruction: garbage collection, a stopped
// container, a suspended host. It may hold a lock, stand still for longer than
// the session's TTL, and go on with its next write without having looked at
// anything, while another client has the lock. No lock service can prevent
// that write. A token can: each grant of a name has a larger one, so a store
// that refuses a smaller token than it has seen refuses that write. What the
// SDK does is to tell of the loss before the service can grant the lock to
// another, by a clock that runs on while the host is suspended, whenever
// Grant.Err, Grant.Context or a context's Err is looked at.
//
// # Sessions
//
// A client has a session of its own; all its grants live and die with it. A
// Session without contact does not end: grants are lost at their deadlines,
// and acquires go on when the service is back. Client.Close frees everything.
package mortise
