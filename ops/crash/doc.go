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
// Whoever leads after the crash has the most up-to-date log of some majority, and
// commits all of it. So for each majority that log is applied and compared, which
// covers every election there could be. Then one is played: the workers of all
// nodes start from what is left, on virtual time, until every shard has a leader
// that serves, and a newcomer asks it for everything that is held and for names
// that are free.
//
// The disks stop one after the other, and a sync takes its time, so that there is
// something to lose; the test fails if nothing was. That it finds what it looks
// for is shown by disks that lie about their syncs (TestLostSyncsAreFound) and, in
// builds with the tag mutants, by nodes that answer too early.
//
//	go test ./ops/crash -args -clones 1000
//	go test -tags mutants ./ops/crash -run EarlyAnswer
package crash
