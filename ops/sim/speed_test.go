package sim

import (
	"testing"
	"time"
)

// BenchmarkSpeed tells how many times faster than real time a cluster of five
// nodes with 16 shards and 20 clients runs in fair weather.
func BenchmarkSpeed(b *testing.B) {
	var simulated time.Duration
	var events uint64
	for b.Loop() {
		c := Swarm(7)
		c.Nodes, c.Workers, c.Shards, c.Gateways, c.Clients, c.Names, c.Embedded, c.Encode = 5, 2, 16, 5, 20, 32, false, false
		c.Latency, c.Jitter, c.Spikes, c.RaftDrop, c.RaftDup = 0, 0, 0, 0, 0
		c.Load.OpEvery = 2 * second
		c.Storm = &Storm{Length: 300 * second}
		r := Run(c)
		if len(r.Problems) > 0 {
			b.Fatal(r.Problems[0])
		}
		simulated += time.Duration(r.Took)
		events += uint64(r.Stats.Events)
	}
	b.ReportMetric(simulated.Seconds()/b.Elapsed().Seconds(), "x-real-time")
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}
