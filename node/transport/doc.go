// Package transport carries raft messages and snapshots between nodes.
//
// Per peer there is one gRPC stream per class of traffic, each on a connection
// of its own, so that heartbeats and votes never wait behind large appends,
// and neither waits behind a snapshot:
//
//	CONTROL  everything without entries: heartbeats, votes, acknowledgements
//	APPEND   messages with entries
//
// A sender goroutine per stream packs whatever has gathered meanwhile into one
// frame; there is no timer, so batches grow with the load alone. Queues are
// bounded; what does not fit is dropped and the peer reported as unreachable
// (raft sends again). A stream that breaks and can't be made again at once is
// reported as PeerDown: a hint, not a verdict.
//
// # Encoding of messages
//
// A frame's messages field holds messages back to back:
//
//	uvarint shard | type byte | flags byte | uvarint to, from, term, logTerm,
//	index, commit | fields named by flags, in this order:
//	  1 vote        uvarint
//	  2 reject      uvarint rejectHint
//	  4 context     uvarint length, bytes (at most 256)
//	  8 entries     uvarint count, then each: uvarint term less the message's
//	                logTerm (terms never fall within a log), type byte,
//	                uvarint length, data; indexes follow the message's index
//	  16 snapshot   uvarint index, term, length, ConfState (protobuf)
//
// A decoder accepts these and nothing else; entry data is copied out of the
// frame once, since raft keeps it.
//
// # Invariants
//
//	T1  A stream carries messages of one cluster, from one node to one other;
//	    the hello that opens it is checked on the receiving side.
//	T2  Messages of one class between two nodes arrive in order or not at all.
//	T3  Every snapshot handed to Send is answered by exactly one SnapshotSent.
package transport
