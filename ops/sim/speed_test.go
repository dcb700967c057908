package sim

import (
	"testing"
	"testing/cryptotest"
	"time"
)

// TestSpeed tells how fast a cluster of five nodes with 16 shards and 20
// clients runs in fair weather. Slower than ten times real time would make
// seeds useless; the aim is in README.md.
func TestSpeed(t *testing.T) {
	c := Swarm(7)
	c.Nodes, c.Workers, c.Shards, c.Gateways, c.Clients, c.Names, c.Embedded, c.Encode = 5, 2, 16, 5, 20, 32, false, false
	c.Latency, c.Jitter, c.Spikes, c.RaftDrop, c.RaftDup = 0, 0, 0, 0, 0
	c.Load.OpEvery = 2 * second
	c.Storm = &Storm{Length: 300 * second}
	cryptotest.SetGlobalRandom(t, 7)
	began := time.Now()
	r := Run(c)
	took := time.Since(began)
	if len(r.Problems) > 0 {
		t.Fatal(r.Problems[0])
	}
	x := r.Took.Seconds() / took.Seconds()
	t.Logf("%v simulated in %v: %.0f times real time, %d events (%.0f a second), %d operations", r.Took.Round(time.Second), took.Round(time.Millisecond), x,
		r.Stats.Events, float64(r.Stats.Events)/took.Seconds(), r.Stats.Ops)
	if x < 10 {
		t.Errorf("a simulated second takes %v", took/time.Duration(r.Took.Seconds()))
	}
}
