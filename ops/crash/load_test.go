package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	mortise "github.com/mortise-lock/mortise/sdk"
)

type state uint8

// States of an attempt, in order.
const (
	asked   state = iota + 1
	queued        // the client was told that it waits
	granted       // the client was told its token
	leaving       // a release, a cancel or the session's end was asked for
	left          // and acknowledged
)

// attempt is one acquire and what its client was told of it. Its fields are
// under the record's mu.
type attempt struct {
	client, name string
	state        state
	token        mortise.Token
	// Moments of the record's own count: when it was asked for, and when it was
	// known to wait.
	askedAt, queuedAt int
}

// record is what all clients were told.
type record struct {
	mu       sync.Mutex
	attempts []*attempt
	clock    int
	grants   int
}

func (r *record) ask(client, name string) *attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clock++
	a := &attempt{client: client, name: name, state: asked, askedAt: r.clock}
	r.attempts = append(r.attempts, a)
	return a
}

func (r *record) waits(a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.state == asked {
		r.clock++
		a.state, a.queuedAt = queued, r.clock
	}
}

func (r *record) holds(a *attempt, token mortise.Token) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clock++
	a.state, a.token = max(a.state, granted), token
	r.grants++
}

func (r *record) leaves(as ...*attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range as {
		a.state = max(a.state, leaving)
	}
}

func (r *record) gone(as ...*attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range as {
		a.state = left
	}
}

// copy returns what the clients have been told up to now.
func (r *record) copy() map[*attempt]attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[*attempt]attempt, len(r.attempts))
	for _, a := range r.attempts {
		out[a] = *a
	}
	return out
}

// progress waits for more grants; warm: also until there are many.
func (r *record) progress(ctx context.Context, warm bool, more int) error {
	r.mu.Lock()
	want := r.grants + more
	r.mu.Unlock()
	if warm {
		want = max(want, 500)
	}
	for end := time.Now().Add(time.Minute); ; {
		r.mu.Lock()
		done := r.grants >= want
		r.mu.Unlock()
		if done || ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(end) {
			return fmt.Errorf("the load stands still: fewer than %d grants within a minute", want)
		}
		wait(time.Millisecond)
	}
}

// prune forgets what ended before a copy was made.
func (r *record) prune(before map[*attempt]attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempts = slices.DeleteFunc(r.attempts, func(a *attempt) bool { return before[a].state == left })
}

// load runs clients until ctx ends. Each takes locks of its own and keeps them
// for a while, queues for shared ones, and now and then ends its session.
func load(ctx context.Context, t *testing.T, c *cluster, r *record, clients int) *sync.WaitGroup {
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for life := 0; ctx.Err() == nil; life++ {
				if err := live(ctx, c, r, fmt.Sprintf("c%d.%d", i, life)); err != nil && ctx.Err() == nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
			}
		})
	}
	return &wg
}

// live is one session.
func live(ctx context.Context, c *cluster, r *record, owner string) error {
	client, err := mortise.Open(ctx, mortise.Config{Endpoints: []string{c.endpoint}, Owner: owner, SessionTTL: 2 * time.Minute})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var all []*attempt
	closing := false
	// What ends with the session may end from the moment its end was asked for.
	life, end := context.WithCancel(ctx)
	defer end()
	errs := make(chan error, 8)
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			var held []*mortise.Grant
			var of []*attempt
			for n := 0; life.Err() == nil; n++ {
				name := fmt.Sprintf("own/%s/%d/%d", owner, w, n%20)
				if w < 3 {
					name = fmt.Sprintf("common/%d", rand.IntN(10))
				}
				mu.Lock()
				if closing {
					mu.Unlock()
					return
				}
				a := r.ask(owner, name)
				all = append(all, a)
				mu.Unlock()
				g, err := client.Lock(life, name, mortise.WithOnQueued(func(mortise.Queued) { r.waits(a) }))
				if err != nil {
					r.leaves(a) // it was cancelled; nobody told us how that went
					if life.Err() == nil {
						errs <- fmt.Errorf("lock %s: %w", name, err)
						return
					}
					continue
				}
				r.holds(a, g.Token())
				held, of = append(held, g), append(of, a)
				keep := 0
				if w >= 3 {
					keep = rand.IntN(15)
				}
				for len(held) > keep {
					r.leaves(of[0])
					if err := held[0].Release(life); err == nil {
						r.gone(of[0])
					} else if life.Err() == nil {
						errs <- fmt.Errorf("release %s: %w", held[0].Name(), err)
						return
					}
					held, of = held[1:], of[1:]
				}
			}
		})
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(500+rand.IntN(3000)) * time.Millisecond):
	case err = <-errs:
	}
	// Cancels of waits and the end of holds begin now.
	mu.Lock()
	closing = true
	r.leaves(all...)
	mu.Unlock()
	end()
	wg.Wait()
	bye, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	mu.Lock()
	defer mu.Unlock()
	if e := client.Close(bye); e != nil && err == nil && ctx.Err() == nil {
		err = fmt.Errorf("close: %w", e)
	} else if e == nil {
		r.gone(all...)
	}
	return err
}
