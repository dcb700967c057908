package crash

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/mortise-lock/mortise/shard"
)

var (
	clones = flag.Int("clones", 25, "how many crashes TestPowerLoss looks at")
	seed   = flag.Uint64("seed", 0, "of the choice of what survives; 0: a new one")
)

// TestPowerLoss: whatever the crash of all nodes at once leaves, every hold,
// every place in a queue and every token that a client was told of is there,
// and nothing is granted twice, neither in any state that an election could
// lead to nor by the cluster that starts again.
func TestPowerLoss(t *testing.T) {
	c := start(t, nil)
	began := time.Now()
	s := crash(t, c, *clones)
	for _, f := range s.found {
		t.Error(f)
	}
	t.Logf("%d crashes under load in %v: %d grants acknowledged; compared %d holds, %d places in queues, %d ended holds; "+
		"after %d restarts %d leaders refused %d names that were held and granted %d that were free",
		s.crashes, time.Since(began).Round(time.Second), s.grants, s.holds, s.waits, s.ended, s.restarts, s.leaders, s.refused, s.fresh)
	t.Logf("measured at %d crashes: %v", s.measured, s.lost)
	if s.holds == 0 || s.waits == 0 || s.ended == 0 || s.refused == 0 || s.fresh == 0 {
		t.Error("some kind of acknowledgement was never looked for")
	}
	if s.lost.bytes == 0 || s.lost.entries == 0 {
		t.Error("the crashes lost nothing, so they prove nothing")
	}
}

// TestLostSyncsAreFound: the same test finds disks that lie about their syncs.
func TestLostSyncsAreFound(t *testing.T) {
	for _, x := range []struct {
		name  string
		late  bool
		about func(path string) bool
	}{
		{"WAL", false, func(p string) bool { return strings.HasSuffix(p, ".log") }},
		// As if nodes answered before they synced.
		{"WAL, late", true, func(p string) bool { return strings.HasSuffix(p, ".log") }},
		{"snapshots", false, func(p string) bool { return strings.Contains(p, "/snapshots/") }},
		{"entries of the snapshots' folder", false, func(p string) bool { return strings.HasSuffix(p, "/snapshots") }},
		{"entries of the log's folder", false, func(p string) bool { return strings.HasSuffix(p, "/log") }},
	} {
		t.Run(x.name, func(t *testing.T) {
			l := &lies{about: x.about, late: x.late}
			c := start(t, l)
			if s := crash(t, c, 3); len(s.found) > 0 {
				t.Fatalf("before the disks began to lie: %s", s.found[0])
			}
			l.begun.Store(true)
			if s := crash(t, c, 300); len(s.found) == 0 {
				t.Errorf("%d crashes of nodes that lied about their syncs lost nothing that anybody noticed", s.crashes)
			} else {
				t.Logf("found: %s", s.found[0])
			}
		})
	}
}

// summary of the crashes looked at.
type summary struct {
	crashes, grants, holds, waits, ended int
	restarts, leaders, refused, fresh    int
	measured                             int // crashes whose loss was measured
	lost                                 loss
	// largest is the largest token acknowledged in each shard before the crash.
	largest map[shard.ID]uint64
	found   []string
}

func crash(t *testing.T, c *cluster, times int) *summary {
	t.Helper()
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("seed %d", *seed)
	rng := rand.New(rand.NewPCG(*seed, 1))
	ctx, stop := context.WithCancel(context.Background())
	r := &record{}
	clients := load(ctx, t, c, r, 8)
	defer func() {
		stop()
		clients.Wait()
	}()
	s := &summary{largest: map[shard.ID]uint64{}}
	for ; s.crashes < times && len(s.found) == 0 && !t.Failed(); s.crashes++ {
		if err := r.progress(ctx, s.crashes == 0, rng.IntN(40)); err != nil {
			t.Fatal(err)
		}
		percent := rng.IntN(101)
		if rng.IntN(3) == 0 {
			percent = 0
		}
		measure := s.crashes%5 == 0
		x := c.crash(rng, r, percent, measure)
		v := &verdict{summary: s, before: x.before, after: x.after}
		if measure { // before recovery writes to the disks
			s.measured++
			s.lost.add(x.whole, x.disks)
		}
		if err := v.compare(x.disks); err != nil {
			s.found = append(s.found, fmt.Sprintf("crash %d, %d%% of what was not synced survived: %v", s.crashes, percent, err))
		}
	}
	r.mu.Lock()
	s.grants = r.grants
	r.mu.Unlock()
	return s
}

func wait(d time.Duration) { <-time.After(d) }
