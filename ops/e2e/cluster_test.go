package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mortise-lock/mortise/ops/config"
	"github.com/mortise-lock/mortise/ops/loopback"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
)

// server is one node or gateway of a cluster: an operating-system process that
// `mortise server run --config FILE` started.
type server struct {
	name   string
	config string
	zone   string
	grpc   string // of its own gateway
	http   string
	data   string
	mu     sync.Mutex
	pid    int
	proc   *process // nil while it is a child of `mortise dev`
}

// cluster is a running cluster.
type cluster struct {
	t       *testing.T
	dir     string
	servers []*server
	// grpc and http reach a gateway that no test kills: the one of `mortise
	// dev`, or else the first server's.
	grpc, http string
	dev        *process // nil without `mortise dev`
}

// freeAddr finds an address for a server.
func freeAddr(t *testing.T) string {
	t.Helper()
	a, err := loopback.Addrs(1)
	if err != nil {
		t.Fatal(err)
	}
	return a[0]
}

// startDev runs `mortise dev --processes`.
func startDev(t *testing.T, nodes int, args ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), grpc: freeAddr(t), http: freeAddr(t)}
	args = append([]string{"dev", "--processes", "--nodes", fmt.Sprint(nodes), "--data", c.dir, "--grpc", c.grpc, "--http", c.http}, args...)
	begun := time.Now()
	// Runs before the cleanup of dev itself: its children first.
	c.dev = start(t, "mortise dev", exec.Command(binary, args...))
	t.Cleanup(c.killAll)
	log := c.dev.waitLog(t, `\bready\b`, time.Minute)
	t.Logf("mortise dev with %d nodes was ready after %v", nodes, time.Since(begun).Round(time.Millisecond))
	printed := commandLines(log)
	pids, err := filepath.Glob(filepath.Join(c.dir, "*", "pid"))
	if err != nil || len(pids) != nodes {
		t.Fatalf("%d pid files under %s, want %d (%v)", len(pids), c.dir, nodes, err)
	}
	for _, file := range pids {
		folder := filepath.Dir(file)
		pid, err := readPID(file)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(printed, func(cfg string) bool { return strings.HasPrefix(cfg, folder+"/") })
		if i < 0 {
			t.Fatalf("mortise dev printed no command line `… server run --config %s/…`; it printed:\n%s", folder, log)
		}
		c.add(printed[i], pid, nil)
	}
	slices.SortFunc(c.servers, func(a, b *server) int { return cmp.Compare(a.name, b.name) })
	return c
}

var commandLine = regexp.MustCompile(`mortise\S* server run --config[ =](\S+)`)

// commandLines finds the configuration files in the command lines that
// `mortise dev --processes` printed.
func commandLines(log string) []string {
	var out []string
	for _, m := range commandLine.FindAllStringSubmatch(log, -1) {
		if path := strings.Trim(m[1], `'"`); !slices.Contains(out, path) {
			out = append(out, path)
		}
	}
	return out
}

// add reads a server's configuration file.
func (c *cluster) add(file string, pid int, proc *process) *server {
	c.t.Helper()
	l, err := config.Load(config.Sources{File: file})
	if err != nil {
		c.t.Fatal(err)
	}
	s := &server{name: l.Config.Name, config: file, zone: l.Config.Zone, grpc: l.Config.Gateway.GRPC,
		http: l.Config.Gateway.HTTP, data: l.Config.DataDir, pid: pid, proc: proc}
	c.servers = append(c.servers, s)
	return s
}

// clusterKey is the key of every cluster here.
var clusterKey = strings.Repeat("0123456789abcdef", 4)

// writeConfig writes the configuration of one node.
func writeConfig(t *testing.T, dir, name, zone, gossip string, join []string) string {
	t.Helper()
	key := filepath.Join(dir, "key")
	text := fmt.Sprintf(`name: %s
data_dir: %s
cluster_key_file: %s
zone: %s
listen: %s
gossip:
  listen: %s
  join: [%s]
gateway:
  grpc: %s
  http: %s
`, name, filepath.Join(dir, name, "data"), key, zone, freeAddr(t), gossip, strings.Join(join, ", "), freeAddr(t), freeAddr(t))
	if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, name, "mortise.yaml")
	if _, err := os.Stat(key); err != nil { // nodes that run already may be reading it
		if err := os.WriteFile(key, []byte(clusterKey), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// startServers makes a cluster out of configuration files: `mortise server
// run` for each node, then `mortise server init`.
func startServers(t *testing.T, nodes int) *cluster {
	t.Helper()
	return startNamed(t, "n", nodes)
}

// startNamed is startServers with a prefix of the nodes' names.
func startNamed(t *testing.T, prefix string, nodes int) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir()}
	t.Cleanup(c.killAll)
	var gossip []string
	for range nodes {
		gossip = append(gossip, freeAddr(t))
	}
	for i := range nodes {
		name := fmt.Sprintf("%s%d", prefix, i+1)
		s := c.add(writeConfig(t, c.dir, name, fmt.Sprintf("z%d", i%3+1), gossip[i], gossip), 0, nil)
		c.run(s)
	}
	c.grpc, c.http = c.servers[0].grpc, c.servers[0].http
	// init says itself which nodes have joined; right after the start not all
	// may have.
	eventually(t, 30*time.Second, "mortise server init", func() error {
		out, errs, status := output(t, nil, "server", "init", "--endpoints", c.grpc, "--nodes", fmt.Sprint(nodes), "--yes")
		if status != 0 {
			return fmt.Errorf("exit status %d: %s%s", status, out, errs)
		}
		return nil
	})
	for _, s := range c.servers {
		c.waitReady(s)
	}
	return c
}

// run starts a server's process, as the printed command line says.
func (c *cluster) run(s *server) {
	c.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	// killAll ends it, after the test's clients have said good-bye.
	p, err := spawn(s.name, filepath.Join(filepath.Dir(s.config), "log"), exec.Command(binary, "server", "run", "--config", s.config))
	if err != nil {
		c.t.Fatal(err)
	}
	s.proc, s.pid = p, p.pid
}

// restart starts a killed server again and waits until it is ready.
func (c *cluster) restart(servers ...*server) {
	c.t.Helper()
	for _, s := range servers {
		c.run(s)
	}
	for _, s := range servers {
		c.waitReady(s)
	}
}

// waitReady waits for /readyz of a server's own gateway.
func (c *cluster) waitReady(s *server) {
	c.t.Helper()
	eventually(c.t, 30*time.Second, s.name+" to be ready", func() error {
		s.mu.Lock()
		proc := s.proc
		s.mu.Unlock()
		if proc != nil {
			select {
			case <-proc.done:
				c.t.Fatalf("%s ended (%v); its log ends:\n%s", s.name, proc.err, tail(proc.log, 4000))
			default:
			}
		}
		return ready(s.http)
	})
}

func ready(addr string) error {
	client := http.Client{Timeout: 2 * time.Second}
	r, err := client.Get("http://" + addr + "/readyz")
	if err != nil {
		return err
	}
	defer r.Body.Close()
	var body bytes.Buffer
	_, _ = body.ReadFrom(r.Body)
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", r.Status, strings.TrimSpace(body.String()))
	}
	return nil
}

// signal sends a signal to servers, to all of them before anything else.
func (c *cluster) signal(sig syscall.Signal, servers ...*server) {
	c.t.Helper()
	for _, s := range servers {
		if err := signal(s.pid, s.config, sig); err != nil {
			c.t.Fatalf("%v for %s: %v", sig, s.name, err)
		}
	}
}

// kill ends servers with SIGKILL, all at once, and waits until they are gone.
func (c *cluster) kill(servers ...*server) {
	c.t.Helper()
	c.signal(syscall.SIGKILL, servers...)
	c.gone(servers...)
}

// gone waits until killed servers have ended.
func (c *cluster) gone(servers ...*server) {
	c.t.Helper()
	for _, s := range servers {
		eventually(c.t, 10*time.Second, s.name+" to be gone", func() error {
			if alive(s.pid) {
				return fmt.Errorf("pid %d is there", s.pid)
			}
			return nil
		})
	}
}

// killAll is the clean-up: it also works when the test failed half-way.
func (c *cluster) killAll() {
	for _, s := range c.servers {
		_ = signal(s.pid, s.config, syscall.SIGKILL) // gone already, most often
	}
	// Nodes of `mortise dev` that the test did not come to know.
	pids, _ := filepath.Glob(filepath.Join(c.dir, "*", "pid"))
	for _, file := range pids {
		if pid, err := readPID(file); err == nil {
			_ = signal(pid, filepath.Dir(file), syscall.SIGKILL)
		}
	}
	for _, s := range c.servers {
		if s.proc != nil {
			s.proc.kill()
		}
	}
	if c.t.Failed() {
		logs, _ := filepath.Glob(filepath.Join(c.dir, "*", "*log*"))
		for _, l := range logs {
			if i, err := os.Stat(l); err == nil && i.Mode().IsRegular() {
				c.t.Logf("end of %s:\n%s", l, tail(l, 4000))
			}
		}
	}
}

// status asks for what every node says of itself.
func (c *cluster) status() *placementv1.ClusterStatusResponse {
	c.t.Helper()
	var st *placementv1.ClusterStatusResponse
	eventually(c.t, 20*time.Second, "the cluster's status", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		var err error
		st, err = placementv1.NewPlacementServiceClient(dial(c.t, c.grpc)).ClusterStatus(ctx, &placementv1.ClusterStatusRequest{})
		return err
	})
	return st
}

// leaders tells which server leads each shard, once every shard has a leader.
func (c *cluster) leaders() map[uint32]*server {
	c.t.Helper()
	out := map[uint32]*server{}
	eventually(c.t, 30*time.Second, "a leader for every shard", func() error {
		st := c.status()
		names := map[uint64]string{}
		for _, n := range st.Map.Nodes {
			names[n.Id] = n.Name
		}
		clear(out)
		terms := map[uint32]uint64{}
		for _, n := range st.Nodes {
			for _, r := range n.Replicas {
				if n.Reachable && r.Role == "LEADER" && r.Term >= terms[r.Shard] {
					terms[r.Shard] = r.Term
					out[r.Shard] = c.named(names[n.Node])
				}
			}
		}
		for _, s := range st.Map.Shards {
			if out[s.Id] == nil {
				return fmt.Errorf("shard %d has none", s.Id)
			}
		}
		return nil
	})
	return out
}

func (c *cluster) named(name string) *server {
	for _, s := range c.servers {
		if s.name == name {
			return s
		}
	}
	c.t.Fatalf("the map names node %q, of which there is no configuration", name)
	return nil
}

// busiest is the server that leads most lock shards, and these shards.
func (c *cluster) busiest() (*server, []uint32) {
	c.t.Helper()
	led := map[*server][]uint32{}
	for shard, s := range c.leaders() {
		if shard != 0 {
			led[s] = append(led[s], shard)
		}
	}
	var most *server
	for _, s := range c.servers {
		if most == nil || len(led[s]) > len(led[most]) {
			most = s
		}
	}
	slices.Sort(led[most])
	return most, led[most]
}

// spread moves leaderships until each server leads about as many shards as any
// other: kills leave them all to those that were not killed.
func (c *cluster) spread() {
	c.t.Helper()
	ids := map[string]uint64{}
	for _, n := range c.status().Map.Nodes {
		ids[n.Name] = n.Id
	}
	eventually(c.t, 30*time.Second, "leaders on every server", func() error {
		var failed error
		for shard, s := range c.leaders() {
			to := c.servers[int(shard)%len(c.servers)]
			if s == to {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			_, err := placementv1.NewPlacementServiceClient(dial(c.t, c.grpc)).TransferLeader(ctx,
				&placementv1.TransferLeaderRequest{Shard: shard, ToNode: ids[to.name]})
			cancel()
			failed = errors.Join(failed, err)
		}
		return failed
	})
}

// endpoints are the gRPC addresses of all servers' own gateways.
func (c *cluster) endpoints() []string {
	var out []string
	for _, s := range c.servers {
		out = append(out, s.grpc)
	}
	return out
}

// caughtUp waits until every replica has applied what its leader committed
// when this began.
func (c *cluster) caughtUp(within time.Duration) {
	c.t.Helper()
	want := map[uint32]uint64{}
	for _, n := range c.status().Nodes {
		for _, r := range n.Replicas {
			want[r.Shard] = max(want[r.Shard], r.CommitIndex)
		}
	}
	eventually(c.t, within, "every replica to catch up", func() error {
		for _, n := range c.status().Nodes {
			if !n.Reachable {
				return fmt.Errorf("node %d: %s", n.Node, n.Error)
			}
			for _, r := range n.Replicas {
				if r.AppliedIndex < want[r.Shard] {
					return fmt.Errorf("node %d applied %d of %d in shard %d", n.Node, r.AppliedIndex, want[r.Shard], r.Shard)
				}
			}
		}
		return nil
	})
}
