package sim

import (
	"fmt"
	"maps"
	"runtime/debug"
	"slices"

	"github.com/mortise-lock/mortise/ops/checker"
	"github.com/mortise-lock/mortise/ops/history"
	"github.com/mortise-lock/mortise/sdk/core"
	"github.com/mortise-lock/mortise/shard"
)

// Result is what a run came to.
type Result struct {
	Hash     uint64
	Took     Time // virtual
	Stats    Stats
	Problems []Problem
	History  []history.Event
}

// Bounds of the phases after the storm.
const (
	serveWithin = 20 * second
	closeWithin = 40 * second
	freeWithin  = 20 * second
)

// Run lives through a whole run: a start, the storm, healing, the proof that
// every shard serves again, the end of all clients, and the count of what is
// left.
func Run(cfg Config) Result {
	w := New(cfg)
	w.survive(w.life)
	w.judge()
	return Result{Hash: w.hash, Took: w.now, Stats: w.stats, Problems: w.problems, History: w.history}
}

// survive turns a panic of the code under test into a problem.
func (w *World) survive(f func()) {
	defer func() {
		if r := recover(); r != nil {
			w.violate("panic", fmt.Sprintf("%v\n%s", r, debug.Stack()))
		}
	}()
	f()
}

// judge hands the history to the checker, which knows every promise.
func (w *World) judge() {
	if len(w.problems) > 0 {
		return // the history ends in the middle
	}
	for _, v := range checker.Check(w.history, checker.Options{ServeWithin: history.Time(serveWithin), FreeWithin: history.Time(freeWithin), MaxViolations: 3}) {
		w.problems = append(w.problems, Problem{Time(v.At), v.Promise, v.String() + w.quote(v.Events)})
	}
}

// quote prints the events that a violation speaks of.
func (w *World) quote(events []int) string {
	s := ""
	for _, i := range events {
		s += "\n    " + eventText(&w.history[i])
	}
	return s
}

func (w *World) life() {
	if !w.Until(20*second, w.allLed) {
		w.stuck("liveness", "not every shard has a leader 20 s after the start")
		return
	}
	for _, c := range w.Clients {
		c.work(w.cfg.Load)
	}
	w.startStorm(w.cfg.Storm)
	w.Run(w.cfg.Storm.Length)
	w.Heal()
	w.serve()
	w.Run(2 * second)
	w.finish()
}

func (w *World) stuck(promise, text string) {
	if len(w.problems) == 0 {
		w.violate(promise, text)
	}
}

// allLed: each shard has a leader that is ready.
func (w *World) allLed() bool {
	for id := range w.cfg.Shards + 1 {
		if w.leader(shard.ID(id)) == nil {
			return false
		}
	}
	return true
}

// NameIn returns the k-th name that belongs to a shard.
func (w *World) NameIn(id shard.ID, k int) string { return w.nameIn("name", id, k) }

func (w *World) nameIn(prefix string, id shard.ID, k int) string {
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s/%d", prefix, i)
		if s, ok := w.router.Route(name); ok && s == id {
			if k--; k < 0 {
				return name
			}
		}
	}
}

// serve asks every shard for a fresh lock after the healing.
func (w *World) serve() {
	if len(w.problems) > 0 {
		return
	}
	c := w.AddClient()
	c.quiet = true
	s := c.Open(5 * second)
	left := w.cfg.Shards
	for id := 1; id <= w.cfg.Shards; id++ {
		w.probe(s, shard.ID(id), &left)
	}
	if !w.Until(serveWithin, func() bool { return left == 0 }) {
		w.stuck("liveness", fmt.Sprintf("%d of %d shards granted nothing within %v after the healing: %s", left, w.cfg.Shards, serveWithin, w.describe()))
	}
}

func (w *World) probe(s *Session, id shard.ID, left *int) {
	g := s.Acquire(core.Request{Name: w.nameIn("probe", id, 0), Wait: 48 * hour})
	g.granted = func(g *Grant) {
		w.record(history.Event{Kind: history.Served, Client: s.c.Index, Node: -1, Shard: uint32(id)})
		*left--
		g.Release()
	}
	g.ended = func(g *Grant) {
		if g.Outcome != history.OK {
			w.stuck("liveness", fmt.Sprintf("the probe of shard %d ended with %s", id, outcomeNames[g.Outcome]))
		}
	}
}

// finish ends all clients in good order and counts what is left: first when
// everybody has given back what it had, then when all sessions are closed.
func (w *World) finish() {
	if len(w.problems) > 0 {
		return
	}
	w.stopApps = true
	for _, c := range w.Clients {
		if c.un != nil {
			c.un.settle()
		}
		for _, s := range c.all {
			for _, g := range slices.Clone(s.list) {
				g.Cancel()
				g.Release()
			}
		}
	}
	// The holds of the dead come free when their sessions expire.
	longest := 10 * second
	if w.cfg.Load != nil {
		longest = max(longest, slices.Max(w.cfg.Load.TTLs))
	}
	if !w.Until(longest+10*second, func() bool { return w.stats.Events%64 == 0 && w.heldOrQueued() == "" }) {
		w.stuck("P6", "after all clients have given back what they had: "+w.heldOrQueued()+w.whoHolds())
		return
	}
	var sessions []*Session
	for _, c := range w.Clients {
		if c.un != nil {
			c.un.close()
		}
		for _, s := range slices.Clone(c.all) {
			sessions = append(sessions, s)
			s.Close()
		}
	}
	over := func() bool {
		return !slices.ContainsFunc(sessions, func(s *Session) bool { return !s.over })
	}
	if !w.Until(closeWithin, over) {
		w.stuck("liveness", fmt.Sprintf("sessions could not be closed within %v after the healing", closeWithin))
		return
	}
	w.every(second, func() { // also without a trace, so that the run is the same
		if w.tracing() {
			w.note(nil, "left: "+w.leftOver())
		}
	})
	if !w.Until(longest+15*second, w.atBaseline) {
		w.stuck("P6", "after all clients have gone: "+w.leftOver())
		return
	}
	if !w.Until(10*second, w.replicasEqual) {
		w.stuck("P9", "replicas do not come to the same index after the healing: "+w.describe())
	}
	w.tellBaseline()
}

// heldOrQueued names a shard where something is held or waits; "" if none is.
func (w *World) heldOrQueued() string {
	for id := 1; id <= w.cfg.Shards; id++ {
		n := w.leader(shard.ID(id))
		if n == nil {
			return fmt.Sprintf("shard %d has no leader", id)
		}
		if st, _ := n.loopOf(shard.ID(id)).w.Status(shard.ID(id)); st.Holds != 0 || st.Waits != 0 {
			return fmt.Sprintf("shard %d has %d holds and %d waits", id, st.Holds, st.Waits)
		}
	}
	return ""
}

// whoHolds asks who holds the names of the workload.
func (w *World) whoHolds() string {
	s := ""
	c := w.AddClient()
	for _, n := range w.names {
		from := len(w.history)
		if h := w.Holders(c, n.name, 2*second); len(h) > 0 {
			s += fmt.Sprintf("; %s: %v, %d waiters", n.name, h, w.history[max(from, len(w.history)-1)].Waiters)
		}
	}
	return s
}

// leftOver names what is not gone; "" if everything is.
func (w *World) leftOver() string {
	for id := 1; id <= w.cfg.Shards; id++ {
		n := w.leader(shard.ID(id))
		if n == nil {
			return fmt.Sprintf("shard %d has no leader", id)
		}
		st, _ := n.loopOf(shard.ID(id)).w.Status(shard.ID(id))
		if st.Holds != 0 || st.Waits != 0 || st.Sessions != 0 || st.Pending != 0 || st.Queued != 0 || st.Waiters != 0 {
			return fmt.Sprintf("shard %d has %d holds, %d waits, %d sessions, %d pending and %d queued commands, %d callers who wait",
				id, st.Holds, st.Waits, st.Sessions, st.Pending, st.Queued, st.Waiters)
		}
	}
	for _, g := range w.gws {
		if g.core == nil {
			continue
		}
		if s := g.core.Stats(); s.Streams+s.Calls+s.Outstanding+s.Locates+s.Homeless > 0 {
			who := ""
			for _, st := range g.order {
				who += fmt.Sprintf(" (stream of %v, open there %v)", st.c.a, st.c.aOpen)
			}
			return who + fmt.Sprintf("gateway %d has %d streams, %d calls, %d requests outstanding, %d locates, %d without a route",
				g.idx+1, s.Streams, s.Calls, s.Outstanding, s.Locates, s.Homeless)
		}
	}
	return ""
}

func (w *World) atBaseline() bool {
	// Not after every event: it looks at everything.
	return w.stats.Events%64 == 0 && w.leftOver() == ""
}

func (w *World) tellBaseline() {
	for _, what := range []string{"holds", "waits", "sessions", "streams", "calls"} {
		w.record(history.Event{Kind: history.Baseline, Client: -1, Node: -1, Note: what})
	}
}

func (w *World) replicasEqual() bool {
	if w.stats.Events%64 != 0 {
		return false
	}
	for id := range w.cfg.Shards + 1 {
		hashes := map[uint64]bool{}
		applied := map[uint64]bool{}
		for _, n := range w.nodes {
			if n.dead {
				continue
			}
			if !n.running() {
				return false
			}
			at, hash, _ := n.loopOf(shard.ID(id)).w.Hash(shard.ID(id))
			hashes[hash], applied[at] = true, true
		}
		if len(applied) > 1 {
			return false
		}
		if len(hashes) > 1 {
			w.violate("P9", fmt.Sprintf("replicas of shard %d differ at index %d", id, slices.Collect(maps.Keys(applied))[0]))
			return false
		}
	}
	return true
}

// describe says how every node sees every shard.
func (w *World) describe() string {
	s := ""
	for _, n := range w.nodes {
		s += fmt.Sprintf("\n  node %d: up %v, paused %v, dead %v", n.id, n.p.up, n.p.paused, n.dead)
		if !n.running() {
			continue
		}
		for id := range w.cfg.Shards + 1 {
			st, _ := n.loopOf(shard.ID(id)).w.Status(shard.ID(id))
			s += fmt.Sprintf("; shard %d: %s term %d leader %d ready %v applied %d of %d", id, st.Role, st.Term, st.Leader, st.Ready, st.Applied, st.LastIndex)
		}
	}
	return s
}
