package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortise-lock/mortise/ops/history"
	mortise "github.com/mortise-lock/mortise/sdk"
	"golang.org/x/sys/unix"
)

// now is the one clock of the run: CLOCK_MONOTONIC is the same for all
// processes of a machine.
func now() history.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return history.Time(ts.Nano())
}

// orders are what a client process is told on its standard input.
type orders struct {
	Index     int // of the process in the history
	Endpoints []string
	TTL       time.Duration
	Sessions  int
	Names     []string
	Store     string // socket of the protected store
	// Prove: no load; take a lock in each shard of Shards, then describe all
	// Names, then end.
	Prove  bool
	Shards int
}

// recorder writes each event at once, so that a kill loses none that counts.
type recorder struct {
	mu    sync.Mutex
	out   *json.Encoder
	index int
	call  atomic.Uint64
}

func (r *recorder) record(e history.Event) {
	e.Client, e.Node = r.index, -1
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.At == 0 {
		e.At = now()
	}
	if err := r.out.Encode(e); err != nil {
		os.Exit(3) // the test is gone
	}
}

// newCall is unique in the run.
func (r *recorder) newCall() uint64 { return uint64(r.index)<<32 | r.call.Add(1) }

// client is the main program of a client process. It ends when its standard
// input does.
func client() int {
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return 2
	}
	var o orders
	if err := json.Unmarshal(line, &o); err != nil {
		fmt.Fprintln(os.Stderr, "chaos client:", err)
		return 2
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	r := &recorder{out: json.NewEncoder(os.Stdout), index: o.Index}
	if o.Prove {
		return prove(ctx, &o, r)
	}
	var wg sync.WaitGroup
	for i := range o.Sessions {
		wg.Go(func() { session(ctx, &o, r, i) })
	}
	wg.Wait()
	return 0
}

func openClient(ctx context.Context, o *orders, owner string) *mortise.Client {
	i := rand.IntN(len(o.Endpoints))
	for {
		c, err := mortise.Open(ctx, mortise.Config{Endpoints: append(o.Endpoints[i:len(o.Endpoints):len(o.Endpoints)], o.Endpoints[:i]...), Owner: owner, SessionTTL: o.TTL})
		if err == nil {
			return c
		}
		if ctx.Err() != nil {
			return nil
		}
		fmt.Fprintln(os.Stderr, "chaos client: open:", err)
		pause(ctx, 200*time.Millisecond)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// session acquires, relies, writes, releases and describes until ctx ends, then
// says good-bye.
func session(ctx context.Context, o *orders, r *recorder, i int) {
	owner := fmt.Sprintf("p%d.%d", o.Index, i)
	c := openClient(ctx, o, owner)
	if c == nil {
		return
	}
	r.record(history.Event{Kind: history.SessionOpened, Session: owner, TTL: history.Time(o.TTL)})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for ctx.Err() == nil {
				name := o.Names[rand.IntN(len(o.Names))]
				if rand.IntN(5) == 0 {
					describe(ctx, c, r, owner, name)
				} else {
					hold(ctx, c, r, o, owner, name)
				}
				pause(ctx, rand.N(60*time.Millisecond))
			}
		})
	}
	wg.Wait()
	call := r.newCall()
	r.record(history.Event{Kind: history.Invoke, Op: history.CloseSession, Call: call, Session: owner})
	bye, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	e := history.Event{Kind: history.Return, Op: history.CloseSession, Call: call, Session: owner}
	if c.Close(bye) == nil {
		e.Outcome = history.OK
	}
	r.record(e)
	r.record(history.Event{Kind: history.SessionOver, Session: owner})
}

// hold acquires, relies on the hold, and gives it back. The first letter of a
// name says how it is used: x/ alone, s/ also by readers, k/ counted.
func hold(stop context.Context, c *mortise.Client, r *recorder, o *orders, owner, name string) {
	ctx, cancel := context.WithTimeout(stop, time.Duration(200+rand.IntN(8000))*time.Millisecond)
	defer cancel()
	e := history.Event{Op: history.Acquire, Call: r.newCall(), Session: owner, Name: name, WaitFor: -1, Mode: history.Exclusive, Permits: 1}
	ask := e
	ask.Kind = history.Invoke
	if name[0] == 'k' {
		ask.Mode, ask.Limit = history.Counted, 2
	}
	var g *mortise.Grant
	var err error
	switch {
	case name[0] == 'k':
		r.record(ask)
		g, err = c.Acquire(ctx, name, mortise.Permits{Take: 1, Of: 2})
	case name[0] == 's' && rand.IntN(3) > 0:
		ask.Mode = history.Shared
		r.record(ask)
		g, err = c.RLock(ctx, name)
	case rand.IntN(6) == 0:
		ask.WaitFor = 0
		r.record(ask)
		g, err = c.TryLock(ctx, name)
	default:
		r.record(ask)
		g, err = c.Lock(ctx, name)
	}
	e.Mode, e.Limit, e.WaitFor = ask.Mode, ask.Limit, ask.WaitFor
	back := e
	back.Kind = history.Return
	if err != nil {
		if errors.Is(err, mortise.ErrHeld) && ask.WaitFor == 0 && ctx.Err() == nil {
			back.Outcome = history.Busy
		}
		r.record(back) // else unknown: it was given up, and is cancelled in the background
		return
	}
	back.Outcome, back.Token = history.OK, uint64(g.Token())
	r.record(back)
	belief := e
	belief.Token = uint64(g.Token())
	belief.Kind, belief.At = history.BeliefBegins, now()
	if g.Err() != nil {
		return // over before anybody could rely on it
	}
	r.record(belief)
	for end := time.Now().Add(rand.N(400 * time.Millisecond)); time.Now().Before(end) && g.Err() == nil && stop.Err() == nil; {
		if ask.Mode == history.Exclusive && g.Err() == nil {
			write(o.Store, r.index, name, uint64(g.Token()))
		}
		pause(stop, rand.N(80*time.Millisecond))
	}
	at := now()
	if g.Err() != nil {
		// The clock said so first, if it was the clock.
		lost := at - history.Time(time.Since(g.Deadline()))
		belief.Kind, belief.At = history.BeliefEnds, min(at, lost)
		r.record(belief)
		if ask.Mode == history.Exclusive {
			write(o.Store, r.index, name, uint64(g.Token())) // as one who does not look; the fence is for that
		}
		return
	}
	belief.Kind, belief.At = history.BeliefEnds, at
	r.record(belief)
	deadline := now() + history.Time(time.Until(g.Deadline()))
	rel := history.Event{Kind: history.Invoke, Op: history.Release, Call: r.newCall(), Session: owner, Name: name, Token: uint64(g.Token())}
	r.record(rel)
	// Patience beyond the lease tells nothing more.
	patient, done := context.WithTimeout(context.Background(), o.TTL)
	defer done()
	err = g.Release(patient)
	rel.Kind, rel.At = history.Return, 0
	if err == nil && now() < deadline {
		rel.Outcome = history.OK // answered by the service: the lease had not run out
	}
	r.record(rel)
}

func describe(stop context.Context, c *mortise.Client, r *recorder, owner, name string) (shard int, ok bool) {
	ctx, cancel := context.WithTimeout(stop, 5*time.Second)
	defer cancel()
	e := history.Event{Kind: history.Invoke, Op: history.Describe, Call: r.newCall(), Session: owner, Name: name}
	r.record(e)
	info, err := c.Describe(ctx, name)
	e.Kind, e.At = history.Return, 0
	if err == nil {
		e.Outcome, e.Waiters, e.Limit = history.OK, info.Waiters, uint32(info.Limit)
		for _, h := range info.Holders {
			e.Holders = append(e.Holders, history.Holder{Session: h.Client, Client: h.Client, Token: uint64(h.Token),
				Mode: history.Mode(h.Mode), Permits: uint32(h.Permits)})
		}
	}
	r.record(e)
	return info.Shard, err == nil
}

// prove takes a lock in each shard, as one who comes after the storm.
func prove(ctx context.Context, o *orders, r *recorder) int {
	owner := fmt.Sprintf("p%d.prove", o.Index)
	c := openClient(ctx, o, owner)
	if c == nil {
		return 1
	}
	r.record(history.Event{Kind: history.SessionOpened, Session: owner, TTL: history.Time(o.TTL)})
	seen := map[int]bool{}
	for i := 0; len(seen) < o.Shards && ctx.Err() == nil; i++ {
		name := fmt.Sprintf("x/proof/%d", i)
		shard, ok := describe(ctx, c, r, owner, name)
		if !ok || seen[shard] {
			continue
		}
		patient, cancel := context.WithTimeout(ctx, 20*time.Second)
		g, err := c.Lock(patient, name)
		cancel()
		if err != nil {
			fmt.Fprintln(os.Stderr, "chaos client: proof:", err)
			continue
		}
		r.record(history.Event{Kind: history.Served, Shard: uint32(shard)})
		seen[shard] = true
		_ = g.Release(ctx) // its session ends with this process
	}
	for _, name := range o.Names {
		describe(ctx, c, r, owner, name)
	}
	bye, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = c.Close(bye)
	r.record(history.Event{Kind: history.SessionOver, Session: owner})
	return 0
}

// store is the protected resource: it accepts a write unless it has seen a
// greater token for the name. It lives in the test, behind a socket in the file
// system, which no cut of the network reaches.
type store struct {
	mu   sync.Mutex
	seen map[string]uint64
	log  *history.Log
}

func (s *store) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			var w struct {
				Client int
				Name   string
				Token  uint64
			}
			if json.NewDecoder(c).Decode(&w) != nil {
				return
			}
			s.mu.Lock()
			ok := w.Token >= s.seen[w.Name]
			s.seen[w.Name] = max(s.seen[w.Name], w.Token)
			s.log.Record(history.Event{At: now(), Kind: history.Write, Client: w.Client, Node: -1, Name: w.Name, Token: w.Token, Accepted: ok})
			s.mu.Unlock()
			_, _ = c.Write([]byte{1}) // judged and recorded
		}()
	}
}

// write writes to the store and waits for its verdict.
func write(socket string, index int, name string, token uint64) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer c.Close()
	if json.NewEncoder(c).Encode(map[string]any{"Client": index, "Name": name, "Token": token}) != nil {
		return
	}
	_, _ = c.Read(make([]byte, 1))
}
