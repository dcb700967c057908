package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mortise-lock/mortise/gateway/sessionid"
	"github.com/mortise-lock/mortise/node/worker"
	"github.com/mortise-lock/mortise/ops/history"
	"github.com/mortise-lock/mortise/placement"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/mortise-lock/mortise/shard"
	"google.golang.org/protobuf/proto"
)

// Time is virtual time since the run began, as one true clock shows it.
type Time = time.Duration

const (
	us     = time.Microsecond
	ms     = time.Millisecond
	second = time.Second
	hour   = time.Hour
)

// World is a cluster with its clients, disks and network, on one thread and
// virtual time. The same Config gives the same run, to the last event, as long
// as crypto/rand is pinned (see TestSeeds).
type World struct {
	cfg   Config
	now   Time
	rng   *rand.Rand
	q     queue
	net   network
	procs []*proc
	nodes []*node
	gws   []*gateway
	// Clients are those that live, by slot.
	Clients []*Client
	named   int // clients so far
	silent  []*proc

	placed *placementv1.Map
	router *shard.Router
	codec  *sessionid.Codec
	names  []lockName

	lastCall uint64
	history  []history.Event
	hash     uint64
	stats    Stats
	problems []Problem
	trace    func(line string)
	batches  []*raftBatch
	outbox   [][classes][]worker.RaftMessage
	check    *watch
	store    map[string]uint64 // the protected store: newest token by name
	storm    *storm
	stopApps bool
}

// Problem is a promise that was broken.
type Problem struct {
	At      Time
	Promise string
	Text    string
}

func (p Problem) String() string { return fmt.Sprintf("%v: %s: %s", p.At, p.Promise, p.Text) }

// New builds a world and starts everything in it.
func New(cfg Config) *World {
	cfg.setDefaults()
	w := &World{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x6d6f7274697365)), hash: 14695981039346656037, store: map[string]uint64{}}
	w.net.w = w
	w.trace = cfg.Trace
	w.check = newWatch(w)
	w.outbox = make([][classes][]worker.RaftMessage, cfg.Nodes)
	var infos []placement.NodeInfo
	for i := range cfg.Nodes {
		infos = append(infos, placement.NodeInfo{ID: uint64(i + 1), Name: fmt.Sprintf("n%d", i+1), Address: fmt.Sprintf("127.0.0.1:%d", 7000+i), Region: "eu"})
	}
	m, err := placement.InitialMap("00112233445566778899aabbccddeeff", infos, cfg.Shards)
	if err != nil {
		panic(err)
	}
	w.placed = m
	if w.router, err = placement.RouterFromMap(m); err != nil {
		panic(err)
	}
	w.codec = sessionid.New([]byte("a cluster key of the simulator"))
	for i := range cfg.Nodes {
		w.nodes = append(w.nodes, w.newNode(i, w.newProc(fmt.Sprintf("node%d", i+1))))
	}
	for _, n := range w.nodes {
		n.links = make([][classes]*raftLink, cfg.Nodes)
		for j, o := range w.nodes {
			if o != n {
				n.links[j] = [classes]*raftLink{newRaftLink(n, o, classControl), newRaftLink(n, o, classAppend)}
			}
		}
		if err := n.bootstrap(m); err != nil {
			panic(err)
		}
	}
	for i := range cfg.Gateways {
		p := w.nodes[i%cfg.Nodes].p
		if !cfg.Embedded {
			p = w.newProc(fmt.Sprintf("gateway%d", i+1))
		}
		w.gws = append(w.gws, w.newGateway(i, p))
	}
	for _, n := range w.nodes {
		if err := n.start(); err != nil {
			panic(err)
		}
	}
	for _, g := range w.gws {
		g.start()
	}
	w.makeNames()
	for range cfg.Clients {
		w.AddClient()
	}
	w.every(second, w.net.impatient)
	return w
}

// AddClient starts another client process.
func (w *World) AddClient() *Client {
	p := w.newProc(fmt.Sprintf("client%d", w.named))
	c := &Client{w: w, p: p, Index: w.named}
	p.client = w.named
	w.named++
	w.Clients = append(w.Clients, c)
	return c
}

func (w *World) after(d Time, f func()) { w.q.push(w.now+max(d, 0), call(f), 0) }

func (w *World) every(d Time, f func()) {
	w.after(d, func() { f(); w.every(d, f) })
}

// Run lets d pass, or less if something is wrong.
func (w *World) Run(d Time) {
	for end := w.now + d; len(w.problems) == 0; {
		if len(w.q.heap) == 0 || w.q.heap[0].at > end {
			w.now = end
			return
		}
		w.one()
	}
}

// Until runs until ok says so; false if that took longer than d.
func (w *World) Until(d Time, ok func() bool) bool {
	for end := w.now + d; !ok(); {
		if len(w.problems) > 0 || len(w.q.heap) == 0 || w.q.heap[0].at > end {
			return false
		}
		w.one()
	}
	return true
}

func (w *World) one() {
	e := w.q.pop()
	w.now = e.at
	w.stats.Events++
	w.mix(uint64(e.at) ^ e.seq<<44)
	e.h.fire(e.arg)
}

func (w *World) mix(v uint64) {
	w.hash = (w.hash ^ v) * 1099511628211
	w.hash ^= w.hash >> 29
}

// Now is the time that has passed.
func (w *World) Now() Time { return w.now }

// Hash sums up everything that has happened.
func (w *World) Hash() uint64 { return w.hash }

// Problems are the promises found broken.
func (w *World) Problems() []Problem { return w.problems }

// History is what happened, for a checker.
func (w *World) History() []history.Event { return w.history }

func (w *World) chance(p float64) bool { return w.rng.Float64() < p }

// upTo draws 0 to d.
func (w *World) upTo(d Time) Time {
	if d <= 0 {
		return 0
	}
	return Time(w.rng.Int64N(int64(d) + 1))
}

func (w *World) between(a, b Time) Time { return a + w.upTo(b-a) }

// exp draws from an exponential distribution, at most ten times its mean.
func (w *World) exp(mean Time) Time {
	return Time(min(w.rng.ExpFloat64(), 10) * float64(mean))
}

func (w *World) newCall() uint64 { w.lastCall++; return w.lastCall }

func (w *World) violate(promise, text string) {
	w.problems = append(w.problems, Problem{w.now, promise, text})
	if w.tracing() {
		w.trace(fmt.Sprintf("%12v VIOLATION %s: %s", w.now, promise, text))
	}
}

func (w *World) record(e history.Event) {
	e.At = history.Time(w.now)
	w.mix(uint64(e.Kind)<<56 ^ uint64(e.Op)<<48 ^ uint64(e.Outcome)<<40 ^ e.Token<<8 ^ e.Call ^ e.Index<<20 ^ e.Hash)
	w.history = append(w.history, e)
	w.check.see(&w.history[len(w.history)-1])
	if w.tracing() {
		w.traceEvent(&e)
	}
}

func clone[M proto.Message](m M) M { return proto.CloneOf(m) }

func cloneAny(m any) any {
	if p, ok := m.(proto.Message); ok {
		return proto.Clone(p)
	}
	return m
}
