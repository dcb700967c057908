package shard

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// rig feeds a machine with one batch after the other.
type rig struct {
	t    testing.TB
	m    *Machine
	out  Outcome
	time LeaderTime
	buf  []byte
}

func newRig(t testing.TB) *rig {
	return &rig{t: t, m: New(Config{ID: 1, Floor: 1, Owns: everything()})}
}

func (r *rig) apply(c ...Command) []Result {
	r.t.Helper()
	b := Batch{Time: r.time, Commands: c}
	r.buf = b.AppendTo(r.buf[:0])
	if err := r.m.Apply(r.m.Applied()+1, 1, r.buf, &r.out); err != nil {
		r.t.Fatal(err)
	}
	return r.out.Results
}

func (r *rig) register(n int) Registration {
	r.t.Helper()
	return r.apply(Command{Kind: KindRegister, Session: SessionID{1, byte(n), byte(n >> 8)}, Client: fmt.Sprintf("client-%d", n), TTL: 1e10})[0].Registration
}

// name60 returns names of 60 bytes.
func name60(i int) string {
	return fmt.Sprintf("tenant-%04d/service/inventory/warehouse/resource-%012d", i%1000, i)[:60]
}

// take acquires count names, from the first on, in batches of 500.
func (r *rig) take(reg Registration, first, count int, wait int64) {
	r.t.Helper()
	for i := first; i < first+count; i += 500 {
		var c []Command
		for j := i; j < min(i+500, first+count); j++ {
			c = append(c, Command{Kind: KindAcquire, Registration: reg, Acquire: AcquireID{Seq: uint64(j + 1)}, Name: name60(j), Mode: Exclusive, Wait: wait})
		}
		for _, res := range r.apply(c...) {
			if res.Status != StatusOK {
				r.t.Fatalf("%+v", res)
			}
		}
	}
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// BenchmarkBytesPerHeldLock reports what one exclusive hold of a 60-byte name
// takes with two million of them, all in.
func BenchmarkBytesPerHeldLock(b *testing.B) {
	const n, regs = 2_000_000, 20
	for range b.N {
		before := heapInUse()
		r := newRig(b)
		for k := range regs {
			r.take(r.register(k), k*(n/regs), n/regs, 0)
		}
		r.buf, r.out = nil, Outcome{}
		after := heapInUse()
		s := r.m.Stats()
		if s.Holds != n {
			b.Fatal(s)
		}
		b.ReportMetric(float64(after-before)/n, "B/lock")
		b.ReportMetric(float64(s.Bytes)/n, "stated-B/lock")
		gc := time.Now()
		runtime.GC()
		b.ReportMetric(float64(time.Since(gc).Microseconds())/1000, "gc-ms")
		snap := time.Now()
		x := r.m.Snapshot()
		b.ReportMetric(float64(time.Since(snap).Microseconds()), "snapshot-us")
		write := time.Now()
		size, _ := x.WriteTo(io.Discard)
		x.Close()
		b.ReportMetric(float64(time.Since(write).Milliseconds()), "write-ms")
		b.ReportMetric(float64(size)/n, "snapshot-B/lock")
		hash := time.Now()
		r.m.Hash()
		b.ReportMetric(float64(time.Since(hash).Milliseconds()), "hash-ms")
		list := time.Now()
		r.m.List("", "", 1000)
		b.ReportMetric(float64(time.Since(list).Milliseconds()), "list-ms")
		runtime.KeepAlive(r)
	}
}

// BenchmarkAcquireRelease is one acquire and one release of a free name.
func BenchmarkAcquireRelease(b *testing.B) {
	r := newRig(b)
	reg := r.register(1)
	b.ReportAllocs()
	for i := range b.N {
		seq := AcquireID{Seq: uint64(i + 1)}
		r.apply(Command{Kind: KindAcquire, Registration: reg, Acquire: seq, DoneBelow: uint64(i), Name: "a/name", Mode: Exclusive})
		r.apply(Command{Kind: KindRelease, Registration: reg, Acquire: seq, Name: "a/name"})
	}
}

// BenchmarkEndOf200000 is the entry that ends a registration with 200,000
// uncontended holds, and that with as many contended ones as are allowed.
func BenchmarkEndOf200000(b *testing.B) {
	for _, contended := range []int{0, 8_192} {
		b.Run(fmt.Sprintf("contended=%d", contended), func(b *testing.B) {
			// The best of several runs is least disturbed by the machine's
			// other work.
			best, worstLater := time.Hour, time.Duration(0)
			for range b.N {
				b.StopTimer()
				r := newRig(b)
				reg := r.register(1)
				r.take(reg, 0, 200_000, 0)
				for k := 0; k < contended; k += 8_192 {
					r.take(r.register(2+k), k, 8_192, 1e12)
				}
				b.StartTimer()
				t := time.Now()
				res := r.apply(Command{Kind: KindExpire, Registration: reg, Epoch: 1, Term: 1})
				best = min(best, time.Since(t))
				if res[0].Ended != 200_000 || len(r.out.Events) != 1+contended {
					b.Fatal(res[0], len(r.out.Events))
				}
				for r.m.leftovers != nil {
					t = time.Now()
					r.apply(Command{Kind: KindWake, Name: "none"})
					worstLater = max(worstLater, time.Since(t))
				}
			}
			b.ReportMetric(float64(best.Microseconds()), "best-us")
			b.ReportMetric(float64(worstLater.Microseconds()), "worst-later-us")
		})
	}
}

// TestManyNames grows, shrinks and regrows a shard far enough for every index
// segment to split, with snapshots written on another goroutine meanwhile.
func TestManyNames(t *testing.T) {
	r := newRig(t)
	reg, other := r.register(1), r.register(2)
	n := 20_000
	var wg sync.WaitGroup
	defer wg.Wait()
	check := func() {
		t.Helper()
		if err := r.m.Check(); err != nil {
			t.Fatal(err)
		}
		hash, s := r.m.Hash(), r.m.Snapshot()
		wg.Go(func() {
			defer s.Close()
			var buf bytes.Buffer
			if _, err := s.WriteTo(&buf); err != nil {
				t.Error(err)
				return
			}
			m, err := Restore(&buf)
			if err != nil {
				t.Error(err)
				return
			}
			if m.Hash() != hash || s.Hash() != hash {
				t.Error("a snapshot that was written meanwhile has another hash")
			}
			if err := m.Check(); err != nil {
				t.Error(err)
			}
		})
	}
	r.take(reg, 0, n, 0)
	check()
	for i := range n / 2 {
		if res := r.apply(Command{Kind: KindRelease, Registration: reg, Acquire: AcquireID{Seq: uint64(i + 1)}, Name: name60(i)}); res[0].Status != StatusOK {
			t.Fatal(res[0])
		}
	}
	check()
	r.take(other, 0, n/2, 0)
	check()
	r.apply(Command{Kind: KindClose, Registration: reg})
	check()
	if got := r.m.Stats(); got.Holds != uint64(n/2) || got.Registrations != 1 {
		t.Fatal(got)
	}
	var all []string
	for after, more := "", true; more; {
		var page []LockView
		page, more = r.m.List("tenant-", after, 1000)
		for _, l := range page {
			after = l.Name
			all = append(all, l.Name)
		}
	}
	if len(all) != n/2 || !slices.IsSorted(all) {
		t.Fatal(len(all))
	}
	for r.m.leftovers != nil {
		r.apply(Command{Kind: KindLeave})
	}
	r.time += OutcomeRetention
	for range 200 {
		r.apply(Command{Kind: KindLeave})
	}
	check()
	if r.m.acqs.live() != n/2 || r.m.locks.live() != n/2 || r.m.regs.live() != 1 {
		t.Fatal("leftovers stay", r.m.acqs.live(), r.m.locks.live(), r.m.regs.live())
	}
}

// TestPosition: exact near the head, never below the truth further back.
func TestPosition(t *testing.T) {
	r := newRig(t)
	var regs []Registration
	for i := range 4 {
		regs = append(regs, r.register(i))
	}
	const n = 1000
	ask := func(i int) Result {
		return r.apply(Command{Kind: KindAcquire, Registration: regs[i%4], Acquire: AcquireID{Seq: uint64(i + 1)}, Name: "x", Mode: Exclusive, Wait: 1e12})[0]
	}
	for i := range n {
		if res := ask(i); i > 0 && res.Position != i-1 {
			t.Fatal(i, res)
		}
	}
	gone := 0
	for i := 2; i < n; i += 3 {
		r.apply(Command{Kind: KindCancel, Registration: regs[i%4], Acquire: AcquireID{Seq: uint64(i + 1)}, Name: "x"})
		gone++
	}
	left := 0
	for i := 1; i < n; i++ {
		if i%3 == 2 {
			continue
		}
		got := ask(i)
		if left <= positionExact && got.Position != left || got.Position < left || got.Position >= n-gone {
			t.Fatalf("acquire %d: position %d, %d are in front", i, got.Position, left)
		}
		left++
	}
}
