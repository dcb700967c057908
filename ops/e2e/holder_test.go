package e2e

import (
	"context"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	mortise "github.com/mortise-lock/mortise/sdk"
)

// TestHolderKilled kills the process that holds locks: the waiter behind it
// gets its lock between TTL - heartbeat interval and TTL + 0.5 s after, and
// everything else that the process held in that shard is free at that moment.
func TestHolderKilled(t *testing.T) {
	c := startDev(t, 3)
	names := c.namesOf()
	for _, ttl := range []time.Duration{2 * time.Second, 10 * time.Second} {
		for round := range pick(1, 5) {
			held := make([]string, 0, 2*len(names))
			for _, n := range names {
				held = append(held, n, fmt.Sprintf("%s/%v/%d", n, ttl, round))
			}
			h, tokens := startHolder(t, holderSpec{Endpoints: []string{c.grpc}, Owner: "doomed", TTL: ttl, Names: held})
			waiter := open(t, "waiter", 10*time.Second, c.grpc)
			type got struct {
				g   *mortise.Grant
				err error
				at  time.Time
			}
			won := make(chan got, len(names))
			ctx, cancel := context.WithTimeout(context.Background(), ttl+20*time.Second)
			defer cancel()
			for _, name := range names {
				go func() {
					g, err := waiter.Lock(ctx, name)
					won <- got{g, err, time.Now()}
				}()
			}
			for _, name := range names {
				eventually(t, 10*time.Second, "the waiter to queue for "+name, func() error {
					if n := describe(t, c.http, name).number(t, "waiters"); n != 1 {
						return fmt.Errorf("%d waiters", n)
					}
					return nil
				})
			}
			// A moment that is not right after a heartbeat, differing per round.
			time.Sleep(time.Duration(round+1) * 130 * time.Millisecond)
			killed := time.Now()
			h.kill()
			var times []time.Duration
			for range names {
				w := <-won
				if w.err != nil {
					t.Fatal(w.err)
				}
				took := w.at.Sub(killed)
				times = append(times, took)
				if took < ttl-ttl/3 || took > ttl+500*time.Millisecond {
					t.Errorf("TTL %v: the waiter got %s %v after the kill; promised is %v to %v", ttl, w.g.Name(), took, ttl-ttl/3, ttl+500*time.Millisecond)
				}
				if uint64(w.g.Token()) <= tokens[w.g.Name()] {
					t.Errorf("%s: the waiter's token %d is not above the dead holder's %d", w.g.Name(), w.g.Token(), tokens[w.g.Name()])
				}
				release(t, w.g)
			}
			for _, name := range held {
				if o := describe(t, c.http, name); o.text(t, "holder") != "" {
					t.Errorf("%s is still held by %s", name, o.text(t, "holder"))
				}
			}
			figure(t, "TTL %v: holder killed to waiter granted: first %v, last %v over %d shards", ttl,
				quantile(times, 0).Round(time.Millisecond), quantile(times, 1).Round(time.Millisecond), len(times))
		}
	}
}

// TestFrozenHolder stops the process that holds 1,000 locks until others hold
// them. When it wakes, every grant reports its loss at once, because it
// compares the clock and waits for no timer or message.
func TestFrozenHolder(t *testing.T) {
	c := startDev(t, 3)
	ttl, freeze := pick(2*time.Second, 10*time.Second), pick(5*time.Second, 25*time.Second)
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprintf("frozen/%d", i))
	}
	h, tokens := startHolder(t, holderSpec{Endpoints: []string{c.grpc}, Owner: "frozen", TTL: ttl, Names: names})
	if err := syscall.Kill(h.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	frozen := time.Now()
	other := open(t, "other", 10*time.Second, c.grpc)
	for _, name := range names {
		g := lock(t, other, name, ttl+10*time.Second)
		if uint64(g.Token()) <= tokens[name] {
			t.Errorf("%s: token %d of the second holder is not above %d of the first", name, g.Token(), tokens[name])
		}
	}
	if first := time.Since(frozen); first < ttl-ttl/3 {
		t.Errorf("the locks passed on %v after the freeze, within the lease of %v", first, ttl)
	}
	time.Sleep(max(0, freeze-time.Since(frozen)))
	if err := syscall.Kill(h.pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	e := h.next(t, "woke", 10*time.Second)
	if e.Lost != len(names) || e.Ended != len(names) || e.Causes != len(names) {
		t.Errorf("of %d grants, %d reported the loss by Err, %d contexts had ended, %d with a LostError as the cause", len(names), e.Lost, e.Ended, e.Causes)
	}
	figure(t, "%d of %d grants of a holder frozen for %d ms (TTL %v) reported their loss at once", e.Lost, len(names), e.AfterMS, ttl)
	// The service knows the first token to be over.
	code, o := call(t, c.http, "CheckToken", object{"name": names[0], "token": tokens[names[0]]})
	if code != http.StatusOK || o["current"] != false {
		t.Errorf("CheckToken of the frozen holder's token: %d %v", code, o)
	}
	if code, o := call(t, c.http, "Release", object{"name": names[0], "token": tokens[names[0]]}); code != http.StatusBadRequest {
		t.Errorf("release with the frozen holder's token: %d %v, want FAILED_PRECONDITION", code, o)
	}
}

// TestIdleSessionsSurviveLeaderKill holds locks in all shards in many idle
// sessions and kills the leader of most shards: none expires.
func TestIdleSessionsSurviveLeaderKill(t *testing.T) {
	c := startDev(t, 3)
	ttl := pick(4*time.Second, 10*time.Second)
	names := c.namesOf()
	var shards []uint32
	for s := range names {
		shards = append(shards, s)
	}
	sessions := pick(200, 1200)
	grants := make(chan *mortise.Grant, 2*sessions)
	errs := make(chan error, 2*sessions)
	limit := make(chan struct{}, 32)
	for i := range sessions {
		client := open(t, fmt.Sprintf("idle-%d", i), ttl, c.grpc)
		go func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			for _, name := range []string{fmt.Sprintf("idle/%d/a", i), fmt.Sprintf("idle/%d/b", i)} {
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				g, err := client.Lock(ctx, name)
				cancel()
				if err != nil {
					errs <- err
					return
				}
				grants <- g
			}
		}()
	}
	var all []*mortise.Grant
	for len(all) < 2*sessions {
		select {
		case g := <-grants:
			all = append(all, g)
		case err := <-errs:
			t.Fatal(err)
		}
	}
	for range pick(1, 3) {
		dead, led := c.busiest()
		c.kill(dead)
		time.Sleep(ttl + ttl/2)
		lost := 0
		for _, g := range all {
			if err := g.Err(); err != nil {
				if lost++; lost <= 5 {
					t.Errorf("%s: %v", g.Name(), err)
				}
			}
		}
		if lost > 0 {
			t.Fatalf("%d of %d holds of idle sessions were lost when the leader of %d of %d shards was killed", lost, len(all), len(led), len(shards))
		}
		figure(t, "%d sessions with %d holds survived the kill of the leader of %d of %d shards (TTL %v)", sessions, len(all), len(led), len(shards), ttl)
		c.restart(dead)
		c.caughtUp(30 * time.Second)
	}
	// The service agrees.
	for _, g := range all[:20] {
		if got := describe(t, c.http, g.Name()).number(t, "token"); got != uint64(g.Token()) {
			t.Errorf("%s: the service knows token %d, the holder %d", g.Name(), got, g.Token())
		}
	}
}
