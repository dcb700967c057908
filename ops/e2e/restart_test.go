package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	mortise "github.com/mortise-lock/mortise/sdk"
)

// queued is a lock with a holder and two waiters in a known order.
type queued struct {
	name    string
	grant   *mortise.Grant
	waiters [2]chan *mortise.Grant
}

// TestEverythingKilledAndRestarted kills all nodes at once under load and
// starts them again: every hold, token and queue place that was acknowledged is
// still there, and nothing was granted twice.
func TestEverythingKilledAndRestarted(t *testing.T) {
	c := startServers(t, 3)
	const ttl = 30 * time.Second
	l := startLoad(t, loadSpec{clients: 50, ttl: ttl, think: 100 * time.Millisecond, names: 8, contested: 10, patience: time.Minute}, c.endpoints()...)
	holder := open(t, "holder", ttl, c.endpoints()...)
	waiters := [2]*mortise.Client{open(t, "first", ttl, c.endpoints()...), open(t, "second", ttl, c.endpoints()...)}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var qs []*queued
	for _, name := range c.namesOf() {
		q := &queued{name: name, grant: lock(t, holder, name, 10*time.Second)}
		for i, w := range waiters {
			q.waiters[i] = make(chan *mortise.Grant, 1)
			go func() {
				g, err := w.Lock(ctx, name)
				if err != nil {
					if ctx.Err() == nil {
						l.report("waiter %d for %s: %v", i, name, err)
					}
					return
				}
				q.waiters[i] <- g
			}()
			q.waitQueue(t, c, i+1)
		}
		qs = append(qs, q)
	}
	var outages []time.Duration
	rounds := pick(2, 20)
	for range rounds {
		killed := time.Now()
		c.kill(c.servers...)
		c.restart(c.servers...)
		for _, q := range qs {
			q.waitQueue(t, c, 2)
			if err := q.grant.Err(); err != nil {
				t.Fatalf("%s: the holder lost it: %v", q.name, err)
			}
			o := describe(t, c.http, q.name)
			if o.text(t, "holder") != "holder" || o.number(t, "token") != uint64(q.grant.Token()) {
				t.Fatalf("%s was held with token %d before the restart; now: %v", q.name, q.grant.Token(), o)
			}
		}
		outages = append(outages, time.Since(killed))
		// Some load between the rounds.
		time.Sleep(pick(time.Second, 3*time.Second))
	}
	for _, q := range qs {
		token := q.grant.Token()
		release(t, q.grant)
		for i, w := range q.waiters {
			select {
			case g := <-w:
				if g.Token() <= token {
					t.Errorf("%s: waiter %d got token %d after %d", q.name, i, g.Token(), token)
				}
				token = g.Token()
				if i == 0 {
					select {
					case <-q.waiters[1]:
						t.Errorf("%s: the second waiter was granted while the first held it", q.name)
					default:
					}
				}
				release(t, g)
			case <-time.After(10 * time.Second):
				t.Fatalf("%s: waiter %d was not granted after a release", q.name, i)
			}
		}
	}
	l.stop()
	figure(t, "all three nodes killed and restarted, %d rounds: kill to everything described again p50 %v, worst %v",
		rounds, quantile(outages, 0.5).Round(time.Millisecond), quantile(outages, 1).Round(time.Millisecond))
}

// waitQueue waits until the service sees that many waiters. Over HTTP, and
// patient: right after a restart a call may take a few elections.
func (q *queued) waitQueue(t *testing.T, c *cluster, n int) {
	t.Helper()
	eventually(t, 30*time.Second, fmt.Sprintf("%d waiters for %s", n, q.name), func() error {
		code, o, err := tryCall(c.http, "Describe?name="+q.name, nil)
		if err != nil {
			return err
		}
		if code != 200 || o.number(t, "waiters") != uint64(n) {
			return fmt.Errorf("%d %v", code, o)
		}
		return nil
	})
}

// TestGrowthIsBounded loads a cluster, then prints the size of the data
// directories and the time that a restart takes.
func TestGrowthIsBounded(t *testing.T) {
	c := startServers(t, 3)
	l := startLoad(t, loadSpec{clients: 64, ttl: 10 * time.Second, think: pick(20*time.Millisecond, 0), names: 100, patience: 30 * time.Second}, c.endpoints()...)
	began := time.Now()
	time.Sleep(pick(8*time.Second, 10*time.Minute))
	l.stop()
	took := time.Since(began)
	var sizes []int64
	for _, s := range c.servers {
		sizes = append(sizes, folderBytes(t, s.data))
	}
	s := c.servers[2]
	c.kill(s)
	started := time.Now()
	c.restart(s)
	c.caughtUp(30 * time.Second)
	figure(t, "after %v and %d pairs the data directories have %d, %d and %d MiB; restart to caught up took %v",
		took.Round(time.Second), l.pairs.Load(), sizes[0]>>20, sizes[1]>>20, sizes[2]>>20, time.Since(started).Round(time.Millisecond))
}

func folderBytes(t *testing.T, dir string) int64 {
	t.Helper()
	var n int64
	err := filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			if os.IsNotExist(err) {
				return nil // the store removed it meanwhile
			}
			return err
		}
		if i, err := d.Info(); err == nil && i.Mode().IsRegular() {
			n += i.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
