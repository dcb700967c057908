// Package chaos breaks a cluster of real processes and judges what its clients
// saw. Each node and each group of clients lives in a network namespace of its
// own, as on a host of its own; a seed draws what is done to them: kill -9,
// SIGSTOP, links cut in both directions or one, pairs of hosts that do not hear
// each other, full disks, processors taken away, leaders moved. Client processes
// record what they ask, hear and rely on (package history) by the machine's one
// monotonic clock, and package checker judges the whole.
//
//	go test ./ops/chaos -v -timeout 0 -args -duration 1h
//
// It needs root, for the namespaces; they are removed at the end. Which faults
// happen and when is drawn from -seed; what the machine makes of it is not
// repeatable, so a failure keeps the history (-keep).
package chaos
