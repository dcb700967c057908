package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	mortise "github.com/mortise-lock/mortise/sdk"
)

// TestTerminatedNodeHandsOver sends SIGTERM to the node that leads most shards
// under load: it hands its leaderships over before it stops, and clients see
// no error.
func TestTerminatedNodeHandsOver(t *testing.T) {
	c := startServers(t, 3)
	names := c.namesOf()
	l := startLoad(t, loadSpec{clients: 60, ttl: 10 * time.Second, think: 100 * time.Millisecond, names: 8, contested: 10, patience: 20 * time.Second}, c.endpoints()...)
	probe := open(t, "probe", 10*time.Second, c.endpoints()...)
	for _, name := range names {
		release(t, lock(t, probe, name, 10*time.Second))
	}
	for round := range pick(2, 10) {
		s, led := c.busiest()
		terminated := time.Now()
		c.signal(syscall.SIGTERM, s)
		took := make(chan time.Duration)
		for _, shard := range led {
			go func() { took <- untilGranted(l, probe, names[shard], terminated) }()
		}
		var times []time.Duration
		for range led {
			times = append(times, <-took)
		}
		if status := s.proc.ended(t, 20*time.Second); status != 0 {
			t.Errorf("%s ended with status %d after SIGTERM", s.name, status)
		}
		figure(t, "round %d: SIGTERM to first grant in the %d shards led: p50 %v, worst %v; stopped after %v", round, len(led),
			quantile(times, 0.5).Round(time.Millisecond), quantile(times, 1).Round(time.Millisecond), time.Since(terminated).Round(time.Millisecond))
		// Whoever asks the first server's gateway for status needs it.
		c.restart(s)
		c.caughtUp(30 * time.Second)
	}
	l.stop()
}

// TestTransfersKeepNoDeadLockAlive moves the leadership of a shard again and
// again while the holder of a lock there is dead: the lock comes free after one
// TTL and one election at most.
func TestTransfersKeepNoDeadLockAlive(t *testing.T) {
	c := startServers(t, 3)
	const ttl = 6 * time.Second
	names := c.namesOf()
	leaders := c.leaders()
	const shard = 1
	name := names[shard]
	if name == "" {
		t.Fatalf("there is no shard %d: %v", shard, names)
	}
	voters := map[uint64]*server{}
	for _, n := range c.status().Map.Nodes {
		voters[n.Id] = c.named(n.Name)
	}
	h, _ := startHolder(t, holderSpec{Endpoints: []string{c.grpc}, Owner: "dead", TTL: ttl, Names: []string{name}})
	waiter := open(t, "waiter", 10*time.Second, c.grpc)
	type got struct {
		g   *mortise.Grant
		err error
	}
	won := make(chan got, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 5*ttl)
	defer cancel()
	go func() {
		g, err := waiter.Lock(ctx, name)
		won <- got{g, err}
	}()
	eventually(t, 10*time.Second, "the waiter to queue", func() error {
		if n := describe(t, c.http, name).number(t, "waiters"); n != 1 {
			return fmt.Errorf("%d waiters", n)
		}
		return nil
	})
	h.kill()
	killed := time.Now()
	leader := leaders[shard]
	moves := 0
	for {
		select {
		case w := <-won:
			if w.err != nil {
				t.Fatal(w.err)
			}
			took := time.Since(killed)
			figure(t, "TTL %v: a dead holder's lock passed on after %v and %d leader transfers", ttl, took.Round(time.Millisecond), moves)
			if took > ttl+2*time.Second {
				t.Errorf("the lock passed on after %v; the ceiling is one TTL (%v) and one election", took, ttl)
			}
			if moves < 3 {
				t.Errorf("only %d transfers were made meanwhile", moves)
			}
			return
		case <-time.After(400 * time.Millisecond):
		}
		for id, s := range voters {
			if s == leader {
				continue
			}
			call, cancel := context.WithTimeout(ctx, 5*time.Second)
			_, err := placementv1.NewPlacementServiceClient(dial(t, c.grpc)).TransferLeader(call,
				&placementv1.TransferLeaderRequest{Shard: shard, ToNode: id})
			cancel()
			if err != nil {
				t.Logf("transfer to %s: %v", s.name, err)
				break
			}
			moves++
			leader = s
			break
		}
	}
}

// TestRevokedSessionIsTold revokes the session of a holder and that of a
// waiter: both are told at once, and the lock passes on.
func TestRevokedSessionIsTold(t *testing.T) {
	dev := shared.use(t)
	holder := open(t, "to-be-revoked-holder", 10*time.Second, dev.grpc)
	waiter := open(t, "to-be-revoked-waiter", 10*time.Second, dev.grpc)
	next := open(t, "next", 10*time.Second, dev.grpc)
	const name = "revoked/lock"
	g := lock(t, holder, name, 10*time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	waiterErr, nextErr := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := waiter.Lock(ctx, name)
		waiterErr <- err
	}()
	queue := func(n uint64) {
		t.Helper()
		eventually(t, 10*time.Second, fmt.Sprintf("%d waiters", n), func() error {
			if got := describe(t, dev.http, name).number(t, "waiters"); got != n {
				return fmt.Errorf("%d waiters", got)
			}
			return nil
		})
	}
	queue(1)
	go func() {
		_, err := next.Lock(ctx, name)
		nextErr <- err
	}()
	queue(2)
	for _, client := range []string{"to-be-revoked-waiter", "to-be-revoked-holder"} {
		code, o := call(t, dev.http, "ListSessions", object{"client_prefix": client})
		sessions, _ := o["sessions"].([]any)
		if code != http.StatusOK || len(sessions) != 1 {
			t.Fatalf("sessions of %s: %d %v", client, code, o)
		}
		id := sessions[0].(map[string]any)["id"]
		if code, o := call(t, dev.http, "RevokeSession", object{"id": id, "reason": "end-to-end test"}); code != http.StatusOK {
			t.Fatalf("revoke %s: %d %v", client, code, o)
		}
	}
	within := time.After(10*time.Second/3 + time.Second) // one heartbeat interval, and a little
	select {
	case err := <-waiterErr:
		if err == nil {
			t.Error("the revoked waiter got the lock")
		}
	case <-within:
		t.Error("the revoked waiter was told nothing within a heartbeat interval")
	}
	select {
	case <-g.Context().Done():
		var lost *mortise.LostError
		if !errors.As(g.Err(), &lost) {
			t.Errorf("the revoked holder's Err is %v", g.Err())
		}
	case <-within:
		t.Error("the revoked holder was told nothing within a heartbeat interval")
	}
	select {
	case err := <-nextErr:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("the lock of the revoked holder did not pass on")
	}
}
