// Package sim runs a whole cluster of Mortise with its clients in one thread on
// virtual time, breaks things, and looks whether the promises hold. What
// decides is the real code: the state machine (shard), the worker with raft
// (node/worker), leases (node/lease), snapshot files (node/snapshot), the
// gateway (gateway/core) and the SDK's session (sdk/core). What is modelled is
// what surrounds them: clocks, network, disk, processes, and the glue that
// node/host, gateway and sdk put around the cores.
//
// README.md beside this file says how to run seeds, read a failure and write a
// scenario.
package sim
