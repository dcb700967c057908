// Package snapshot keeps the files with the shards' states in a folder of their
// own. It knows nothing of what is in them.
//
// # A file
//
// Integers are little endian.
//
//	offset  bytes
//	0       8      "MRTSNAP\n"
//	8       1      format, 1
//	9       3      0
//	12      4      shard
//	16      8      index: the last log index whose effects are in the state
//	24      n      content
//	24+n    8      n
//	32+n    4      crc32c of everything before
//
// The sum covers the whole file, so a file that is cut, damaged or under the
// name of another is noticed. A peer is sent the file as it is.
//
// # Names
//
// A finished file ends in ".snap". Whatever is being written ends in ".tmp";
// such a file left by a crash is removed by Collect. Commit is: sync the file,
// rename it, sync the folder; only then may the log's base name it. The log
// store's base names the one file of a shard that counts: at start, Collect
// removes all others.
package snapshot
