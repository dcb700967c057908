// Package gossip tells the nodes of a cluster who else is there: name,
// addresses, region, zone and the cluster that each belongs to. It finds nodes
// before a cluster exists and lets an operator see them afterwards. It is an
// opinion, late and sometimes wrong: nothing that safety needs is decided by
// it, and no replica moves and no session ends because of it.
package gossip

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Member is what a node says of itself. Encoded it must stay within
// memberlist.MetaMaxSize (512 bytes); Config.validate checks the worst case.
type Member struct {
	Name string `json:"-"`
	// Address is host:port of the internal listener; GatewayAddress and
	// HTTPAddress those of its own gateway, empty if it runs none.
	Address        string `json:"a"`
	GatewayAddress string `json:"g,omitempty"`
	HTTPAddress    string `json:"h,omitempty"`
	Region         string `json:"r"`
	Zone           string `json:"z,omitempty"`
	// ClusterID is empty and Node 0 until the node was bootstrapped.
	ClusterID     string `json:"c,omitempty"`
	Node          uint64 `json:"n,omitempty"`
	MapGeneration uint64 `json:"m,omitempty"`
	// Gossip is where it gossips, host:port, as seen by others.
	Gossip string `json:"-"`
}

// Config of Start.
type Config struct {
	// Self.Name is unique in the cluster.
	Self Member
	// Listen is host:port, for UDP and TCP. Advertise is what others are told;
	// empty: Listen.
	Listen, Advertise string
	// Join are gossip addresses of other nodes, tried until one answers, and
	// again while this node is alone.
	Join []string
	// Key encrypts everything: 16, 24 or 32 bytes; nil: no encryption.
	Key    []byte
	Logger *slog.Logger
}

// Gossip is a running member. Safe for concurrent use.
type Gossip struct {
	log    *slog.Logger
	list   *memberlist.Memberlist
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu   sync.Mutex
	self Member
	// seen is kept by events, because memberlist goes on writing to the nodes
	// that its own list points to.
	seen map[string]Member
}

// updateWait bounds how long SetSelf waits for others to be told.
const updateWait = 100 * time.Millisecond

// retryJoin is the time between tries to reach the others.
const retryJoin = time.Second

// Start begins to gossip. It does not wait for others.
func Start(cfg Config) (*Gossip, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	g := &Gossip{log: cfg.Logger, self: cfg.Self, seen: map[string]Member{}}
	if meta := g.NodeMeta(memberlist.MetaMaxSize); len(meta) == 0 {
		return nil, fmt.Errorf("gossip: what node %s says of itself has more than %d bytes; use shorter names and addresses", cfg.Self.Name, memberlist.MetaMaxSize-100)
	}
	host, port, err := split(cfg.Listen)
	if err != nil {
		return nil, err
	}
	mc := memberlist.DefaultLANConfig()
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		mc = memberlist.DefaultLocalConfig()
	}
	mc.Name, mc.BindAddr, mc.BindPort, mc.AdvertisePort = cfg.Self.Name, host, port, port
	if cfg.Advertise != "" {
		if mc.AdvertiseAddr, mc.AdvertisePort, err = split(cfg.Advertise); err != nil {
			return nil, err
		}
	}
	mc.SecretKey = cfg.Key
	mc.Delegate, mc.Events = g, g
	mc.LogOutput = logWriter{cfg.Logger}
	// Nodes come back under their name with another address; after this long a
	// dead one's name may be taken over.
	mc.DeadNodeReclaimTime = 5 * time.Second
	if g.list, err = memberlist.Create(mc); err != nil {
		return nil, fmt.Errorf("gossip: listen on %s: %w", cfg.Listen, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	join := slices.DeleteFunc(slices.Clone(cfg.Join), func(a string) bool { return a == cfg.Listen || a == cfg.Advertise })
	g.done.Go(func() { g.keepJoined(ctx, join) })
	return g, nil
}

func split(address string) (string, int, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("gossip: address %q must be host:port: %w", address, err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("gossip: address %q must have a port from 0 to 65535", address)
	}
	return host, int(n), nil
}

// keepJoined joins the others, and again whenever nobody else is there: after
// all were restarted at once each may have forgotten the rest.
func (g *Gossip) keepJoined(ctx context.Context, join []string) {
	if len(join) == 0 {
		return
	}
	warned := false
	for {
		if g.list.NumMembers() < 2 {
			if _, err := g.list.Join(join); err != nil && !warned {
				warned = true
				g.log.Info("no other node reached by gossip yet; trying on", "join", strings.Join(join, " "))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryJoin):
		}
	}
}

// SetSelf changes what this node says of itself; the name stays.
func (g *Gossip) SetSelf(change func(*Member)) {
	g.mu.Lock()
	before := g.self
	change(&g.self)
	g.self.Name = before.Name
	same := g.self == before
	g.mu.Unlock()
	if !same {
		// 0 would wait for ever where nobody else is left. They will hear it anyway.
		_ = g.list.UpdateNode(updateWait)
	}
}

// Members lists the nodes believed to be alive, this one included, in order of
// name.
func (g *Gossip) Members() []Member {
	g.mu.Lock()
	all := slices.Collect(maps.Values(g.seen))
	g.mu.Unlock()
	slices.SortFunc(all, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Addr is where it listens.
func (g *Gossip) Addr() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen[g.self.Name].Gossip
}

// Close tells the others that this node leaves, and stops.
func (g *Gossip) Close() error {
	g.cancel()
	g.done.Wait()
	return errors.Join(g.list.Leave(500*time.Millisecond), g.list.Shutdown())
}

// The rest implements memberlist's interfaces.

// NodeMeta implements memberlist.Delegate.
func (g *Gossip) NodeMeta(limit int) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	b, err := json.Marshal(g.self)
	if err != nil || len(b) > limit {
		return nil
	}
	return b
}

// NotifyMsg implements memberlist.Delegate; nobody sends messages.
func (g *Gossip) NotifyMsg([]byte) {}

// GetBroadcasts implements memberlist.Delegate; there are none.
func (g *Gossip) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate; all state is in NodeMeta.
func (g *Gossip) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (g *Gossip) MergeRemoteState([]byte, bool) {}

// NotifyJoin implements memberlist.EventDelegate.
func (g *Gossip) NotifyJoin(n *memberlist.Node) {
	g.note(n)
	g.log.Info("node joined", "name", n.Name, "gossip", n.Address())
}

// NotifyLeave implements memberlist.EventDelegate.
func (g *Gossip) NotifyLeave(n *memberlist.Node) {
	g.mu.Lock()
	delete(g.seen, n.Name)
	g.mu.Unlock()
	g.log.Info("node left or is believed dead", "name", n.Name, "gossip", n.Address())
}

// NotifyUpdate implements memberlist.EventDelegate.
func (g *Gossip) NotifyUpdate(n *memberlist.Node) { g.note(n) }

// note keeps what a node says of itself. Memberlist holds a lock meanwhile.
func (g *Gossip) note(n *memberlist.Node) {
	m := Member{}
	if json.Unmarshal(n.Meta, &m) != nil {
		return // not a node of ours
	}
	m.Name, m.Gossip = n.Name, n.Address()
	g.mu.Lock()
	g.seen[n.Name] = m
	g.mu.Unlock()
}

// logWriter passes memberlist's lines on, errors and warnings as such.
type logWriter struct{ log *slog.Logger }

func (w logWriter) Write(p []byte) (int, error) {
	line := strings.TrimSpace(string(p))
	if i := strings.Index(line, "["); i >= 0 {
		line = line[i:] // without the library's own time
	}
	level := slog.LevelDebug
	switch {
	case strings.HasPrefix(line, "[ERR]"):
		level = slog.LevelWarn
	case strings.HasPrefix(line, "[WARN]"):
		level = slog.LevelInfo
	}
	w.log.Log(context.Background(), level, line, "from", "memberlist")
	return len(p), nil
}
