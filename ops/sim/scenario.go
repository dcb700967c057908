package sim

import (
	"fmt"

	"github.com/mortise-lock/mortise/ops/history"
	"github.com/mortise-lock/mortise/sdk/core"
	"github.com/mortise-lock/mortise/shard"
)

// What scenarios are written with, besides New, Run, Until, AddClient and the
// methods of Client, Session and Grant. Nodes are numbered from 1.

// Wait is a wait without a limit, for core.Request.
const Wait = 48 * hour

// Start waits until every shard has a leader.
func (w *World) Start() {
	if !w.Until(20*second, w.allLed) {
		w.stuck("liveness", "not every shard has a leader 20 s after the start: "+w.describe())
	}
}

// Leader is the node that leads a shard and is ready; 0 if none is.
func (w *World) Leader(id shard.ID) int {
	if n := w.leader(id); n != nil {
		return n.idx + 1
	}
	return 0
}

// Crash kills a node's process; Restart starts it again.
func (w *World) Crash(node int)   { w.nodes[node-1].crash(false) }
func (w *World) Restart(node int) { w.nodes[node-1].restart() }

// Pause stops a node's process; Resume lets it go on.
func (w *World) Pause(node int)  { w.nodes[node-1].p.pause(false) }
func (w *World) Resume(node int) { w.nodes[node-1].p.resume() }

// Stick lets no sync of a node's disk end until Unstick.
func (w *World) Stick(node int)   { w.nodes[node-1].disk.stuck = true }
func (w *World) Unstick(node int) { w.nodes[node-1].disk.unstick() }

// Transfer hands a shard's leadership to a node and waits until it leads.
func (w *World) Transfer(id shard.ID, node int) bool {
	l := w.leader(id)
	if l == nil || l.idx == node-1 {
		return l != nil
	}
	w.transfer(l, id, w.nodes[node-1].id)
	return w.Until(5*second, func() bool { return w.Leader(id) == node })
}

// Cut takes hosts off from all others until the function that it returns is
// called. Hosts are nodes, gateways and clients: see Node, Gateway, Host.
func (w *World) Cut(hosts ...int) (heal func()) {
	in := map[int]bool{}
	for _, h := range hosts {
		in[h] = true
	}
	size := len(w.procs)
	set := func(by int16) {
		for a := range size {
			for b := range size {
				if in[a] != in[b] {
					w.net.cutOneWay(a, b, by)
				}
			}
		}
	}
	set(1)
	return func() { set(-1) }
}

// CutOneWay swallows everything from one host to another until healed.
func (w *World) CutOneWay(from, to int) (heal func()) {
	w.net.cutOneWay(from, to, 1)
	return func() { w.net.cutOneWay(from, to, -1) }
}

// Node, Gateway and Host are addresses for Cut. Gateways are numbered from 1.
func (w *World) Node(n int) int    { return w.nodes[n-1].p.id }
func (w *World) Gateway(n int) int { return w.gws[n-1].p.id }
func (c *Client) Host() int        { return c.p.id }

// KillGateway kills a gateway that has a process of its own; StartGateway
// starts it again.
func (w *World) KillGateway(n int) { w.gws[n-1].die(false) }
func (w *World) StartGateway(n int) {
	w.gws[n-1].p.born()
	w.gws[n-1].start()
}

// Lock acquires and waits for the answer, at most d.
func (w *World) Lock(s *Session, req core.Request, d Time) *Grant {
	g := s.Acquire(req)
	w.Until(d, func() bool { return g.State != Asked })
	return g
}

// Holders asks a gateway who holds a name, linearizably; nil if there is no
// answer within d.
func (w *World) Holders(c *Client, name string, d Time) []history.Holder {
	from := len(w.history)
	c.Describe(name)
	var found []history.Holder
	seen := false
	w.Until(d, func() bool {
		for ; from < len(w.history); from++ {
			if e := &w.history[from]; e.Kind == history.Return && e.Op == history.Describe && e.Client == c.Index && e.Name == name {
				found, seen = e.Holders, true
			}
		}
		return seen
	})
	return found
}

// End heals everything, proves that all shards serve, ends all clients, and
// counts what is left, as a seed does.
func (w *World) End() error {
	w.Heal()
	w.serve()
	w.finish()
	if len(w.problems) > 0 {
		return fmt.Errorf("%v", w.problems[0])
	}
	return nil
}

// Expired counts the registrations that leaders ended because of their leases.
func (w *World) Expired() uint64 {
	k := uint64(0)
	for _, n := range w.nodes {
		for _, l := range n.loops {
			k += l.w.Counters().Expired
		}
	}
	return k
}
