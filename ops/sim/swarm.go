package sim

import (
	"math/rand/v2"

	"github.com/mortise-lock/mortise/node/worker"
)

// Swarm draws the world of a seed: its size, its weather, and its own mix of
// faults, so that rare combinations come up which no fixed mix has.
func Swarm(seed uint64) Config {
	r := rand.New(rand.NewPCG(seed, 0x737761726d))
	between := func(a, b Time) Time { return a + Time(r.Int64N(int64(b-a)+1)) }
	chance := func(p float64) bool { return r.Float64() < p }
	some := func(p, most float64) float64 {
		if !chance(p) {
			return 0
		}
		return most * r.Float64()
	}
	c := Config{Seed: seed, Nodes: 3, Workers: 1 + r.IntN(2), Shards: 1 + r.IntN(4), Embedded: chance(0.4), Encode: chance(0.1)}
	if chance(0.4) {
		c.Nodes = 5
	}
	if chance(0.2) {
		c.Shards = 1 + r.IntN(16)
	}
	c.Gateways = 1 + r.IntN(c.Nodes)
	if c.Embedded {
		c.Gateways = c.Nodes // one of them may be lost for good
	}
	c.Clients = 4 + r.IntN(17)
	c.Names = 1 + r.IntN(24)
	if chance(0.8) {
		c.ClockPPM = r.Int64N(10_001)
	}
	switch r.IntN(3) {
	case 0: // one rack
	case 1:
		c.Latency, c.Jitter = between(100*us, 2*ms), between(0, 5*ms)
	case 2:
		c.Latency, c.Jitter = between(ms, 40*ms), between(0, 20*ms)
	}
	c.Spikes = some(0.3, 0.002)
	c.Sync = between(50*us, 10*ms)
	c.StepTime = between(10*us, 300*us)
	c.SnapshotTime = between(ms, 2*second)
	c.RaftDrop, c.RaftDup = some(0.3, 0.02), some(0.3, 0.02)
	c.SnapDamage = some(0.3, 0.3)
	c.Snapshots = worker.SnapshotPolicy{Entries: uint64(20 + r.IntN(400)), KeepEntries: uint64(1 + r.IntN(100))}
	if chance(0.2) {
		c.Snapshots.KeepBytes = 1 + r.Int64N(5000)
	}
	if chance(0.1) {
		c.Limits = worker.Limits{PendingCommands: 8 + r.IntN(50), InflightEntries: 1 + r.IntN(8), BatchCommands: 1 + r.IntN(16), ExpirePerEntry: 1 + r.IntN(4)}
	}
	c.Load = swarmLoad(r, &c)
	c.Storm = swarmStorm(r)
	if seed%20 == 19 {
		c.Storm.Length = 15 * 60 * second
		c.Load.OpEvery *= 3
	}
	return c
}

func swarmLoad(r *rand.Rand, c *Config) *Load {
	all := []Time{second, 2 * second, 3 * second, 5 * second, 10 * second, 20 * second}
	l := &Load{HoldFor: 50*ms + Time(r.Int64N(int64(3*second)))}
	for range 1 + r.IntN(3) {
		l.TTLs = append(l.TTLs, all[r.IntN(len(all))])
	}
	// At least a thousand operations, over all clients.
	l.OpEvery = 70 * second * Time(c.Clients) / Time(1000+r.IntN(1000))
	l.Describe = 0.2 * r.Float64()
	if r.IntN(2) == 0 {
		l.Unary = 0.4 * r.Float64()
	}
	l.Reopen = 0.05 * r.Float64()
	l.Cancel = 0.3 * r.Float64()
	if r.IntN(2) == 0 {
		l.LockDelay, l.MaxHold = 0.1*r.Float64(), 0.1*r.Float64()
	}
	l.LongHold = 0.1 * r.Float64()
	return l
}

func swarmStorm(r *rand.Rand) *Storm {
	s := &Storm{Length: 120 * second, Every: 300*ms + Time(r.Int64N(int64(8*second))), Stay: second + Time(r.Int64N(int64(30*second)))}
	if r.IntN(10) == 0 {
		s.Every = hour // calm
	}
	// About a third of all kinds.
	for f := range s.Weights {
		if r.IntN(3) == 0 {
			s.Weights[f] = 0.1 + r.Float64()
		}
	}
	return s
}
