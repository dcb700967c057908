package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mortise-lock/mortise/ops/config"
	mortise "github.com/mortise-lock/mortise/sdk"
)

// startGateway runs a gateway of its own beside the cluster.
func (c *cluster) startGateway(name string) *server { return c.startGatewayAt(name, freeAddr(c.t)) }

// startGatewayAt is startGateway with its gRPC address.
func (c *cluster) startGatewayAt(name, grpc string) *server {
	c.t.Helper()
	var seeds []string
	for _, s := range c.servers {
		if l, err := config.Load(config.Sources{File: s.config}); err == nil && l.Config.Mode == config.ModeNode {
			seeds = append(seeds, l.Config.Listen)
		}
	}
	dir := filepath.Join(c.dir, name)
	file := filepath.Join(dir, "mortise.yaml")
	text := fmt.Sprintf("mode: gateway\nname: %s\ndata_dir: %s\ncluster_key_file: %s\ngateway:\n  grpc: %s\n  http: %s\n  seeds: [%s]\n",
		name, filepath.Join(dir, "data"), filepath.Join(c.dir, "key"), grpc, freeAddr(c.t), strings.Join(seeds, ", "))
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		c.t.Fatal(err)
	}
	s := c.add(file, 0, nil)
	c.run(s)
	c.waitReady(s)
	return s
}

// TestGatewayKilled kills the gateway that all clients use: they resume their
// sessions at another one, keeping locks and places in the queue.
func TestGatewayKilled(t *testing.T) {
	c := startServers(t, 3)
	const ttl = 6 * time.Second
	first := c.startGateway("g1")
	second := freeAddr(t) // nothing listens there yet, so all begin at the first
	endpoints := []string{first.grpc, second}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	type contested struct {
		name    string
		grant   *mortise.Grant
		waiters [2]chan error
		grants  [2]*mortise.Grant
	}
	var all []*contested
	for i := range pick(20, 200) {
		q := &contested{name: fmt.Sprintf("resumed/%d", i)}
		q.grant = lock(t, open(t, fmt.Sprintf("holder-%d", i), ttl, endpoints...), q.name, 20*time.Second)
		for w := range q.waiters {
			client := open(t, fmt.Sprintf("waiter-%d-%d", i, w), ttl, endpoints...)
			q.waiters[w] = make(chan error, 1)
			go func() {
				g, err := client.Lock(ctx, q.name)
				q.grants[w] = g
				q.waiters[w] <- err
			}()
			eventually(t, 10*time.Second, "a place in the queue", func() error {
				if n := describe(t, c.http, q.name).number(t, "waiters"); n != uint64(w+1) {
					return fmt.Errorf("%d waiters", n)
				}
				return nil
			})
		}
		all = append(all, q)
	}
	// The second gateway takes the place that clients know it by.
	g2 := c.startGatewayAt("g2", second)
	killed := time.Now()
	c.kill(first)
	time.Sleep(ttl + ttl/2)
	for _, q := range all {
		if err := q.grant.Err(); err != nil {
			t.Fatalf("%s was lost when its holder's gateway died: %v", q.name, err)
		}
		o := describe(t, g2.http, q.name)
		if o.number(t, "token") != uint64(q.grant.Token()) || o.number(t, "waiters") != 2 {
			t.Fatalf("%s was held with token %d, with two waiters; now: %v", q.name, q.grant.Token(), o)
		}
	}
	for _, q := range all {
		release(t, q.grant)
		for w := range q.waiters {
			select {
			case err := <-q.waiters[w]:
				if err != nil {
					t.Fatalf("%s: waiter %d: %v", q.name, w, err)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("%s: waiter %d was not granted", q.name, w)
			}
			release(t, q.grants[w])
		}
	}
	t.Logf("%d sessions resumed at the other gateway; all was well %v after the kill", 3*len(all), time.Since(killed).Round(time.Millisecond))
}
