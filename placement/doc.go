// Package placement holds the pure part of the placement map: the state
// machine of the meta shard, the first plan of a new cluster, and the
// conversion of a map into a router. No clock, no randomness, no I/O.
//
// # The map
//
// A map is a *placementv1.Map that nobody changes once it was handed out:
// Machine clones it on each write, so readers share pointers without locks.
// Invariants of every map that leaves this package (Validate checks them):
//
//	P1. Generation is at least 1 and rises by one with every change.
//	P2. Nodes, shards and pins are in strictly rising order of id or prefix.
//	P3. Shard 0 is the meta shard; it owns no names.
//	P4. Every replica id is at least 1, below NextReplicaID, and in one shard
//	    only; every shard id is below NextShardID, every node id below NextNodeID.
//	P5. No shard has two replicas on one node, and every replica's node exists.
//	P6. The empty prefix is pinned.
//	P7. A lock shard's replicas live in the shard's region.
//	P8. Node names and node addresses are unique.
//
// # Commands
//
// A command is one log entry of the meta shard:
//
//	byte 0      format, 1
//	byte 1      kind (Kind)
//	then        fields by kind; integers are uvarints, a string is its length
//	            as a uvarint and its bytes, an optional string is one byte 0
//	            (unset), or 1 and a string
//
//	UpdateNode  node id, optional address, optional HTTP address, optional
//	            gateway address, optional zone
//
// Bytes after the last field, an unknown format or an unknown kind are errors
// on which the host stops: skipping a command would make replicas differ. An
// empty entry is raft's own and changes nothing. A command that is well formed
// but breaks a rule is refused: it changes nothing on every replica alike, and
// Apply reports the refusal in Result.
//
// # Snapshots
//
//	bytes 0-3   "MPLM"
//	byte 4      format, 1
//	bytes 5-12  applied index, big endian
//	bytes 13-16 length of the map, big endian
//	then        the map (protobuf, deterministic)
//	last 8      xxhash64 of all bytes before, big endian
package placement
