// Package crash is a test of promise P9 for the case that real processes can't
// show: power loss. A killed process leaves the page cache behind; here every
// byte and every folder entry that was not synced may be gone.
//
// Three nodes, a gateway and clients of the SDK run in this process, on real
// time and real gRPC; the nodes' files lie on Pebble's crashable memory file
// system. While the clients hold, queue for and release locks, all three file
// systems are cloned again and again as a crash would leave them. What a clone
// holds is opened by the code that recovers a node, and the cluster that could
// come out of it is compared with what the clients had been told.
//
// No election is played: whoever leads after the crash has the most up-to-date
// log of some majority, and commits all of it. So for each majority that log is
// applied, which covers every election there could be.
//
//	go test ./ops/crash -args -clones 1000
package crash
