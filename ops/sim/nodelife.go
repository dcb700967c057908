package sim

import (
	"fmt"
	"slices"

	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/node/worker"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/mortise-lock/mortise/shard"
)

func (w *World) newNode(idx int, p *proc) *node {
	n := &node{w: w, p: p, idx: idx, id: worker.NodeID(idx + 1)}
	p.node = idx
	n.disk = newDisk(n)
	return n
}

// start runs the node on what its disk holds.
func (n *node) start() error {
	w := n.w
	reps, keep, err := n.load()
	if err == nil {
		_, err = n.disk.files.Collect(keep)
	}
	if err != nil {
		return err
	}
	n.loops, n.draining = nil, false
	n.leaders = make([]worker.LeaderChange, len(w.placed.Shards))
	byLoop := make([][]worker.Replica, w.cfg.Workers)
	for _, r := range reps {
		i := int(r.Shard) % w.cfg.Workers
		byLoop[i] = append(byLoop[i], r)
		n.leaders[r.Shard].Shard = r.Shard
	}
	for _, rs := range byLoop {
		wk, err := worker.New(worker.Config{Node: n.id, Replicas: rs, Tick: tickEvery, Snapshots: w.cfg.Snapshots, Limits: w.cfg.Limits})
		if err != nil {
			return err
		}
		l := &loop{n: n, w: wk, in: new(worker.Input), spare: new(worker.Input), inc: n.p.inc, seen: make([]uint64, len(rs))}
		l.last = worker.Time(n.p.local())
		n.loops = append(n.loops, l)
	}
	n.started, n.tickedAt, n.rest = n.p.mono(), n.p.local(), 0
	n.streams, n.crashIn, n.votes, n.onExpire = nil, 0, 0, nil
	n.p.accept[exchangeConn] = n.acceptExchange
	for i := range n.links {
		for _, l := range n.links[i] {
			if l != nil {
				l.dialling = false
				l.open()
			}
		}
	}
	for _, l := range n.loops {
		l.wake()
	}
	w.q.push(n.p.at(n.tickedAt+w.upTo(tickEvery)), tickEvent{n}, n.p.inc)
	w.note(n.p, "node runs")
	return nil
}

// load makes the replicas that the map puts here out of what the disk holds.
func (n *node) load() (reps []worker.Replica, keep map[string]bool, err error) {
	states, err := n.disk.load()
	if err != nil {
		return nil, nil, err
	}
	keep = map[string]bool{}
	for _, s := range n.w.placed.Shards {
		i := slices.IndexFunc(s.Replicas, func(r *placementv1.Replica) bool { return r.Node == uint64(n.id) })
		if i < 0 {
			continue
		}
		j := slices.IndexFunc(states, func(st logstore.ReplicaState) bool {
			return uint32(st.Shard) == s.Id && st.Replica == s.Replicas[i].Id
		})
		if j < 0 {
			return nil, nil, fmt.Errorf("%w: replica %d of shard %d is not there", logstore.ErrCorrupt, s.Replicas[i].Id, s.Id)
		}
		rep := worker.Replica{Shard: shard.ID(s.Id), Replica: s.Replicas[i].Id, State: states[j]}
		for _, p := range s.Replicas {
			rep.Peers = append(rep.Peers, worker.Peer{Replica: p.Id, Node: worker.NodeID(p.Node), Learner: p.Learner})
		}
		if rep.Machine, rep.Meta, err = n.restore(rep.Shard, states[j].Base.Snapshot); err != nil {
			return nil, nil, err
		}
		keep[states[j].Base.Snapshot] = true
		reps = append(reps, rep)
	}
	return reps, keep, nil
}

// crash kills the process. What the disk did not sync is lost.
func (n *node) crash(silent bool) {
	if !n.p.up {
		return
	}
	w := n.w
	w.note(n.p, "crash")
	n.p.die(silent)
	n.gone()
	n.disk.crash(w.rng)
}

// gone tells the peers whose streams to this node ended.
func (n *node) gone() {
	w := n.w
	n.loops, n.streams = nil, nil
	for _, o := range w.nodes {
		if o == n {
			continue
		}
		for _, l := range o.links[n.idx] {
			if l.up && !w.net.isCut(n.p.id, o.p.id) {
				w.after(w.net.delay(n.p, o.p), func() {
					if l.up && l.inc != l.to.p.inc {
						l.broken()
					}
				})
			}
		}
		for _, l := range n.links[o.idx] {
			l.up = false
		}
	}
	for _, g := range w.gws {
		if g.p == n.p {
			g.gone()
		}
	}
}

// restart starts the process again. A disk that reads back damaged must stop
// it; then it stays down for good.
func (n *node) restart() {
	if n.p.up || n.dead {
		return
	}
	damaged := n.disk.damage != nil
	n.p.born()
	err := n.start()
	switch {
	case err != nil && damaged:
		n.w.note(n.p, "does not start: "+err.Error())
		n.w.stats.DamageFound++
		n.dead = true
	case err != nil:
		n.w.violate("P9", fmt.Sprintf("node %d does not start again: %v", n.id, err))
		n.dead = true
	case damaged:
		n.w.violate("corruption", fmt.Sprintf("node %d started on damaged data", n.id))
	}
	if n.dead {
		n.p.die(false)
		n.gone()
		return
	}
	for _, g := range n.w.gws {
		if g.p == n.p {
			g.start()
		}
	}
}

// drain stops the node in good order.
func (n *node) drain() {
	if !n.p.up || n.draining {
		return
	}
	n.w.note(n.p, "drains")
	n.draining, n.drainEnd = true, n.p.local()+5*second
	for _, l := range n.loops {
		l.wake()
	}
}

// stopped: nothing is led here any more, or it took too long.
func (n *node) stopped() {
	if !n.p.up {
		return
	}
	n.w.note(n.p, "stops")
	n.p.die(false)
	n.gone()
	n.disk.store.SetOnSynced(nil)
	n.disk.store.Sync(-1)
	n.disk.crash(nil)
	n.w.after(n.w.between(200*ms, 5*second), n.restart)
}

// fatal ends the process for good; its supervisor starts it again.
func (n *node) fatal(err error) {
	n.w.note(n.p, "can't go on: "+err.Error())
	n.crash(false)
	n.w.after(n.w.between(500*ms, 5*second), n.restart)
}
