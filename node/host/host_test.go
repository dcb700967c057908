package host

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// testCluster is a few nodes in this process, on loopback and real disks.
type testCluster struct {
	t      *testing.T
	dir    string
	nodes  []*Node
	gossip []string
	fatal  chan error
}

func newTestCluster(t *testing.T, n int) *testCluster {
	c := &testCluster{t: t, dir: t.TempDir(), nodes: make([]*Node, n), gossip: make([]string, n), fatal: make(chan error, 16)}
	for i := range c.nodes {
		c.start(i)
	}
	t.Cleanup(func() {
		for _, node := range c.nodes {
			if node != nil {
				_ = node.Kill()
			}
		}
		select {
		case err := <-c.fatal:
			t.Errorf("a node stopped: %v", err)
		default:
		}
	})
	return c
}

func (c *testCluster) config(i int) Config {
	var join []string
	for j, a := range c.gossip {
		if j != i && a != "" {
			join = append(join, a)
		}
	}
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("MORTISE_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("at", i)
	}
	return Config{Name: fmt.Sprintf("n%d", i+1), Region: "eu", Zone: string(rune('a' + i%3)), DataDir: filepath.Join(c.dir, fmt.Sprint(i)),
		Listen: "127.0.0.1:0", Gossip: GossipConfig{Listen: "127.0.0.1:0", Join: join}, Workers: 2, Logger: log,
		OnFatal: func(err error) { c.fatal <- err }}
}

func (c *testCluster) start(i int) {
	c.t.Helper()
	n, err := Open(c.config(i))
	if err != nil {
		c.t.Fatalf("node %d: %v", i, err)
	}
	c.nodes[i], c.gossip[i] = n, n.gossip.Addr()
}

func (c *testCluster) eventually(what string, ok func() bool) {
	c.t.Helper()
	deadline, tick := time.NewTimer(30*time.Second), time.NewTicker(10*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			c.t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}

func (c *testCluster) init(shards uint32) *placementv1.Map {
	c.t.Helper()
	c.eventually("all nodes joined", func() bool { return len(c.nodes[0].gossip.Members()) == len(c.nodes) })
	r, err := admin{n: c.nodes[0]}.Init(c.t.Context(), &placementv1.InitRequest{Nodes: new(uint32(len(c.nodes))), Shards: &shards})
	if err != nil {
		c.t.Fatal(err)
	}
	c.ready()
	return r.Map
}

func (c *testCluster) ready() {
	c.t.Helper()
	for _, n := range c.nodes {
		if n != nil {
			c.eventually("every shard has a leader", n.Ready)
		}
	}
}

// gateway speaks to all nodes like one, and finds leaders.
type testGateway struct {
	c  *testCluster
	id uint64
}

// ask sends one request to the shard's leader, again until it was decided.
func (g *testGateway) ask(q *nodev1.Request) *nodev1.Response {
	g.c.t.Helper()
	var last *nodev1.Response
	g.c.eventually(fmt.Sprintf("an answer to %v", q), func() bool {
		for _, n := range g.c.nodes {
			if n == nil {
				continue
			}
			g.id++
			q.Id = g.id
			if last = exchangeOnce(g.c.t, n, q); last != nil && codes.Code(last.GetFailure().GetCode()) != codes.Unavailable {
				return true
			}
		}
		return false
	})
	return last
}

// exchangeOnce opens a stream, asks, and takes the first answer.
func exchangeOnce(t *testing.T, n *Node, q *nodev1.Request) *nodev1.Response {
	conn, err := grpc.NewClient("passthrough:///"+n.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	s, err := nodev1.NewNodeServiceClient(conn).Exchange(ctx)
	if err != nil {
		return nil
	}
	if s.Send(&nodev1.ExchangeRequest{Requests: []*nodev1.Request{q}}) != nil {
		return nil
	}
	for {
		f, err := s.Recv()
		if err != nil {
			return nil
		}
		for _, r := range f.Responses {
			if r.Id == q.Id {
				return r
			}
		}
	}
}

func (g *testGateway) register(shard uint32, session byte) uint64 {
	g.c.t.Helper()
	id := make([]byte, 16)
	id[0] = session
	r := g.ask(&nodev1.Request{Shard: shard, Op: &nodev1.Request_Register{Register: &nodev1.Register{SessionId: id, Client: "c", TtlMs: 60_000}}})
	if r.Failure != nil {
		g.c.t.Fatal(r.Failure)
	}
	return r.GetRegister().Registration
}

func (g *testGateway) acquire(m *placementv1.Map, session byte, name string) *lockv1.GrantedEvent {
	g.c.t.Helper()
	shard := shardOf(g.c.t, m, name)
	reg := g.register(shard, session)
	rid := make([]byte, 16)
	copy(rid, name)
	r := g.ask(&nodev1.Request{Shard: shard, Op: &nodev1.Request_Acquire{Acquire: &nodev1.Acquire{Acting: &nodev1.Acting{Registration: reg},
		Id: &nodev1.AcquireId{RequestId: rid}, Name: name, Mode: lockv1.Mode_MODE_EXCLUSIVE, Permits: 1}}})
	if r.GetAcquire().GetGranted() == nil {
		g.c.t.Fatalf("acquire of %s: %v", name, r)
	}
	return r.GetAcquire().GetGranted()
}

func (g *testGateway) describe(m *placementv1.Map, name string) *lockv1.DescribeResponse {
	g.c.t.Helper()
	r := g.ask(&nodev1.Request{Shard: shardOf(g.c.t, m, name), Op: &nodev1.Request_Describe{Describe: &nodev1.Describe{Name: name}}})
	if r.GetDescribe() == nil {
		g.c.t.Fatalf("describe of %s: %v", name, r)
	}
	return r.GetDescribe()
}

func TestClusterServesAndSurvivesRestarts(t *testing.T) {
	c := newTestCluster(t, 3)
	m := c.init(4)
	if len(m.Shards) != 5 || m.ClusterId == "" {
		t.Fatalf("map %v", m)
	}
	g := &testGateway{c: c}
	tokens := map[string]uint64{}
	for i := range 8 {
		name := fmt.Sprintf("invoice/%d", i)
		tokens[name] = g.acquire(m, 1, name).Token
	}
	check := func(when string) {
		t.Helper()
		for name, token := range tokens {
			d := g.describe(m, name)
			if len(d.Holders) != 1 || d.Holders[0].Token != token {
				t.Fatalf("%s: %s is held by %v, want token %d", when, name, d.Holders, token)
			}
		}
	}
	check("at first")
	// One killed: the others go on.
	if err := c.nodes[1].Kill(); err != nil {
		t.Fatal(err)
	}
	c.nodes[1] = nil
	check("with one of three gone")
	c.start(1) // under a new address
	c.ready()
	check("after its return")
	// All killed at once.
	for i := range c.nodes {
		if err := c.nodes[i].Kill(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range c.nodes {
		c.start(i)
	}
	c.ready()
	check("after all were restarted, under new addresses")
	c.eventually("the map tells the new addresses", func() bool {
		for i, n := range c.nodes {
			p, _ := n.watchMap()
			if nodeOf(p, uint64(i+1)).Address != c.nodes[i].Address() {
				return false
			}
		}
		return true
	})
	if _, err := (admin{n: c.nodes[0]}).Init(t.Context(), &placementv1.InitRequest{}); status.Code(err) != codes.AlreadyExists {
		t.Fatalf("a second init: %v", err)
	}
	hashes(t, c)
}

// hashes compares the replicas' states.
func hashes(t *testing.T, c *testCluster) {
	t.Helper()
	c.eventually("equal states at equal indexes", func() bool {
		at := map[[2]uint64]uint64{}
		seen := 0
		for _, n := range c.nodes {
			for _, r := range n.status(true).Replicas {
				k := [2]uint64{uint64(r.Shard), r.AppliedIndex}
				if h, ok := at[k]; ok {
					seen++
					if h != r.StateHash {
						t.Fatalf("shard %d at %d: states differ", r.Shard, r.AppliedIndex)
					}
				}
				at[k] = r.StateHash
			}
		}
		return seen == 2*5
	})
}

func TestShutdownHandsLeadershipsOver(t *testing.T) {
	c := newTestCluster(t, 3)
	m := c.init(6)
	lead := c.nodes[0].leaders.get(1).Leader
	i := int(lead) - 1
	if err := c.nodes[i].Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.nodes[i] = nil
	for _, n := range c.nodes {
		if n == nil {
			continue
		}
		for _, s := range m.Shards {
			if l := n.leaders.get(shardID(s.Id)); l.Leader == lead {
				t.Errorf("node %d still believes that node %d leads shard %d", n.running.Load().node, lead, s.Id)
			}
		}
	}
	(&testGateway{c: c}).acquire(m, 1, "a")
}

func TestTransferLeaderIsPassedOn(t *testing.T) {
	c := newTestCluster(t, 3)
	c.init(2)
	from := uint64(c.nodes[0].leaders.get(1).Leader)
	to := from%3 + 1
	for _, n := range c.nodes { // the leader, the target, a bystander
		c.eventually("the transfer", func() bool {
			r, err := admin{n: n}.TransferLeader(t.Context(), &placementv1.TransferLeaderRequest{Shard: 1, ToNode: to})
			if status.Code(err) == codes.Unavailable || status.Code(err) == codes.FailedPrecondition {
				return false
			}
			if err != nil || r.LeaderNode != to {
				t.Fatalf("%v %v", r, err)
			}
			return true
		})
		to = to%3 + 1
	}
	_, err := admin{n: c.nodes[0]}.TransferLeader(t.Context(), &placementv1.TransferLeaderRequest{Shard: 9, ToNode: 1})
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "no shard 9") {
		t.Error(err)
	}
	_, err = admin{n: c.nodes[0]}.TransferLeader(t.Context(), &placementv1.TransferLeaderRequest{Shard: 1, ToNode: 9})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "to_node") {
		t.Error(err)
	}
}

func TestStartsThatAreRefused(t *testing.T) {
	c := newTestCluster(t, 3)
	c.init(1)
	refused := func(what, want string, change func(*Config)) {
		t.Helper()
		cfg := c.config(0)
		change(&cfg)
		n, err := Open(cfg)
		if err == nil {
			_ = n.Kill()
			t.Fatalf("%s: started", what)
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("a directory in use", "in use by another process", func(*Config) {})
	dir := c.config(2).DataDir
	if err := c.nodes[2].Kill(); err != nil {
		t.Fatal(err)
	}
	c.nodes[2] = nil
	refused("a port in use", "address already in use", func(cfg *Config) { cfg.DataDir, cfg.Listen = dir, c.nodes[0].Address() })
	refused("another node's directory", "belongs to node n3", func(cfg *Config) { cfg.DataDir = dir })

	// A disk that was lost.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	c.start(2)
	select {
	case err := <-c.fatal:
		if !strings.Contains(err.Error(), "has forgotten its votes") {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("a node that lost its disk goes on")
	}
}

func TestInitNeedsItsNodes(t *testing.T) {
	c := newTestCluster(t, 1)
	_, err := admin{n: c.nodes[0]}.Init(t.Context(), &placementv1.InitRequest{})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "1 nodes have joined (n1), 3 are needed") {
		t.Fatal(err)
	}
	c.init(1)
	g := &testGateway{c: c}
	m, _ := c.nodes[0].watchMap()
	if g.acquire(m, 1, "alone").Token == 0 {
		t.Fatal("no token")
	}
}
