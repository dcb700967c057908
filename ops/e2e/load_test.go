package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mortise "github.com/mortise-lock/mortise/sdk"
)

// load is a number of clients that acquire and release, each with a session of
// its own, and check while they do it: no error reaches them, no lock that
// they hold is lost, no name has two holders, and its tokens rise.
type load struct {
	t      *testing.T
	cancel context.CancelFunc
	wg     sync.WaitGroup
	pairs  atomic.Int64
	mu     sync.Mutex
	names  map[string]*nameState
	errs   []string
	worst  time.Duration // longest acquire
}

type nameState struct {
	holder string
	token  mortise.Token
}

// loadSpec says how much.
type loadSpec struct {
	clients   int
	ttl       time.Duration
	think     time.Duration // mean pause after each pair
	names     int           // names per client of its own
	contested int           // names that all clients share, used one time in ten
	patience  time.Duration // deadline of each acquire
}

func startLoad(t *testing.T, s loadSpec, endpoints ...string) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{t: t, cancel: cancel, names: map[string]*nameState{}}
	t.Cleanup(func() {
		cancel()
		l.wg.Wait()
	})
	var opened sync.WaitGroup
	for i := range s.clients {
		// Each client prefers another gateway, where there are several.
		turned := slices.Concat(endpoints[i%len(endpoints):], endpoints[:i%len(endpoints)])
		c := open(t, fmt.Sprintf("load-%d", i), s.ttl, turned...)
		opened.Add(1)
		l.wg.Go(func() {
			first := sync.OnceFunc(opened.Done)
			defer first()
			for n := 0; ctx.Err() == nil; n++ {
				name := fmt.Sprintf("load/%d/%d", i, n%s.names)
				if s.contested > 0 && n%10 == 9 {
					name = fmt.Sprintf("load/contested/%d", rand.IntN(s.contested))
				}
				l.pair(ctx, c, fmt.Sprintf("load-%d", i), name, s.patience)
				first()
				pause(ctx, time.Duration(float64(s.think)*(0.5+rand.Float64())))
			}
		})
	}
	opened.Wait()
	return l
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// pair acquires and releases once. A stop in the middle is not an error.
func (l *load) pair(stop context.Context, c *mortise.Client, owner, name string, patience time.Duration) {
	ctx, cancel := context.WithTimeout(stop, patience)
	defer cancel()
	begun := time.Now()
	g, err := c.Lock(ctx, name)
	if err != nil {
		if stop.Err() == nil {
			l.report("%s: lock %s after %v: %v", owner, name, time.Since(begun).Round(time.Millisecond), err)
		}
		return
	}
	l.enter(owner, name, g.Token(), time.Since(begun))
	if err := g.Err(); err != nil {
		l.report("%s: %s with token %d was lost: %v", owner, name, g.Token(), err)
	}
	l.leave(name)
	release, cancelRelease := context.WithTimeout(context.Background(), patience)
	defer cancelRelease()
	if err := g.Release(release); err != nil {
		l.report("%s: release %s with token %d: %v", owner, name, g.Token(), err)
	}
	l.pairs.Add(1)
}

func (l *load) enter(owner, name string, token mortise.Token, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.names[name]
	if st == nil {
		st = &nameState{}
		l.names[name] = st
	}
	if st.holder != "" {
		l.errs = append(l.errs, fmt.Sprintf("%s was granted to %s with token %d while %s held it with token %d", name, owner, token, st.holder, st.token))
	}
	if token <= st.token {
		l.errs = append(l.errs, fmt.Sprintf("%s: token %d after token %d", name, token, st.token))
	}
	st.holder, st.token = owner, token
	l.worst = max(l.worst, took)
}

func (l *load) leave(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names[name].holder = ""
}

func (l *load) report(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, fmt.Sprintf(format, args...))
}

// stop ends the load and fails the test if a client saw anything wrong.
func (l *load) stop() {
	l.t.Helper()
	l.cancel()
	l.wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range l.errs {
		if i == 10 {
			l.t.Errorf("… and %d more", len(l.errs)-i)
			break
		}
		l.t.Error(e)
	}
	l.t.Logf("load: %d pairs, the longest acquire took %v", l.pairs.Load(), l.worst.Round(time.Millisecond))
	if l.pairs.Load() == 0 {
		l.t.Error("the load did not get a single lock")
	}
}

// quantile returns the q-quantile of durations, which it sorts.
func quantile(ds []time.Duration, q float64) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	slices.Sort(ds)
	return ds[min(len(ds)-1, int(q*float64(len(ds))))]
}
