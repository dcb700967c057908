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
// # Opening a stream
//
// The sender's version of this protocol is in the header mortise-wire-version;
// the first frame says which node of which cluster speaks to which. A receiver
// that does not fit refuses with FAILED_PRECONDITION and a message for whoever
// runs the nodes. Both log it once a minute at most, and the sender asks again
// every 10 s. Otherwise a stream is reopened after 50 ms to 1 s, and within half a
// second when the peer, restarted or put right, opens one of its own.
//
// # Snapshots
//
// A snapshot goes as it is in the sender's file, in chunks with a checksum
// each, to a file that exists only when all of it came and its own checksum is
// right. Limits: one at a time per peer and two in all are sent, in the order
// in which raft asked; two are received, one per shard, and only what the
// receiver's disk has room for. All that are sent share a token bucket. A
// failure is reported after a pause that doubles up to 5 s, because raft tries
// again as soon as it knows.
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
//	T2  Messages of one class between two nodes arrive in order or not at all,
//	    also when a broken stream's last frames are still under way.
//	T3  Every snapshot handed to Send is answered by exactly one SnapshotSent.
//	T4  What is installed is whole; nothing remains of what is not.
package transport
