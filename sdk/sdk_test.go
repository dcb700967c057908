package mortise

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mortise-lock/mortise/sdk/internal/fakeservice"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

// bed is a service with gateways on in-memory connections.
type bed struct {
	t        *testing.T
	svc      *fakeservice.Service
	mu       sync.Mutex
	gateways map[string]*gw
}

type gw struct {
	*fakeservice.Gateway
	lis *bufconn.Listener
	srv *grpc.Server
}

func newBed(t *testing.T, gateways ...string) *bed {
	b := &bed{t: t, svc: fakeservice.NewService(4), gateways: map[string]*gw{}}
	for _, g := range gateways {
		b.start(g)
	}
	return b
}

func (b *bed) start(name string) {
	g := &gw{Gateway: &fakeservice.Gateway{Service: b.svc}, lis: bufconn.Listen(1 << 18), srv: grpc.NewServer()}
	g.Register(g.srv)
	b.mu.Lock()
	b.gateways[name] = g
	b.mu.Unlock()
	go g.srv.Serve(g.lis)
}

// kill ends a gateway; connections to it break.
func (b *bed) kill(name string) {
	b.mu.Lock()
	g := b.gateways[name]
	delete(b.gateways, name)
	b.mu.Unlock()
	g.srv.Stop()
}

func (b *bed) stop() {
	b.mu.Lock()
	var names []string
	for n := range b.gateways {
		names = append(names, n)
	}
	b.mu.Unlock()
	for _, n := range names {
		b.kill(n)
	}
	b.svc.Stop()
}

func (b *bed) dial(ctx context.Context, addr string) (net.Conn, error) {
	b.mu.Lock()
	g := b.gateways[addr]
	b.mu.Unlock()
	if g == nil {
		return nil, errors.New("connection refused")
	}
	return g.lis.DialContext(ctx)
}

func (b *bed) client(owner string, clock func() time.Duration, endpoints ...string) *Client {
	b.t.Helper()
	if clock == nil {
		start := time.Now()
		clock = func() time.Duration { return time.Since(start) + time.Hour }
	}
	c, err := Open(b.t.Context(), Config{Endpoints: endpoints, Owner: owner, clock: clock,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(b.dial)}})
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

func (b *bed) close(cs ...*Client) {
	for _, c := range cs {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if err := c.Close(ctx); err != nil {
			b.t.Error("close:", err)
		}
		cancel()
	}
	b.stop()
}

func must(t *testing.T, g *Grant, err error) *Grant {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestLockAndRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "g1:1")
		a, o := b.client("a", nil, "g1:1"), b.client("o", nil, "g1:1")
		ctx := t.Context()
		g, err := a.In("team").Lock(ctx, "job")
		must(t, g, err)
		if g.Name() != "team/job" || g.Mode() != Exclusive || g.Token() <= 0 || g.Err() != nil {
			t.Fatalf("%q %v %v %v", g.Name(), g.Mode(), g.Token(), g.Err())
		}
		if left := time.Until(g.Deadline()); left < 8*time.Second || left > 10*time.Second {
			t.Fatalf("deadline in %v", left)
		}
		if err := g.Check(ctx); err != nil {
			t.Fatal(err)
		}
		if n, m, tok, err := ParseSequencer(g.Sequencer()); n != g.Name() || m != Exclusive || tok != g.Token() || err != nil {
			t.Fatal(n, m, tok, err)
		}
		_, err = o.TryLock(ctx, "team/job")
		if !errors.Is(err, ErrHeld) {
			t.Fatal(err)
		}
		queued := make(chan Queued, 1)
		second := make(chan *Grant)
		go func() {
			g2, err := o.Lock(ctx, "team/job", WithOnQueued(func(q Queued) { queued <- q }))
			if err != nil {
				t.Error(err)
			}
			second <- g2
		}()
		if q := <-queued; q.Holder.Client != "a" || q.Position != 0 {
			t.Fatalf("%+v", q)
		}
		time.Sleep(time.Minute) // virtual: many TTLs
		if err := g.Err(); err != nil {
			t.Fatal(err)
		}
		info, err := o.Describe(ctx, "team/job")
		if err != nil || len(info.Holders) != 1 || info.Holders[0].Client != "a" || info.Waiters != 1 {
			t.Fatal(info, err)
		}
		over, cancel := context.WithCancel(ctx)
		cancel()
		if err := g.Release(over); err != nil {
			t.Fatal("release with a context that is over:", err)
		}
		if err := g.Release(ctx); err != nil {
			t.Fatal("second release:", err)
		}
		if !errors.Is(g.Err(), ErrReleased) || !errors.Is(context.Cause(g.Context()), ErrReleased) {
			t.Fatal(g.Err(), context.Cause(g.Context()))
		}
		g2 := <-second
		if g2.Token() <= g.Token() {
			t.Fatal("token did not rise")
		}
		b.close(a, o)
		var lost *LostError
		if !errors.As(g2.Err(), &lost) || lost.Reason != LostClosed {
			t.Fatal(g2.Err())
		}
		if _, err := o.Lock(ctx, "x"); !errors.Is(err, ErrSessionEnded) {
			t.Fatal(err)
		}
	})
}

// The gateway dies, swallows, comes back: no grant is lost, no place either.
func TestGatewayTroubleLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "g1:1", "g2:1")
		a, o := b.client("a", nil, "g1:1", "g2:1"), b.client("o", nil, "g1:1", "g2:1")
		ctx := t.Context()
		g, err := a.Lock(ctx, "job")
		must(t, g, err)
		first := make(chan *Grant)
		go func() {
			g, err := o.Lock(ctx, "job")
			if err != nil {
				t.Error(err)
			}
			first <- g
		}()
		time.Sleep(time.Second)
		for range 4 {
			for _, n := range []string{"g1:1", "g2:1"} {
				b.kill(n)
				time.Sleep(6 * time.Second)
				b.start(n)
				time.Sleep(2 * time.Second)
				b.gateways[n].Swallow(true)
				time.Sleep(7 * time.Second)
				if err := g.Err(); err != nil {
					t.Fatal("after a swallowing gateway:", err)
				}
				b.gateways[n].Swallow(false)
				time.Sleep(5 * time.Second)
			}
		}
		if err := g.Check(ctx); err != nil {
			t.Fatal(err)
		}
		if err := g.Release(ctx); err != nil {
			t.Fatal(err)
		}
		g2 := <-first
		if g2.Err() != nil || g2.Token() <= g.Token() {
			t.Fatal(g2.Err())
		}
		b.close(a, o)
	})
}

// The process stands still: the clock says so before any timer.
func TestLossByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "g1:1")
		var leap atomic.Int64 // as if the host had been suspended
		start := time.Now()
		clock := func() time.Duration { return time.Since(start) + time.Hour + time.Duration(leap.Load()) }
		a := b.client("a", clock, "g1:1")
		for i := range 50 {
			name := fmt.Sprint("job", i)
			g, err := a.Lock(t.Context(), name)
			must(t, g, err)
			child, cancel := context.WithCancel(g.Context())
			other, err := a.RLock(t.Context(), "other"+name)
			must(t, other, err)
			leap.Add(int64(25 * time.Second))
			switch i % 4 {
			case 0:
				err = g.Err()
			case 1:
				if g.Context().Err() == nil {
					t.Fatal("context not over")
				}
				err = context.Cause(g.Context())
			case 2:
				select {
				case <-g.Context().Done():
				default:
					t.Fatal("Done not closed")
				}
				err = g.Err()
			case 3:
				err = context.Cause(g.Context())
			}
			var lost *LostError
			if !errors.As(err, &lost) || lost.Reason != LostDeadline || lost.Token != g.Token() {
				t.Fatal(i, err)
			}
			<-child.Done()
			cancel()
			if err := other.Release(t.Context()); !errors.Is(err, ErrNotHeld) {
				t.Fatal(err)
			}
			if err := g.Release(t.Context()); !errors.Is(err, ErrNotHeld) {
				t.Fatal(err)
			}
			// What the service still had is given back long before the TTL.
			time.Sleep(100 * time.Millisecond)
			g, err = a.TryLock(t.Context(), name)
			must(t, g, err)
			if err := g.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		b.close(a)
	})
}

// Permits that don't fit are refused at once, and taken once they fit.
func TestTryAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "g1:1")
		a := b.client("a", nil, "g1:1")
		g, err := a.TryAcquire(t.Context(), "sem", Permits{2, 3})
		must(t, g, err)
		begun := time.Now()
		if _, err := a.TryAcquire(t.Context(), "sem", Permits{2, 3}); !errors.Is(err, ErrHeld) {
			t.Fatal(err)
		}
		if waited := time.Since(begun); waited > time.Second {
			t.Fatalf("it waited %v", waited)
		}
		if err := g.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		g, err = a.TryAcquire(t.Context(), "sem", Permits{2, 3})
		must(t, g, err)
		b.close(a)
	})
}

// No gateway answers: the loss is told before the service grants to another.
func TestLossBeforeNextGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "g1:1", "g2:1")
		suspects := make(chan Suspect, 10)
		a, o := b.client("a", nil, "g1:1"), b.client("o", nil, "g2:1")
		g, err := a.Lock(t.Context(), "job", WithOnSuspect(func(s Suspect) { suspects <- s }))
		must(t, g, err)
		next := make(chan time.Time)
		go func() {
			g2, err := o.Lock(t.Context(), "job")
			if err != nil {
				t.Error(err)
			}
			next <- time.Now()
			g2.Release(t.Context())
		}()
		time.Sleep(20 * time.Second)
		b.gateways["g1:1"].Swallow(true)
		<-g.Context().Done()
		lostAt := time.Now()
		if at := <-next; !lostAt.Before(at) || at.Sub(lostAt) > time.Second {
			t.Fatalf("lost %v before the next grant", at.Sub(lostAt))
		}
		if s := <-suspects; s.Token != g.Token() {
			t.Fatal(s)
		}
		if a.own.State() != Suspicious {
			t.Fatal(a.own.State())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		_, err = a.Lock(ctx, "job")
		cancel()
		if !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		b.gateways["g1:1"].Swallow(false)
		g, err = a.Lock(t.Context(), "job")
		must(t, g, err)
		if a.own.State() != Healthy {
			t.Fatal(a.own.State())
		}
		b.close(a, o)
	})
}

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "g1:1")
		a := b.client("a", nil, "g1:1")
		boom := errors.New("boom")
		if err := a.Do(t.Context(), "job", func(context.Context, *Grant) error { return boom }); !errors.Is(err, boom) {
			t.Fatal(err)
		}
		err := a.Do(t.Context(), "job", func(ctx context.Context, g *Grant) error {
			b.svc.With(func(m *fakeservice.Model, now fakeservice.Time) { m.Force("job", now) })
			<-ctx.Done()
			var lost *LostError
			if !errors.As(context.Cause(ctx), &lost) || lost.Reason != LostForced || !FromServer(lost) {
				t.Error(context.Cause(ctx))
			}
			return nil
		})
		var lost *LostError
		if !errors.As(err, &lost) {
			t.Fatal(err)
		}
		err = a.Do(t.Context(), "job", func(ctx context.Context, g *Grant) error {
			<-ctx.Done()
			return nil
		}, WithMaxHold(3*time.Second))
		if !errors.As(err, &lost) || lost.Reason != LostMaxHold {
			t.Fatal(err)
		}
		// A second acquire of the same client waits: not re-entrant.
		g, err := a.Lock(t.Context(), "job")
		must(t, g, err)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err = a.Lock(ctx, "job")
		cancel()
		var held *HeldError
		if !errors.As(err, &held) || !held.Own || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		b.close(a)
	})
}

// 200 workers of one session, permits and exclusion counted.
func TestManyWorkersOneSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "g1:1")
		a := b.client("a", nil, "g1:1")
		var inside, permits atomic.Int64
		var wg sync.WaitGroup
		for w := range 200 {
			wg.Go(func() {
				for i := range 5 {
					if w%2 == 0 {
						g, err := a.Acquire(t.Context(), "sem", Permits{1 + w%3, 5})
						if err != nil {
							t.Error(err)
							return
						}
						if permits.Add(int64(1+w%3)) > 5 {
							t.Error("too many permits")
						}
						permits.Add(-int64(1 + w%3))
						g.Release(t.Context())
						continue
					}
					err := a.Do(t.Context(), "one", func(context.Context, *Grant) error {
						if inside.Add(1) != 1 {
							t.Error("two inside")
						}
						time.Sleep(time.Duration(i) * time.Millisecond)
						inside.Add(-1)
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		b.svc.With(func(m *fakeservice.Model, _ fakeservice.Time) {
			if len(m.Holds()) != 0 || m.Waits() != 0 {
				t.Errorf("left over:\n%v", m)
			}
		})
		b.close(a)
	})
}

// Cancelled acquires leave nothing behind, whenever the cancel comes.
func TestCancelLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "g1:1")
		a, o := b.client("a", nil, "g1:1"), b.client("o", nil, "g1:1")
		var wg sync.WaitGroup
		for i := range 400 {
			c := []*Client{a, o}[i%2]
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%20)*time.Microsecond)
				defer cancel()
				g, err := c.Lock(ctx, "job")
				if err == nil {
					g.Release(ctx)
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Second)
		b.svc.With(func(m *fakeservice.Model, _ fakeservice.Time) {
			if len(m.Holds()) != 0 || m.Waits() != 0 {
				t.Errorf("left over:\n%v", m)
			}
		})
		b.close(a, o)
	})
}

func TestConfigReportsEverythingAtOnce(t *testing.T) {
	_, err := Open(t.Context(), Config{Endpoints: []string{"nowhere"}, Namespace: "a\x00", Owner: string(make([]byte, 300)),
		SessionTTL: time.Millisecond, DriftPPM: -1, Retry: RetryPolicy{Base: -1}})
	if !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	for _, field := range []string{"Endpoints[0]", "Namespace", "Owner", "SessionTTL", "DriftPPM", "Retry"} {
		if !contains(err.Error(), field) {
			t.Errorf("%s is not reported in: %v", field, err)
		}
	}
	if _, err := Open(t.Context(), Config{}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

func contains(s, sub string) bool {
	for i := range s {
		if len(s)-i >= len(sub) && s[i:i+len(sub)] == sub {
			return true
		}
	}
	return false
}

func TestBadNamesAndOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "g1:1")
		a := b.client("a", nil, "g1:1")
		for _, name := range []string{"", "a\nb", "\xff", string(make([]byte, 513))} {
			if _, err := a.Lock(t.Context(), name); !errors.Is(err, ErrInvalid) {
				t.Errorf("%q: %v", name, err)
			}
		}
		for _, p := range []Permits{{0, 1}, {2, 1}, {1, 0}, {-1, 3}} {
			if _, err := a.Acquire(t.Context(), "x", p); !errors.Is(err, ErrInvalid) {
				t.Errorf("%v: %v", p, err)
			}
		}
		for _, o := range []AcquireOption{WithLockDelay(-1), WithLockDelay(time.Hour), WithMaxHold(0)} {
			if _, err := a.TryLock(t.Context(), "x", o); !errors.Is(err, ErrInvalid) {
				t.Error(err)
			}
		}
		if _, err := a.NewSession(t.Context(), WithTTL(time.Millisecond)); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
		b.close(a)
	})
}
