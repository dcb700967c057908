// Package disk is the log store on Pebble: all replicas of a node in one
// store, one writer goroutine, one sync for whatever steps gathered meanwhile.
//
// # Keys
//
// Integers in keys are 8 bytes, big endian.
//
//	'h' shard         HardState
//	'l' shard index   log entry
//	't' shard         Base, with replica id and truncated index
//	'x' shard         reserved (tombstones of removed replicas)
//	's' "format"      version of this layout
//	's' "identity"    cluster and node that the directory belongs to
//	's' "seq"         number of the last batch
//	's' "m/" name     small records of the node (Store.PutMeta)
//
// # Values
//
// Every value is crc32c(key || payload), 4 bytes little endian, then the
// payload; the key is in the sum so that a value under a wrong key is noticed.
// Integers in payloads are uvarints.
//
//	entry       term, type, data to the end
//	HardState   term, vote, commit
//	Base        replica, index, term, truncated, length of file name, file name,
//	            ConfState (protobuf) to the end
//	format      version
//	identity    node id, cluster id to the end
//	seq         number
//
// # The file "watermark"
//
// Pebble takes a damaged end of its MANIFEST or of its newest WAL for a write
// that a crash tore. So that history cannot vanish unnoticed, a file of its own
// says which batch is known to be durable: crc32c (4 bytes, little endian) of the
// rest, format (1 byte, 1), number (8 bytes, little endian). It is replaced
// (write, sync, rename, sync of the folder) after every flush and at Close. A
// store whose "seq" is lower is corrupt. What remains: after a kill or a power
// cut, damage within the last block (32 KiB) of the newest WAL looks like a torn
// write, because only a later block tells that it had been synced. After Close the
// WAL is empty.
//
// # Invariants
//
//  1. A batch holds whole steps. One WAL, written in order: what survives a
//     crash is a prefix of the batches.
//  2. Entries and the HardState that speaks of them share a batch; every change
//     of the Base, and with it every truncation, carries the HardState.
//  3. After each step Base.Index <= Commit <= last index; a step that would
//     break this is refused (logstore.ErrInvalid) before it is written.
//  4. After the first error of a write or sync, and after the first sign of
//     corruption, nothing is acknowledged any more and nothing is retried: a
//     second fsync may succeed over pages that the first one lost.
package disk
