package sim

import (
	"slices"

	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/node/worker"
	"github.com/mortise-lock/mortise/ops/history"
	"github.com/mortise-lock/mortise/shard"
)

// Fault is a kind of fault.
type Fault uint8

// Kinds of faults.
const (
	FaultCrash Fault = iota
	FaultCrashInStep
	FaultCrashSilent
	FaultPowerLoss // of all nodes
	FaultPause
	FaultLongPause
	FaultSuspend
	FaultPausedClient
	FaultSuspendedClient
	FaultPausedGateway
	FaultPartition
	FaultOneWay
	FaultClientCut
	FaultGatewayCut
	FaultSlowLink
	FaultStreamBreak
	FaultRaftDrop
	FaultRaftDup
	FaultSlowDisk
	FaultStuckDisk
	FaultSyncFails
	FaultLowDisk
	FaultFullDisk
	FaultDamagedDisk
	FaultDamagedTransfer
	FaultWipe
	FaultGatewayDeath
	FaultClientDeath
	FaultWallClock
	FaultTransfer
	FaultDrain
	FaultBrink      // a lease about to end, and a leader change at that moment
	FaultMinority   // a leader is cut off together with a gateway and clients
	FaultInherited  // a leader dies when it has proposed to expire somebody
	FaultSwingVoter // the one whose vote decides dies right after it voted
	faults
)

var faultNames = [faults]string{"crash", "crash within a step", "host lost without a word", "power loss of all", "short pause", "pause longer than a lease",
	"suspended host", "paused client", "suspended client", "paused gateway", "partition", "one-way partition", "client cut off", "gateway cut off", "slow link",
	"broken stream", "lost raft frame", "doubled raft frame", "slow disk", "stuck disk", "failed sync", "disk nearly full", "disk full", "damaged disk",
	"damaged snapshot transfer", "wiped disk", "gateway death", "client death", "wall clock jump", "leader transfer", "drained node", "leader change at a lease's end", "leader cut off with clients", "inherited expiry", "death of a swing voter"}

func (f Fault) String() string { return faultNames[f] }

// Storm says which faults happen and how often.
type Storm struct {
	// Length of it, and the mean time between two faults.
	Length, Every Time
	// Weights of the kinds; 0: never.
	Weights [faults]float64
	// Longest time that a fault stays.
	Stay Time
}

// storm is one under way: what is in force and must be healed.
type storm struct {
	w    *World
	c    *Storm
	sum  float64
	end  Time
	undo []*repair
}

// repair ends one fault; at most once.
type repair struct {
	done bool
	f    func()
}

func (w *World) count(f Fault) { w.stats.Faults[f]++ }

func (w *World) startStorm(c *Storm) {
	s := &storm{w: w, c: c, end: w.now + c.Length}
	for _, x := range c.Weights {
		s.sum += x
	}
	w.storm = s
	if s.sum > 0 {
		s.next()
	}
}

func (s *storm) next() {
	s.w.after(s.w.exp(s.c.Every), func() {
		if s.w.now >= s.end || s.w.storm != s {
			return
		}
		x := s.w.rng.Float64() * s.sum
		for f, weight := range s.c.Weights {
			if x -= weight; x < 0 {
				s.w.inject(Fault(f))
				break
			}
		}
		s.next()
	})
}

// stay undoes a fault after a while, or when the storm ends.
func (w *World) stay(d Time, f func()) *repair {
	r := &repair{f: f}
	if w.storm != nil {
		w.storm.undo = append(w.storm.undo, r)
	}
	w.after(d, r.run)
	return r
}

func (r *repair) run() {
	if !r.done {
		r.done = true
		r.f()
	}
}

// Heal ends the storm and every fault in force. Wiped nodes stay away.
func (w *World) Heal() {
	if s := w.storm; s != nil {
		w.storm = nil
		for _, r := range s.undo {
			r.run()
		}
	}
	for _, n := range w.nodes {
		n.disk.stuck, n.disk.low, n.disk.full, n.disk.extra, n.disk.failing, n.disk.damage = false, false, false, 0, false, nil
		n.crashIn = 0
		n.disk.unstick()
	}
	for _, p := range w.procs {
		p.resume()
	}
	for _, p := range slices.Clone(w.silent) {
		w.net.isolate(p.id, -1)
	}
	w.silent = nil
	for _, n := range w.nodes {
		n.restart()
	}
	for _, g := range w.gws {
		if !g.p.up && !w.isDeadNode(g.p) {
			g.p.born()
			g.start()
		}
	}
	w.cfg.RaftDrop, w.cfg.RaftDup, w.cfg.SnapDamage, w.cfg.Spikes = 0, 0, 0, 0
	w.note(nil, "healed")
	w.record(history.Event{Kind: history.Healed, Client: -1, Node: -1})
}

func (w *World) isDeadNode(p *proc) bool {
	return p.node >= 0 && w.nodes[p.node].dead
}

// lost counts the nodes that are gone for good, or will be.
func (w *World) lost() int {
	k := 0
	for _, n := range w.nodes {
		if n.dead || n.disk.damage != nil {
			k++
		}
	}
	return k
}

func pick[T any](w *World, list []T) T { return list[w.rng.IntN(len(list))] }

// someNode prefers the leader of some shard.
func (w *World) someNode() *node {
	if w.rng.IntN(2) == 0 {
		if n := w.leader(shard.ID(1 + w.rng.IntN(w.cfg.Shards))); n != nil {
			return n
		}
	}
	return pick(w, w.nodes)
}

// leader returns the node that leads a shard and is ready; nil if none does.
func (w *World) leader(id shard.ID) *node {
	var best *node
	var term uint64
	for _, n := range w.nodes {
		if !n.running() || n.p.paused {
			continue
		}
		if st, ok := n.loopOf(id).w.Status(id); ok && st.Ready && st.Term > term {
			best, term = n, st.Term
		}
	}
	return best
}

// inject makes one fault happen, if it can happen now.
func (w *World) inject(f Fault) {
	s := w.storm.c
	stay := ms + w.upTo(s.Stay)
	if w.rng.IntN(3) > 0 {
		stay = ms + w.upTo(s.Stay/8)
	}
	n := w.someNode()
	switch f {
	case FaultCrash, FaultCrashSilent:
		if !n.p.up {
			return
		}
		n.crash(f == FaultCrashSilent)
		if w.rng.IntN(3) == 0 {
			stay = ms + w.upTo(300*ms) // before anybody else is elected, or just then
		}
		w.stay(stay, n.restart)
	case FaultCrashInStep:
		if !n.p.up || n.crashIn > 0 {
			return
		}
		n.crashIn, n.crashStage = 1+w.rng.IntN(40), w.rng.IntN(stages)
		w.stay(second+stay, n.restart)
		return // counted when it happens
	case FaultPowerLoss:
		for _, n := range w.nodes {
			n.crash(false)
			w.stay(50*ms+w.upTo(3*second), n.restart)
		}
	case FaultPause, FaultLongPause, FaultSuspend:
		if !n.p.up || n.p.paused {
			return
		}
		d := ms + w.upTo(2*second)
		if f != FaultPause {
			d = 2*second + w.upTo(40*second)
		}
		n.p.pause(f == FaultSuspend)
		w.stay(d, n.p.resume)
	case FaultPausedClient, FaultSuspendedClient:
		if len(w.Clients) == 0 {
			return
		}
		c := pick(w, w.Clients)
		if c.p.paused || !c.p.up {
			return
		}
		c.p.pause(f == FaultSuspendedClient)
		w.stay(ms+w.upTo(w.upTo(45*second)), c.p.resume)
	case FaultPausedGateway:
		g := pick(w, w.gws)
		if g.p.paused || !g.p.up {
			return
		}
		g.p.pause(w.rng.IntN(2) == 0)
		w.stay(stay, g.p.resume)
	case FaultPartition:
		// Any minority, or a random half of everything.
		ids := map[int]bool{n.p.id: true}
		if w.cfg.Nodes == 5 && w.rng.IntN(2) == 0 {
			ids[pick(w, w.nodes).p.id] = true
		}
		for _, p := range w.procs {
			if p.node < 0 && w.rng.IntN(2) == 0 {
				ids[p.id] = true
			}
		}
		for a := range w.procs {
			for b := range w.procs {
				if ids[a] != ids[b] {
					w.net.cutOneWay(a, b, 1)
				}
			}
		}
		size := len(w.procs)
		w.stay(stay, func() {
			for a := range size {
				for b := range size {
					if ids[a] != ids[b] {
						w.net.cutOneWay(a, b, -1)
					}
				}
			}
		})
	case FaultOneWay:
		a, b := n.p.id, pick(w, w.procs).id
		if w.rng.IntN(2) == 0 {
			a, b = b, a
		}
		if a == b {
			return
		}
		w.net.cutOneWay(a, b, 1)
		w.stay(stay, func() { w.net.cutOneWay(a, b, -1) })
	case FaultMinority:
		l := w.leader(shard.ID(1 + w.rng.IntN(w.cfg.Shards)))
		if l == nil {
			return
		}
		hosts := []int{l.p.id, pick(w, w.gws).p.id}
		for _, c := range w.Clients {
			if w.rng.IntN(2) == 0 {
				hosts = append(hosts, c.p.id)
			}
		}
		w.stay(2*second+w.upTo(8*second), w.Cut(hosts...))
	case FaultClientCut, FaultGatewayCut:
		p := pick(w, w.gws).p
		if f == FaultClientCut {
			if len(w.Clients) == 0 {
				return
			}
			p = pick(w, w.Clients).p
		}
		size := len(w.procs)
		cut := func(by int16) {
			for o := range size {
				w.net.cutOneWay(p.id, o, by)
				w.net.cutOneWay(o, p.id, by)
			}
		}
		cut(1)
		w.stay(stay, func() { cut(-1) })
	case FaultSlowLink:
		a, b, d := n.p.id, pick(w, w.procs).id, ms+w.upTo(w.upTo(3*second))
		w.net.slow[a][b] += d
		w.stay(stay, func() { w.net.slow[a][b] -= d })
	case FaultStreamBreak:
		p := pick(w, w.procs)
		if len(p.conns) == 0 {
			return
		}
		pick(w, p.conns).snap()
		return // counted there
	case FaultSlowDisk:
		d := ms + w.upTo(w.upTo(second))
		n.disk.extra += d
		w.stay(stay, func() { n.disk.extra = max(0, n.disk.extra-d) })
	case FaultStuckDisk:
		n.disk.stuck = true
		w.stay(stay, n.disk.unstick)
	case FaultSyncFails:
		if n.p.up {
			n.disk.failing = true
		}
		return // counted when it fails
	case FaultLowDisk:
		n.disk.low = true
		w.stay(stay, func() { n.disk.low = false })
	case FaultFullDisk:
		n.disk.low, n.disk.full = true, true
		if w.rng.IntN(2) == 0 {
			n.disk.failing = true
		}
		w.stay(stay, func() { n.disk.low, n.disk.full = false, false })
	case FaultDamagedDisk:
		if n.dead || w.lost() >= (w.cfg.Nodes-1)/2 {
			return
		}
		n.disk.damage = w.someDamage(n)
		n.crash(false)
		w.stay(stay, n.restart)
	case FaultWipe:
		if n.dead || n.disk.damage != nil || w.lost() >= (w.cfg.Nodes-1)/2 {
			return
		}
		n.crash(false)
		if mutantReusedReplica {
			n.disk = newDisk(n)
			if err := n.bootstrap(w.placed); err != nil {
				panic(err)
			}
			w.stay(stay, n.restart)
			break
		}
		n.dead = true
	case FaultGatewayDeath:
		g := pick(w, w.gws)
		if w.cfg.Embedded || !g.p.up {
			return
		}
		g.die(w.rng.IntN(3) == 0)
		w.stay(stay, func() {
			if !g.p.up {
				g.p.born()
				g.start()
			}
		})
	case FaultClientDeath:
		if len(w.Clients) == 0 || w.cfg.Load == nil {
			return
		}
		c := pick(w, w.Clients)
		w.Clients = slices.Delete(w.Clients, slices.Index(w.Clients, c), slices.Index(w.Clients, c)+1)
		c.Kill(w.rng.IntN(2) == 0)
		fresh := w.AddClient()
		fresh.p.later(w.upTo(second), func() { fresh.work(w.cfg.Load) })
	case FaultWallClock:
		pick(w, w.procs).wall += w.rng.Int64N(7_200_000) - 3_600_000
	case FaultTransfer:
		id := shard.ID(w.rng.IntN(w.cfg.Shards + 1))
		l := w.leader(id)
		if l == nil {
			return
		}
		w.transfer(l, id, pick(w, w.nodes).id)
	case FaultDrain:
		if !n.p.up || n.p.paused {
			return
		}
		n.drain()
	case FaultBrink:
		if !w.brink() {
			return
		}
	case FaultInherited:
		if !w.inherited() {
			return
		}
	case FaultSwingVoter:
		if !w.swingVoter() {
			return
		}
	case FaultRaftDrop, FaultRaftDup, FaultDamagedTransfer:
		return // parts of frames
	}
	w.count(f)
	w.record(history.Event{Kind: history.Fault, Client: -1, Node: n.idx, Note: f.String()})
}

func (w *World) transfer(from *node, id shard.ID, to worker.NodeID) {
	l := from.loopOf(id)
	l.in.Transfers = append(l.in.Transfers, worker.Transfer{ID: w.newCall(), Shard: id, To: to})
	l.wake()
}

// someDamage draws what a bad disk does to what is read back: an entry of the
// log that is gone, a hard state of another time, or a bit of a snapshot.
func (w *World) someDamage(n *node) func([]logstore.ReplicaState) string {
	kind, x := w.rng.IntN(3), w.rng.Uint64()
	return func(states []logstore.ReplicaState) string {
		s := &states[x%uint64(len(states))]
		switch {
		case kind == 0 && len(s.Entries) > 2:
			i := 1 + int(x>>8)%(len(s.Entries)-2)
			s.Entries = slices.Delete(slices.Clone(s.Entries), i, i+1)
			return "an entry of the log is missing"
		case kind == 1:
			s.HardState.Commit += 1 << 20
			return "the commit index is wrong"
		}
		n.disk.flip(s.Base.Snapshot, x)
		return "a bit of a snapshot is wrong"
	}
}
