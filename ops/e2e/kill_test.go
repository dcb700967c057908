package e2e

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	mortise "github.com/mortise-lock/mortise/sdk"
)

// Bounds on the time from the kill of a leader to the first grant in each
// shard that it led.
const (
	killMedianMax = 1500 * time.Millisecond
	killWorstMax  = 3 * time.Second
)

// TestLeaderKilledUnderLoad kills the node that leads most shards while 200
// clients acquire and release: none of them sees an error.
func TestLeaderKilledUnderLoad(t *testing.T) {
	c := startDev(t, 3)
	killUnderLoad(t, c, pick(3, 10), func() []*server {
		s, _ := c.busiest()
		return []*server{s}
	})
}

// TestServersFromConfigFiles does the same to a cluster that was made without
// `mortise dev`, from three configuration files.
func TestServersFromConfigFiles(t *testing.T) {
	c := startServers(t, 3)
	killUnderLoad(t, c, pick(1, 10), func() []*server {
		// The first server's gateway is the one that the load uses.
		leaders := c.leaders()
		led := map[*server]int{}
		for _, s := range leaders {
			led[s]++
		}
		if led[c.servers[1]] >= led[c.servers[2]] {
			return c.servers[1:2]
		}
		return c.servers[2:3]
	})
}

// TestZoneKilled kills both nodes of one zone out of five nodes in three zones.
func TestZoneKilled(t *testing.T) {
	c := startDev(t, 5)
	zones := map[string][]*server{}
	for _, s := range c.servers {
		zones[s.zone] = append(zones[s.zone], s)
	}
	if len(zones) != 3 {
		t.Fatalf("five nodes are in %d zones, want three", len(zones))
	}
	killUnderLoad(t, c, pick(2, 10), func() []*server {
		// Of the two zones with two nodes each, the one that leads more.
		led := map[string]int{}
		for shard, s := range c.leaders() {
			if shard != 0 && len(zones[s.zone]) == 2 {
				led[s.zone]++
			}
		}
		var most []*server
		count := -1
		for z, members := range zones {
			if len(members) == 2 && led[z] > count {
				most, count = members, led[z]
			}
		}
		if most == nil {
			t.Fatalf("no zone has two nodes: %v", zones)
		}
		return most
	})
}

func killUnderLoad(t *testing.T, c *cluster, rounds int, victims func() []*server) {
	names := c.namesOf()
	l := startLoad(t, loadSpec{clients: 200, ttl: 10 * time.Second, think: 250 * time.Millisecond,
		names: 8, contested: 20, patience: 20 * time.Second}, c.grpc)
	probe := open(t, "probe", 10*time.Second, c.grpc)
	// The probe's session is registered in every shard before the first kill.
	for _, name := range names {
		release(t, lock(t, probe, name, 10*time.Second))
	}
	var all []time.Duration
	for round := range rounds {
		c.spread()
		dead := victims()
		var affected []uint32
		for shard, s := range c.leaders() {
			for _, d := range dead {
				if s == d && shard != 0 {
					affected = append(affected, shard)
				}
			}
		}
		killed := time.Now()
		c.signal(syscall.SIGKILL, dead...)
		took := make(chan time.Duration)
		for _, shard := range affected {
			go func() { took <- untilGranted(l, probe, names[shard], killed) }()
		}
		var times []time.Duration
		for range affected {
			times = append(times, <-took)
		}
		t.Logf("round %d: killed %s, leaders of %d shards: first grants p50 %v, worst %v", round, namesOfServers(dead), len(affected),
			quantile(times, 0.5).Round(time.Millisecond), quantile(times, 1).Round(time.Millisecond))
		all = append(all, times...)
		c.gone(dead...)
		c.restart(dead...)
		c.caughtUp(30 * time.Second)
	}
	l.stop()
	p50, worst := quantile(all, 0.5), quantile(all, 1)
	figure(t, "kill to first grant per affected shard: p50 %v, worst %v of %d in %d kills; %d pairs meanwhile",
		p50.Round(time.Millisecond), worst.Round(time.Millisecond), len(all), rounds, l.pairs.Load())
	if len(all) < 4*rounds {
		t.Errorf("%d kills hit only %d leaders", rounds, len(all))
	}
	if p50 > killMedianMax || worst > killWorstMax {
		t.Errorf("kill to first grant: p50 %v, worst %v; promised are %v and %v", p50, worst, killMedianMax, killWorstMax)
	}
}

// untilGranted takes a lock with an acquire that was sent after the kill, so
// that only the next leader can have granted it.
func untilGranted(l *load, c *mortise.Client, name string, since time.Time) time.Duration {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	g, err := c.Lock(ctx, name)
	took := time.Since(since)
	if err != nil {
		l.report("probe: lock %s: %v", name, err)
		return took
	}
	if err := g.Release(ctx); err != nil {
		l.report("probe: release %s: %v", name, err)
	}
	return took
}

func release(t *testing.T, g *mortise.Grant) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := g.Release(ctx); err != nil {
		t.Fatalf("release %s: %v", g.Name(), err)
	}
}

func namesOfServers(servers []*server) string {
	var out []string
	for _, s := range servers {
		out = append(out, s.name)
	}
	return fmt.Sprint(out)
}

// TestLeaderFrozen stops the node that leads most shards for longer than an
// election takes, as a long pause would, and lets it go on: clients see no
// error, and no session of theirs ends.
func TestLeaderFrozen(t *testing.T) {
	c := startDev(t, 3)
	names := c.namesOf()
	l := startLoad(t, loadSpec{clients: 60, ttl: 10 * time.Second, think: 100 * time.Millisecond,
		names: 8, contested: 10, patience: 20 * time.Second}, c.grpc)
	probe := open(t, "probe", 10*time.Second, c.grpc)
	var kept []*mortise.Grant
	for _, name := range names {
		release(t, lock(t, probe, name, 10*time.Second))
		kept = append(kept, lock(t, probe, name+"/kept", 10*time.Second))
	}
	var all []time.Duration
	for range pick(1, 5) {
		s, led := c.busiest()
		stopped := time.Now()
		c.signal(syscall.SIGSTOP, s)
		took := make(chan time.Duration)
		for _, shard := range led {
			go func() { took <- untilGranted(l, probe, names[shard], stopped) }()
		}
		for range led {
			all = append(all, <-took)
		}
		time.Sleep(time.Until(stopped.Add(6 * time.Second)))
		c.signal(syscall.SIGCONT, s)
		c.caughtUp(30 * time.Second)
	}
	for _, g := range kept {
		if err := g.Err(); err != nil {
			t.Errorf("%s: %v", g.Name(), err)
		}
	}
	l.stop()
	figure(t, "leader frozen to first grant per affected shard: p50 %v, worst %v of %d",
		quantile(all, 0.5).Round(time.Millisecond), quantile(all, 1).Round(time.Millisecond), len(all))
}
