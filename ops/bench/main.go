// Bench loads a running cluster over the Go SDK and prints how many
// acquire+release pairs it did per second and how long an acquire took.
//
//	go run ./ops/bench --endpoints 127.0.0.1:7420 --clients 8 --workers 256 --duration 30s
//
// Workers share the clients' sessions evenly. Each does one pair after the
// other: on distinct names (the default), or all on one name with --handover,
// which then also prints Jain's index of fairness over the workers. --rate
// paces all workers together; then latencies count from when an acquire was
// due, so that a stall is seen by everything that it delayed. --held takes that
// many other locks first and keeps them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	mortise "github.com/mortise-lock/mortise/sdk"
)

type settings struct {
	endpoints  []string
	clients    int
	workers    int
	names      int
	nameBytes  int
	held       int
	rate       float64
	ttl        time.Duration
	warmUp     time.Duration
	duration   time.Duration
	handover   bool
	jsonOutput bool
}

func main() {
	s, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := run(ctx, s)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	r.print(s)
	if r.Errors > 0 {
		os.Exit(1)
	}
}

func parse(args []string) (settings, error) {
	var s settings
	var endpoints string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&endpoints, "endpoints", "127.0.0.1:7420", "gateways, host:port, separated by commas; clients take turns at which is the first")
	f.IntVar(&s.clients, "clients", 8, "SDK clients, each with a connection and a session of its own")
	f.IntVar(&s.workers, "workers", 256, "goroutines that acquire and release")
	f.IntVar(&s.names, "names", 1000, "distinct names per worker")
	f.IntVar(&s.nameBytes, "name-bytes", 60, "length of each name")
	f.IntVar(&s.held, "held", 0, "locks to take first and to keep")
	f.Float64Var(&s.rate, "rate", 0, "pairs per second of all workers together; 0: as fast as they can")
	f.DurationVar(&s.ttl, "ttl", 10*time.Second, "TTL of the sessions")
	f.DurationVar(&s.warmUp, "warm-up", 2*time.Second, "load before the measurement")
	f.DurationVar(&s.duration, "duration", 10*time.Second, "length of the measurement")
	f.BoolVar(&s.handover, "handover", false, "all workers queue for one name")
	f.BoolVar(&s.jsonOutput, "json", false, "print one JSON object")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	s.endpoints = strings.Split(endpoints, ",")
	switch {
	case f.NArg() > 0:
		return s, fmt.Errorf("%q: only flags are known", f.Arg(0))
	case s.clients < 1 || s.workers < 1 || s.names < 1:
		return s, errors.New("clients, workers and names must be 1 or more")
	case s.nameBytes < 24 || s.nameBytes > 512:
		return s, errors.New("name-bytes must be 24 to 512")
	case s.duration <= 0 || s.rate < 0 || s.held < 0:
		return s, errors.New("duration must be above 0, rate and held 0 or more")
	}
	return s, nil
}

// result is what was measured. Durations are in milliseconds.
type result struct {
	Pairs      int64   `json:"pairs"`
	PairsPerS  float64 `json:"pairs_per_s"`
	AcquireP50 float64 `json:"acquire_p50_ms"`
	AcquireP99 float64 `json:"acquire_p99_ms"`
	AcquireMax float64 `json:"acquire_max_ms"`
	ReleaseP50 float64 `json:"release_p50_ms"`
	ReleaseP99 float64 `json:"release_p99_ms"`
	Errors     int64   `json:"errors"`
	FirstError string  `json:"first_error"`
	// Fairness is Jain's index of the pairs per worker; 1 is even.
	Fairness float64 `json:"fairness"`
	// ClientCPU is processor time of this program per second of measurement.
	ClientCPU float64 `json:"client_cpu_s_per_s"`
	HeldS     float64 `json:"held_taken_in_s"`
}

// worker is one goroutine's own record; read when it has ended.
type worker struct {
	acquires, releases []time.Duration
}

type bench struct {
	settings
	// measuring is 1 between warm-up and end.
	measuring atomic.Bool
	errors    atomic.Int64
	first     sync.Once
	firstErr  error
	pace      *pacer
}

func run(ctx context.Context, s settings) (*result, error) {
	b := &bench{settings: s}
	clients := make([]*mortise.Client, s.clients)
	for i := range clients {
		n := i % len(s.endpoints)
		c, err := mortise.Open(ctx, mortise.Config{
			Endpoints:  slices.Concat(s.endpoints[n:], s.endpoints[:n]),
			Owner:      fmt.Sprintf("bench-%d-%d", os.Getpid(), i),
			SessionTTL: s.ttl,
		})
		if err != nil {
			return nil, err
		}
		clients[i] = c
		defer func() {
			end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_ = c.Close(end) // its session ends by itself at the latest
		}()
	}
	r := &result{}
	if s.held > 0 {
		begun := time.Now()
		if err := b.hold(ctx, clients); err != nil {
			return nil, fmt.Errorf("taking %d locks to hold: %w", s.held, err)
		}
		r.HeldS = time.Since(begun).Seconds()
	}
	loop, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.rate > 0 {
		b.pace = newPacer(s.rate)
	}
	workers := make([]worker, s.workers)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() { b.work(loop, clients[i%len(clients)], i, &workers[i]) })
	}
	wait(ctx, s.warmUp)
	cpu := processorTime()
	b.measuring.Store(true)
	begun := time.Now()
	wait(ctx, s.duration)
	b.measuring.Store(false)
	took := time.Since(begun)
	r.ClientCPU = (processorTime() - cpu).Seconds() / took.Seconds()
	cancel()
	wg.Wait()
	r.gather(workers, took)
	r.Errors = b.errors.Load()
	if b.firstErr != nil {
		r.FirstError = b.firstErr.Error()
	}
	return r, ctx.Err()
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// work does pairs until ctx ends. The last pair, which the end cuts off, is
// neither counted nor an error.
func (b *bench) work(ctx context.Context, c *mortise.Client, id int, w *worker) {
	for n := 0; ctx.Err() == nil; n++ {
		begun := time.Now()
		if b.pace != nil {
			begun = b.pace.next(ctx)
		}
		grant, err := c.Lock(ctx, b.name(id, n))
		acquired := time.Now()
		if err != nil {
			b.fail(ctx, err)
			continue
		}
		// Release gets a moment of its own after the end of ctx, and no more: the
		// service may be gone.
		err = grant.Release(ctx)
		if err != nil {
			b.fail(ctx, err)
			continue
		}
		if b.measuring.Load() {
			w.acquires = append(w.acquires, acquired.Sub(begun))
			w.releases = append(w.releases, time.Since(acquired))
		}
	}
}

func (b *bench) fail(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	b.errors.Add(1)
	b.first.Do(func() { b.firstErr = err })
	wait(ctx, 10*time.Millisecond)
}

// name is the n-th name of a worker, filled up to the length asked for.
func (b *bench) name(worker, n int) string {
	name := fmt.Sprintf("bench/%d/%d/", worker, n%b.names)
	if b.handover {
		name = "bench/handover/"
	}
	return name + strings.Repeat("x", max(0, b.nameBytes-len(name)))
}

// hold takes locks with a bounded number of acquires at once.
func (b *bench) hold(ctx context.Context, clients []*mortise.Client) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for i := range 64 * len(clients) {
		wg.Go(func() {
			for ctx.Err() == nil {
				n := next.Add(1)
				if n > int64(b.held) {
					return
				}
				name := fmt.Sprintf("bench/held/%d/", n)
				name += strings.Repeat("x", max(0, b.nameBytes-len(name)))
				if _, err := clients[i%len(clients)].Lock(ctx, name); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// pacer hands out the moments at which acquires are due.
type pacer struct {
	every time.Duration
	mu    sync.Mutex
	due   time.Time
}

func newPacer(rate float64) *pacer {
	return &pacer{every: time.Duration(float64(time.Second) / rate), due: time.Now()}
}

// next waits for the next moment and returns it.
func (p *pacer) next(ctx context.Context) time.Time {
	p.mu.Lock()
	due := p.due
	p.due = due.Add(p.every)
	p.mu.Unlock()
	if d := time.Until(due); d > 0 {
		wait(ctx, d)
	}
	return due
}

func (r *result) gather(workers []worker, took time.Duration) {
	var acquires, releases []time.Duration
	var sum, squares float64
	for _, w := range workers {
		acquires = append(acquires, w.acquires...)
		releases = append(releases, w.releases...)
		n := float64(len(w.acquires))
		sum += n
		squares += n * n
	}
	if squares > 0 {
		r.Fairness = sum * sum / (float64(len(workers)) * squares)
	}
	r.Pairs = int64(len(acquires))
	r.PairsPerS = float64(len(acquires)) / took.Seconds()
	slices.Sort(acquires)
	slices.Sort(releases)
	r.AcquireP50, r.AcquireP99, r.AcquireMax = at(acquires, 0.5), at(acquires, 0.99), at(acquires, 1)
	r.ReleaseP50, r.ReleaseP99 = at(releases, 0.5), at(releases, 0.99)
}

// at is the q-quantile of sorted durations in milliseconds.
func at(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[min(len(sorted)-1, int(q*float64(len(sorted))))].Microseconds()) / 1000
}

func (r *result) print(s settings) {
	if s.jsonOutput {
		b, err := json.Marshal(r)
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			return
		}
		fmt.Println(string(b))
		return
	}
	fmt.Printf("%d clients, %d workers, %v: %.0f pairs/s\n", s.clients, s.workers, s.duration, r.PairsPerS)
	fmt.Printf("acquire p50 %.2f ms, p99 %.2f ms, max %.1f ms; release p50 %.2f ms, p99 %.2f ms\n",
		r.AcquireP50, r.AcquireP99, r.AcquireMax, r.ReleaseP50, r.ReleaseP99)
	fmt.Printf("fairness %.4f, client CPU %.2f s/s, errors %d\n", r.Fairness, r.ClientCPU, r.Errors)
	if s.held > 0 {
		fmt.Printf("%d locks held meanwhile, taken in %.1f s\n", s.held, r.HeldS)
	}
	if r.FirstError != "" {
		fmt.Println("first error:", r.FirstError)
	}
}

// processorTime is the user and system time of this process so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
