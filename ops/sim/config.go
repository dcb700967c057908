package sim

import (
	"github.com/mortise-lock/mortise/node/worker"
)

// Config says what a world is made of. Unset fields get the value in brackets;
// those of faults mean none.
type Config struct {
	// Seed pins everything that is drawn.
	Seed uint64
	// Nodes [3], Workers per node [1], lock Shards [1], Gateways [Nodes],
	// Clients [0].
	Nodes, Workers, Shards, Gateways, Clients int
	// Embedded puts gateway i into the process of node i.
	Embedded bool
	// ClockPPM bounds the rate error of every process's clock, in millionths.
	ClockPPM int64
	// Latency [100 us] and Jitter [200 us] of every frame; Spikes is the part of
	// frames that take up to 400 ms longer.
	Latency, Jitter Time
	Spikes          float64
	// Sync is what a sync takes on average [1 ms]; StepTime what a step may
	// wait for its turn [50 us]; SnapshotTime what writing or sending a
	// snapshot may take [200 ms].
	Sync, StepTime, SnapshotTime Time
	// RaftDrop and RaftDup are the parts of frames between nodes that are lost
	// or come twice; SnapDamage the part of snapshots damaged on their way.
	RaftDrop, RaftDup, SnapDamage float64
	// Encode copies everything that crosses a wire through its encoding.
	Encode bool
	// Snapshots and Limits of the workers.
	Snapshots worker.SnapshotPolicy
	Limits    worker.Limits
	// Names in use by the workload [8].
	Names int
	// Load is the workload of the clients; Storm the faults. Nil: none.
	Load  *Load
	Storm *Storm
	// Trace gets a line for everything that happens.
	Trace func(line string)
}

func orDefault[T int | Time](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

func (c *Config) setDefaults() {
	orDefault(&c.Nodes, 3)
	orDefault(&c.Workers, 1)
	orDefault(&c.Shards, 1)
	orDefault(&c.Gateways, c.Nodes)
	orDefault(&c.Latency, 100*us)
	orDefault(&c.Jitter, 200*us)
	orDefault(&c.Sync, ms)
	orDefault(&c.StepTime, 50*us)
	orDefault(&c.SnapshotTime, 200*ms)
	orDefault(&c.Names, 8)
}

// Load says what the clients do by themselves.
type Load struct {
	// OpEvery is the mean time between two acquires of a client, HoldFor the
	// mean time that it keeps a lock.
	OpEvery, HoldFor Time
	// Parts of what a client begins: unary acquires, describes, sessions closed
	// and opened anew, acquires that are cancelled.
	Unary, Describe, Reopen, Cancel float64
	// Parts of acquires: with a lock-delay, with a longest hold, held for longer
	// than a TTL.
	LockDelay, MaxHold, LongHold float64
	// TTLs to draw from.
	TTLs []Time
}

// Stats count what happened in a run.
type Stats struct {
	Events, Steps, Ops, Grants, Queued, Cancels, Unary, KeepAlives, Describes, Writes uint64
	WritesRefused, Snapshots, Installed, Transfers, Stalls, Stale, DamageFound        uint64
	Failed                                                                            [8]uint64
	LostBy                                                                            [16]uint64
	Faults                                                                            [faults]uint64
}

func (s *Stats) add(o *Stats) {
	for _, f := range []struct{ a, b *uint64 }{{&s.Events, &o.Events}, {&s.Steps, &o.Steps}, {&s.Ops, &o.Ops}, {&s.Grants, &o.Grants},
		{&s.Queued, &o.Queued}, {&s.Cancels, &o.Cancels}, {&s.Unary, &o.Unary}, {&s.KeepAlives, &o.KeepAlives}, {&s.Describes, &o.Describes},
		{&s.Writes, &o.Writes}, {&s.WritesRefused, &o.WritesRefused}, {&s.Snapshots, &o.Snapshots}, {&s.Installed, &o.Installed},
		{&s.Transfers, &o.Transfers}, {&s.Stalls, &o.Stalls}, {&s.Stale, &o.Stale}, {&s.DamageFound, &o.DamageFound}} {
		*f.a += *f.b
	}
	for i := range s.Failed {
		s.Failed[i] += o.Failed[i]
	}
	for i := range s.LostBy {
		s.LostBy[i] += o.LostBy[i]
	}
	for i := range s.Faults {
		s.Faults[i] += o.Faults[i]
	}
}
