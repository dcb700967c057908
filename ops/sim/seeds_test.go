package sim

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"testing/cryptotest"
	"time"
)

var (
	seedsFlag  = flag.Int("seeds", 5, "how many seeds TestSeeds runs")
	firstFlag  = flag.Int64("first", -1, "the first seed; -1: drawn from the clock")
	replayFlag = flag.Int64("replay", -1, "run this seed alone")
	traceFlag  = flag.Bool("trace", false, "print everything that happens")
	allFlag    = flag.Bool("all", false, "go on after a failure, and print each in a line")
	onlyFlag   = flag.String("only", "", "only kinds of faults whose names contain this, in every seed")
	tailFlag   = flag.Int("tail", 80, "lines of the trace that a failure prints")
)

// runSeed pins all randomness and runs a seed.
func runSeed(t *testing.T, seed uint64, trace func(string)) Result {
	cryptotest.SetGlobalRandom(t, seed) // raft's election jitter
	c := Swarm(seed)
	if *onlyFlag != "" {
		for f := range c.Storm.Weights {
			c.Storm.Weights[f] = 0
			if strings.Contains(faultNames[f], *onlyFlag) {
				c.Storm.Weights[f] = 1
			}
		}
	}
	c.Trace = trace
	return Run(c)
}

// tail keeps the last lines.
type tail struct {
	lines []string
	next  int
}

func (l *tail) add(s string) {
	if len(l.lines) < *tailFlag {
		l.lines = append(l.lines, s)
		return
	}
	l.lines[l.next] = s
	l.next = (l.next + 1) % len(l.lines)
}

func (l *tail) String() string {
	return strings.Join(append(append([]string(nil), l.lines[l.next:]...), l.lines[:l.next]...), "\n")
}

// fail prints what went wrong, how to see it again, and its last moments, which
// come from a second run of the same seed.
func fail(t *testing.T, seed uint64, r Result) {
	t.Helper()
	last := &tail{}
	again := runSeed(t, seed, last.add)
	same := "the same to the last event"
	if again.Hash != r.Hash {
		same = "NOT the same: something in the run is not pinned by the seed"
	}
	t.Fatalf("seed %d: %v\nreplay (%s): go test ./ops/sim -count=1 -run TestSeeds -args -replay %d -trace\nlast events:\n%s", seed, r.Problems[0], same, seed, last)
}

func TestSeeds(t *testing.T) {
	first, n := uint64(*firstFlag), *seedsFlag
	if *firstFlag < 0 {
		first = uint64(time.Now().UnixNano()) % (1 << 40)
	}
	if *replayFlag >= 0 {
		first, n = uint64(*replayFlag), 1
	}
	var trace func(string)
	if *traceFlag {
		trace = func(s string) { fmt.Println(s) }
	}
	var sum Stats
	var virtual time.Duration
	var with [faults]int
	began, told := time.Now(), time.Now()
	for seed := first; seed < first+uint64(n); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := runSeed(t, seed, trace)
			sum.add(&r.Stats)
			virtual += r.Took
			for f, k := range r.Stats.Faults {
				if k > 0 {
					with[f]++
				}
			}
			if len(r.Problems) > 0 {
				if *allFlag {
					fmt.Printf("seed %d: %v\n", seed, r.Problems[0])
					t.FailNow()
				}
				if trace != nil {
					t.Fatal(r.Problems[0])
				}
				fail(t, seed, r)
			}
		})
		if t.Failed() && !*allFlag {
			break
		}
		if time.Since(told) > time.Minute {
			told = time.Now()
			fmt.Printf("sim: %d of %d seeds from %d, %v simulated\n", seed-first+1, n, first, virtual.Round(time.Second))
		}
	}
	took := time.Since(began)
	fmt.Printf("sim: %d seeds from %d: %v simulated in %v (%.0f times real time), %d events (%.0f a second), %d operations, %d grants, %d describes, %d writes (%d refused)\n",
		n, first, virtual.Round(time.Second), took.Round(time.Millisecond), virtual.Seconds()/took.Seconds(), sum.Events, float64(sum.Events)/took.Seconds(),
		sum.Ops, sum.Grants, sum.Describes, sum.Writes, sum.WritesRefused)
	fmt.Printf("sim: %d snapshots, %d installed, %d transfers, %d stalls, %d stale frames, %d damaged disks found; failed acquires %v; lost by %v\n",
		sum.Snapshots, sum.Installed, sum.Transfers, sum.Stalls, sum.Stale, sum.DamageFound, sum.Failed, sum.LostBy)
	var b strings.Builder
	for f := range faults {
		fmt.Fprintf(&b, "; %s %d in %d seeds", f, sum.Faults[f], with[f])
	}
	fmt.Printf("sim: faults%s\n", b.String()[1:])
	if n >= 500 {
		for f := range faults {
			if with[f]*100 < n {
				t.Errorf("fault %q happened in %d of %d seeds, which is less than 1%%", f, with[f], n)
			}
		}
	}
}

// TestSame: a seed run twice gives the same run.
func TestSame(t *testing.T) {
	for seed := uint64(100); seed < 103; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			a, b := runSeed(t, seed, nil), runSeed(t, seed, nil)
			if a.Hash != b.Hash || a.Stats != b.Stats {
				t.Fatalf("two runs differ: %x and %x", a.Hash, b.Hash)
			}
		})
	}
}

// TestTraceChangesNothing: a run that is traced is the run that was not.
func TestTraceChangesNothing(t *testing.T) {
	for seed := uint64(200); seed < 203; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			a, b := runSeed(t, seed, nil), runSeed(t, seed, func(string) {})
			if a.Hash != b.Hash {
				t.Fatalf("hashes %x and %x", a.Hash, b.Hash)
			}
		})
	}
}
