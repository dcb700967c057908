package gateway

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/mortise-lock/mortise/gateway/core"
	"github.com/mortise-lock/mortise/placement"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"google.golang.org/protobuf/proto"
)

func cryptoRead(b []byte) { crand.Read(b) } // never fails

// mapKeeper holds the newest map.
type mapKeeper struct {
	mu      sync.Mutex
	m       *placementv1.Map
	changed chan struct{} // closed and replaced with every change
	kick    context.CancelFunc
	kicked  time.Time
}

func (k *mapKeeper) get() (*placementv1.Map, <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.m, k.changed
}

// refresh makes the follower ask another node, at most once a second.
func (k *mapKeeper) refresh() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kick != nil && time.Since(k.kicked) > time.Second {
		k.kicked = time.Now()
		k.kick()
	}
}

func (g *Gateway) generation() uint64 {
	m, _ := g.maps.get()
	return m.GetGeneration()
}

func (g *Gateway) clusterID() string {
	if m, _ := g.maps.get(); m != nil {
		return m.ClusterId
	}
	return g.cfg.ClusterID
}

// adopt takes a map in if it is newer and of this cluster.
func (g *Gateway) adopt(m *placementv1.Map, from string) error {
	if m == nil {
		return errors.New("no map")
	}
	old, _ := g.maps.get()
	want := g.cfg.ClusterID
	if old != nil {
		want = old.ClusterId
	}
	if want != "" && m.ClusterId != want {
		return fmt.Errorf("%s belongs to cluster %s, this gateway to %s; check the seeds", from, m.ClusterId, want)
	}
	if old != nil && m.Generation <= old.Generation {
		return nil
	}
	r, err := placement.RouterFromMap(m)
	if err != nil {
		return fmt.Errorf("from %s: %w", from, err)
	}
	g.maps.mu.Lock()
	g.maps.m = m
	close(g.maps.changed)
	g.maps.changed = make(chan struct{})
	g.maps.mu.Unlock()
	g.log.Info("placement map", "generation", m.Generation, "cluster", m.ClusterId, "nodes", len(m.Nodes), "shards", len(m.Shards), "from", from)
	g.loop.post(core.Input{Kind: core.MapUpdate, Map: m, Router: r})
	g.nodesOf(m)
	return nil
}

// followMap keeps the map up to date from any node that answers.
func (g *Gateway) followMap() {
	if g.cfg.MapPath != "" {
		if m, err := readMap(g.cfg.MapPath); err == nil {
			if err := g.adopt(m, g.cfg.MapPath); err != nil {
				g.log.Warn("kept map not used", "err", err)
			}
		} else if !errors.Is(err, os.ErrNotExist) {
			g.log.Warn("kept map not read", "path", g.cfg.MapPath, "err", err)
		}
	}
	told := ""
	for i := 0; g.ctx.Err() == nil; i++ {
		addrs := g.nodeAddresses()
		addr := addrs[i%len(addrs)]
		began := time.Now()
		err := g.watchMap(addr)
		if g.ctx.Err() != nil {
			return
		}
		if text := fmt.Sprint(addr, err); err != nil && text != told {
			told = text
			g.log.Warn("map watch ended", "address", addr, "err", err)
		}
		if time.Since(began) < time.Second {
			select {
			case <-g.ctx.Done():
			case <-time.After(50*time.Millisecond + rand.N(150*time.Millisecond)):
			}
		}
	}
}

// nodeAddresses are the seeds and the map's nodes, each once, seeds first.
func (g *Gateway) nodeAddresses() []string {
	var addrs []string
	seen := map[string]bool{}
	add := func(a string) {
		if a != "" && !seen[a] {
			seen[a] = true
			addrs = append(addrs, a)
		}
	}
	for _, s := range g.cfg.Seeds {
		add(s)
	}
	m, _ := g.maps.get()
	for _, n := range m.GetNodes() {
		add(n.Address)
	}
	if len(addrs) == 0 {
		add("127.0.0.1:0")
	}
	return addrs
}

// watchMap follows one node's maps until that ends.
func (g *Gateway) watchMap(addr string) error {
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	g.maps.mu.Lock()
	g.maps.kick = cancel
	g.maps.mu.Unlock()
	cc, err := g.conns.get(addr)
	if err != nil {
		return err
	}
	stream, err := placementv1.NewPlacementServiceClient(cc).WatchMap(ctx, &placementv1.WatchMapRequest{AfterGeneration: g.generation()})
	if err != nil {
		return err
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		if r.Map == nil {
			continue
		}
		newer := r.Map.Generation > g.generation()
		if err := g.adopt(r.Map, addr); err != nil {
			return err
		}
		if newer && g.cfg.MapPath != "" {
			if err := writeMap(g.cfg.MapPath, r.Map); err != nil {
				g.log.Warn("map not kept", "path", g.cfg.MapPath, "err", err)
			}
		}
	}
}

func readMap(path string) (*placementv1.Map, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m := &placementv1.Map{}
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, err
	}
	return m, nil
}

// writeMap replaces the file in one step. The map is a hint, so it is not
// synced.
func writeMap(path string, m *placementv1.Map) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(b)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		os.Remove(tmp.Name())
	}
	return err
}
