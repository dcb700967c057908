package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mortise-lock/mortise/ops/checker"
	"github.com/mortise-lock/mortise/ops/history"
)

const (
	sessionTTL = 3 * time.Second
	lockShards = 16
	// serveWithin bounds the time from the end of the storm to a grant in every
	// shard; freeWithin is how much longer than its TTL a dead session's hold may
	// last then.
	serveWithin = 20 * time.Second
	freeWithin  = 10 * time.Second
)

// world is a running cluster with its clients.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	net     *network
	servers []*server
	clients []*crowd
	offices []*host // where clients live
	log     *history.Log
	store   string
	names   []string
	next    int // index of the next client process
	faults  map[string]int
}

// crowd is one client process.
type crowd struct {
	w     *world
	index int
	host  *host
	proc  *process
	in    interface{ Close() error }
	read  sync.WaitGroup
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 2)), net: newNetwork(t), log: &history.Log{}, faults: map[string]int{},
		store: filepath.Join(t.TempDir(), "store")}
	for i := range 14 {
		w.names = append(w.names, fmt.Sprintf("%c/chaos/%d", "xxxxsk"[i%6], i))
	}
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("0123456789abcdef", 4)), 0o600); err != nil {
		t.Fatal(err)
	}
	var hosts []*host
	var gossip []string
	for i := range *nodes {
		h := w.net.add(fmt.Sprintf("n%d", i+1))
		hosts, gossip = append(hosts, h), append(gossip, h.addr+":7601")
	}
	for i := range 2 {
		w.offices = append(w.offices, w.net.add(fmt.Sprintf("c%d", i+1)))
	}
	for _, h := range hosts {
		w.servers = append(w.servers, newServer(t, h, key, gossip))
	}
	for _, s := range w.servers {
		s.start()
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, s := range w.servers {
				t.Logf("end of the log of %s:\n%s", s.host.name, s.log())
			}
		}
	})
	eventually(t, 30*time.Second, "mortise server init", func() error {
		if out, err := cli(w.offices[0], w.servers[0].gateway(), "server", "init", "--nodes", fmt.Sprint(*nodes), "--yes"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	w.whole(30 * time.Second)
	l, err := net.Listen("unix", w.store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go (&store{seen: map[string]uint64{}, log: w.log}).serve(l)
	return w
}

func (s *server) gateway() string { return s.host.addr + ":7420" }

func (w *world) gateways() []string {
	var out []string
	for _, s := range w.servers {
		out = append(out, s.gateway())
	}
	return out
}

// whole waits until every node answers and every shard has a leader.
func (w *world) whole(within time.Duration) {
	w.t.Helper()
	eventually(w.t, within, "a whole cluster", func() error {
		for _, s := range w.servers {
			st, err := clusterStatus(w.offices[0], s.gateway())
			if err != nil {
				return err
			}
			if st.NodesDown > 0 || st.ShardsNoOne > 0 {
				return fmt.Errorf("%s says: %s", s.host.name, st.Health)
			}
		}
		return nil
	})
}

// crowd starts a client process.
func (w *world) crowd(h *host, o orders) *crowd {
	w.t.Helper()
	o.Index, o.Endpoints, o.TTL, o.Names, o.Store = w.next, w.gateways(), sessionTTL, w.names, w.store
	w.next++
	cmd := h.role("client")
	in, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out, to, err := os.Pipe()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd.Stdout = to
	c := &crowd{w: w, index: o.Index, host: h, in: in}
	if c.proc, err = launch(cmd); err != nil {
		w.t.Fatal(err)
	}
	to.Close()
	w.t.Cleanup(func() {
		c.proc.signal(syscall.SIGCONT)
		c.proc.kill()
	})
	c.read.Go(func() {
		defer out.Close()
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var e history.Event
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				return // cut off by a kill
			}
			w.log.Record(e)
		}
	})
	line, err := json.Marshal(o)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := in.Write(append(line, '\n')); err != nil {
		w.t.Fatal(err)
	}
	return c
}

// end lets the process say good-bye.
func (c *crowd) end(within time.Duration) {
	c.in.Close()
	select {
	case <-c.proc.done:
	case <-time.After(within):
		c.w.t.Errorf("client process %d does not end", c.index)
		c.proc.kill()
	}
	c.read.Wait()
}

// fault is something that is done to the world for a while. It returns what
// undoes it.
type fault struct {
	name string
	do   func(w *world) (undo func(), ok bool)
}

func pick[T any](w *world, of []T) T { return of[w.rng.IntN(len(of))] }

func (w *world) node() (*server, bool) {
	s := pick(w, w.servers)
	return s, s.proc.running()
}

func onNode(f func(w *world, s *server) func()) func(w *world) (func(), bool) {
	return func(w *world) (func(), bool) {
		s, ok := w.node()
		if !ok {
			return nil, false
		}
		return f(w, s), true
	}
}

var faults = []fault{
	{"kill a node", onNode(func(w *world, s *server) func() {
		s.proc.kill()
		return s.start
	})},
	{"kill all nodes", func(w *world) (func(), bool) {
		for _, s := range w.servers {
			s.proc.kill()
		}
		return func() {
			for _, s := range w.servers {
				s.start()
			}
		}, true
	}},
	{"pause a node", onNode(func(w *world, s *server) func() {
		s.proc.signal(syscall.SIGSTOP)
		return func() { s.proc.signal(syscall.SIGCONT) }
	})},
	{"stop a node in good order", onNode(func(w *world, s *server) func() {
		s.proc.signal(syscall.SIGTERM)
		return func() {
			select {
			case <-s.proc.done:
			case <-time.After(30 * time.Second):
				w.t.Errorf("%s did not stop within 30 s of SIGTERM", s.host.name)
				s.proc.kill()
			}
			s.start()
		}
	})},
	{"unplug a node", onNode(func(w *world, s *server) func() { return s.host.unplug() })},
	{"mute a node", onNode(func(w *world, s *server) func() { return s.host.mute() })},
	{"deafen a node", onNode(func(w *world, s *server) func() { return s.host.deafen() })},
	{"two nodes don't hear each other", func(w *world) (func(), bool) {
		i := w.rng.IntN(len(w.servers))
		a, b := w.servers[i].host, w.servers[(i+1)%len(w.servers)].host
		one := a.forget(b)
		if w.rng.IntN(2) == 0 {
			return one, true
		}
		other := b.forget(a)
		return func() { one(); other() }, true
	}},
	{"fill a disk", onNode(func(w *world, s *server) func() { return s.fill() })},
	{"unplug clients", func(w *world) (func(), bool) { return pick(w, w.offices).unplug(), true }},
	{"mute clients", func(w *world) (func(), bool) { return pick(w, w.offices).mute(), true }},
	{"deafen clients", func(w *world) (func(), bool) { return pick(w, w.offices).deafen(), true }},
	{"pause clients", func(w *world) (func(), bool) {
		c := pick(w, w.clients)
		w.log.Record(history.Event{At: now(), Kind: history.Paused, Client: c.index, Node: -1})
		c.proc.signal(syscall.SIGSTOP)
		return func() {
			c.proc.signal(syscall.SIGCONT)
			w.log.Record(history.Event{At: now(), Kind: history.Resumed, Client: c.index, Node: -1})
		}, true
	}},
	{"kill clients", func(w *world) (func(), bool) {
		i := w.rng.IntN(len(w.clients))
		c := w.clients[i]
		c.proc.kill()
		c.read.Wait()
		w.died(c)
		return func() { w.clients[i] = w.crowd(c.host, orders{Sessions: 3}) }, true
	}},
	{"squeeze the processors", func(w *world) (func(), bool) {
		var hogs []*process
		for range 3 {
			if p, err := launch(exec.Command("sh", "-c", "while :; do :; done")); err == nil {
				hogs = append(hogs, p)
			}
		}
		return func() {
			for _, p := range hogs {
				p.kill()
			}
		}, true
	}},
	{"move leaders", func(w *world) (func(), bool) {
		to := pick(w, w.servers)
		for range 4 {
			// It may be refused or fail: the cluster is under fire.
			_, _ = cli(w.offices[0], pick(w, w.servers).gateway(), "shard", "transfer-leader", fmt.Sprint(1+w.rng.IntN(lockShards)), "--to", to.host.name, "--yes")
		}
		return func() {}, true
	}},
}

// died records the death of a process and of each of its sessions.
func (w *world) died(c *crowd) {
	at := now()
	for _, e := range w.log.Events() {
		if e.Kind == history.SessionOpened && e.Client == c.index {
			w.log.Record(history.Event{At: at, Kind: history.ClientDied, Client: c.index, Node: -1, Session: e.Session})
		}
	}
}

// storm breaks things until the time is over, up to two at once, then mends
// all.
func (w *world) storm(d time.Duration) {
	type broken struct {
		name  string
		until time.Time
		undo  func()
	}
	var open []broken
	mend := func(all bool) {
		open = slices.DeleteFunc(open, func(b broken) bool {
			if !all && time.Now().Before(b.until) {
				return false
			}
			b.undo()
			return true
		})
	}
	for end := time.Now().Add(d); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
		mend(false)
		if len(open) >= 2 || w.rng.IntN(8) > 0 {
			continue
		}
		f := pick(w, faults)
		if slices.ContainsFunc(open, func(b broken) bool {
			return b.name == f.name || strings.Contains(b.name, "node") && strings.Contains(f.name, "node") || clashes(b.name, f.name)
		}) {
			continue
		}
		undo, ok := f.do(w)
		if !ok {
			continue
		}
		w.faults[f.name]++
		w.t.Logf("%s", f.name)
		w.log.Record(history.Event{At: now(), Kind: history.Fault, Client: -1, Node: -1, Note: f.name})
		open = append(open, broken{f.name, time.Now().Add(time.Duration(500+w.rng.IntN(6500)) * time.Millisecond), undo})
	}
	mend(true)
}

// clashes: two faults that use the same tool on perhaps the same host.
func clashes(a, b string) bool {
	return strings.HasSuffix(a, "clients") && strings.HasSuffix(b, "clients")
}

// TestChaos breaks a cluster for -duration and judges what its clients saw.
func TestChaos(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	w := newWorld(t, seed)
	for i := range 4 {
		w.clients = append(w.clients, w.crowd(w.offices[i%2], orders{Sessions: 3}))
	}
	pauseFor(2 * time.Second)
	w.storm(*duration)
	w.whole(60 * time.Second)
	w.log.Record(history.Event{At: now(), Kind: history.Healed, Client: -1, Node: -1})
	pauseFor(5 * time.Second)
	for _, c := range w.clients {
		c.end(40 * time.Second)
	}
	pauseFor(sessionTTL + freeWithin)
	w.crowd(w.offices[0], orders{Prove: true, Shards: lockShards}).end(2 * time.Minute)
	eventually(t, 20*time.Second, "an empty cluster", func() error {
		st, err := clusterStatus(w.offices[0], w.servers[0].gateway())
		if err == nil && (st.Holds > 0 || st.Waits > 0) {
			err = fmt.Errorf("%d holds and %d waits are left", st.Holds, st.Waits)
		}
		return err
	})
	w.judge()
}

func pauseFor(d time.Duration) { pause(context.Background(), d) }

func (w *world) judge() {
	w.t.Helper()
	events := w.log.Events()
	var stats checker.Stats
	// The proof of service comes after everybody's good-bye.
	o := checker.Options{ServeWithin: history.Time(serveWithin + 90*time.Second), FreeWithin: history.Time(freeWithin), Stats: &stats}
	for i := range uint32(lockShards) {
		o.Shards = append(o.Shards, i+1)
	}
	found := checker.Check(events, o)
	for _, v := range found {
		w.t.Error(v)
	}
	if len(found) > 0 {
		w.save(events)
	}
	refused, unknown := 0, 0
	for _, e := range events {
		if e.Kind == history.Write && !e.Accepted {
			refused++
		}
		if e.Kind == history.Return && e.Outcome == history.OutcomeUnknown {
			unknown++
		}
	}
	var done []string
	for _, f := range faults {
		done = append(done, fmt.Sprintf("%s %d", f.name, w.faults[f.name]))
	}
	w.t.Logf("figure: %v of storm: %d events, %d grants, %d beliefs, %d writes (%d refused), %d describes, %d outcomes unknown; faults: %s",
		*duration, len(events), stats.Grants, stats.Beliefs, stats.Writes, refused, stats.Describes, unknown, strings.Join(done, ", "))
	if stats.Grants < 50 || stats.Describes < 20 {
		w.t.Errorf("only %d grants and %d describes were seen", stats.Grants, stats.Describes)
	}
}

// save keeps a history that broke a promise.
func (w *world) save(events []history.Event) {
	var f *os.File
	var err error
	if *keep != "" {
		f, err = os.Create(*keep)
	} else {
		f, err = os.CreateTemp("", "mortise-chaos-*.jsonl")
	}
	if err != nil {
		w.t.Error(err)
		return
	}
	defer f.Close()
	enc := json.NewEncoder(f)
	for i := range events {
		if err := enc.Encode(events[i]); err != nil {
			w.t.Error(err)
			return
		}
	}
	w.t.Logf("the history is in %s", f.Name())
}
