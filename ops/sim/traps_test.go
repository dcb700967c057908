package sim

import (
	"fmt"
	"testing"

	"github.com/mortise-lock/mortise/node/worker"
	"github.com/mortise-lock/mortise/shard"
)

// Scenarios for kinds of traps that docs/traps.md lists and no other test
// states. The numbers are that table's.

// term is the highest term that any node knows of a shard.
func (w *World) term(id shard.ID) uint64 {
	k := uint64(0)
	for _, n := range w.nodes {
		if n.running() {
			if st, ok := n.loopOf(id).w.Status(id); ok {
				k = max(k, st.Term)
			}
		}
	}
	return k
}

// TestOneWayCuts (T28): whichever direction between two nodes is lost, or all that
// the leader hears, or all that it says, the shard serves while it is so, and its
// term comes to rest.
func TestOneWayCuts(t *testing.T) {
	type link struct{ from, to int } // 0: the leader, 1 and 2: the others
	for k, cut := range [][]link{{{0, 1}}, {{1, 0}}, {{1, 2}}, {{1, 0}, {2, 0}}, {{0, 1}, {0, 2}}} {
		w := scenario(t, Config{Seed: uint64(70 + k)})
		s := w.AddClient().Open(10 * second)
		w.Lock(s, excl("x", 0), 5*second).Release()
		l := w.Leader(1)
		node := func(i int) int { return w.Node((l-1+i)%3 + 1) }
		var heal []func()
		for _, c := range cut {
			heal = append(heal, w.CutOneWay(node(c.from), node(c.to)))
		}
		for k := range 5 {
			w.Run(4 * second)
			if g := w.Lock(s, excl(fmt.Sprint("x", k), Wait), 5*second); g.State != Held {
				t.Fatalf("%v are cut (0: node %d, which led): nothing is granted %v after the start", cut, l, w.Now())
			}
		}
		before := w.term(1)
		w.Run(60 * second)
		if after := w.term(1); after > before+1 {
			t.Errorf("%v are cut (0: node %d, which led): the term grew from %d to %d in a minute", cut, l, before, after)
		}
		for _, f := range heal {
			f()
		}
		end(t, w)
	}
}

// TestReturningNode (T27): a node that was cut off for long deposes no healthy
// leader when it comes back; if the leader dies just then, there is another.
func TestReturningNode(t *testing.T) {
	for seed := range uint64(5) {
		w := scenario(t, Config{Seed: 90 + seed})
		s := w.AddClient().Open(10 * second)
		w.Lock(s, excl("x", 0), 5*second)
		l := w.Leader(1)
		away := l%3 + 1
		heal := w.Cut(w.Node(away))
		w.Run(60 * second)
		w.Lock(s, excl("y", 0), 5*second)
		before := w.term(1)
		heal()
		w.Run(10 * second)
		if w.Leader(1) != l || w.term(1) != before {
			t.Fatalf("seed %d: node %d came back: node %d leads in term %d instead of %d in %d", seed, away, w.Leader(1), w.term(1), l, before)
		}
		heal = w.Cut(w.Node(away))
		w.Run(30 * second)
		w.Crash(l)
		w.Run(Time(seed) * 400 * ms)
		heal()
		if g := w.Lock(s, excl("z", Wait), 10*second); g.State != Held {
			t.Fatalf("seed %d: no leader within 10 s", seed)
		}
		end(t, w)
	}
}

// TestReleaseInTrouble (T8): a release whose request or answer is lost, or that
// meets the death of the leader, is neither forgotten nor left to the TTL.
func TestReleaseInTrouble(t *testing.T) {
	for kind, trouble := range map[string]func(w *World, a *Client) (heal func()){
		"request lost": func(w *World, a *Client) func() { return w.cutGateways(a, true) },
		"answer lost":  func(w *World, a *Client) func() { return w.cutGateways(a, false) },
		"leader dies":  func(w *World, _ *Client) func() { w.Crash(w.Leader(1)); return func() {} },
	} {
		w := scenario(t, Config{Seed: 100})
		a, b := w.AddClient(), w.AddClient()
		g := w.Lock(a.Open(120*second), excl("x", 0), 5*second)
		next := w.Lock(b.Open(120*second), excl("x", Wait), second)
		heal := trouble(w, a)
		g.Release()
		w.Run(8 * second)
		heal()
		if !w.Until(25*second, func() bool { return next.State == Held && g.State == Over }) {
			t.Fatalf("%s: after 33 s the release is in state %d, the next one in %d", kind, g.State, next.State)
		}
		end(t, w)
	}
}

// cutGateways swallows what a client sends to all gateways, or what it hears.
func (w *World) cutGateways(c *Client, sends bool) (heal func()) {
	var undo []func()
	for n := range w.gws {
		from, to := w.Gateway(n+1), c.Host()
		if sends {
			from, to = to, from
		}
		undo = append(undo, w.CutOneWay(from, to))
	}
	return func() {
		for _, f := range undo {
			f()
		}
	}
}

// TestManyDieAtOnce (T29): hundreds of sessions end in one moment, and the leader
// dies when the first of their expiries are under way. All of them end within
// two TTLs and an election, those who live keep what they have.
func TestManyDieAtOnce(t *testing.T) {
	w := scenario(t, Config{Seed: 110})
	var dead []*Client
	for i := range 300 {
		c := w.AddClient()
		c.Open(5 * second).Acquire(excl(w.NameIn(1, i), 0))
		dead = append(dead, c)
	}
	alive := w.Lock(w.AddClient().Open(5*second), excl("mine", 0), 5*second)
	heir := w.AddClient().Open(20 * second)
	w.Run(2 * second)
	var next []*Grant
	for i := range 300 {
		next = append(next, heir.Acquire(excl(w.NameIn(1, i), Wait)))
	}
	w.Run(second)
	for _, c := range dead {
		c.Kill(true)
	}
	if !w.Until(10*second, func() bool { return w.Expired() > 0 }) {
		t.Fatal("nobody was expired")
	}
	w.Crash(w.Leader(1))
	held := func() (k int) {
		for _, g := range next {
			if g.State == Held {
				k++
			}
		}
		return k
	}
	if !w.Until(9*second, func() bool { return held() == 300 }) {
		t.Fatalf("only %d of 300 locks of the dead came free", held())
	}
	if !alive.Protected() {
		t.Errorf("a living session lost its lock: %v", alive.Lost)
	}
	end(t, w)
}

// TestWhoseTimeCounts (T30): wall clocks that jump by an hour end nothing; the
// holder's TTL counts, not that of whoever waits; a holder whose host was
// suspended for longer knows of its loss when it wakes.
func TestWhoseTimeCounts(t *testing.T) {
	w := scenario(t, Config{Seed: 120})
	a, b := w.AddClient(), w.AddClient()
	g := w.Lock(a.Open(20*second), excl("x", 0), 5*second)
	next := w.Lock(b.Open(3*second), excl("x", Wait), second)
	for i := range 30 {
		for k, p := range w.procs {
			p.wall += int64(1-2*((i+k)%2)) * 3_600_000
		}
		w.Run(second)
	}
	if !g.Protected() || w.Expired() != 0 || next.State != Asked {
		t.Fatalf("after jumps of wall clocks: protected %v, %d expired", g.Protected(), w.Expired())
	}
	a.p.pause(true)
	asleep := w.Now()
	if !w.Until(30*second, func() bool { return next.State == Held }) {
		t.Fatal("the suspended holder's lock never came free")
	}
	if took := w.Now() - asleep; took < 12*second || took > 21*second {
		t.Errorf("the holder's TTL of 20 s, renewed every few seconds, took %v", took)
	}
	a.Resume()
	if g.Protected() {
		t.Error("the holder still relies on its lock after waking")
	}
	end(t, w)
}

// TestTransferToTheUnfit (T19): leadership that is to go to a node that is down,
// or that needs a snapshot first, costs no more than an election.
func TestTransferToTheUnfit(t *testing.T) {
	for _, up := range []bool{false, true} {
		w := scenario(t, Config{Seed: 130, Snapshots: worker.SnapshotPolicy{Entries: 30, KeepEntries: 5}, SnapshotTime: 5 * second})
		s := w.AddClient().Open(30 * second)
		l := w.Leader(1)
		unfit := l%3 + 1
		w.Crash(unfit)
		for i := range 100 {
			w.Lock(s, excl(fmt.Sprint("x", i), 0), 5*second).Release()
			w.Run(20 * ms)
		}
		if up {
			w.Restart(unfit)
			w.Run(300 * ms)
		}
		for i := range 10 {
			if n := w.leader(1); n != nil {
				w.transfer(n, 1, w.nodes[unfit-1].id)
			}
			if g := w.Lock(s, excl(fmt.Sprint("y", i), Wait), 3*second); g.State != Held {
				t.Fatalf("up %v, transfer %d: nothing is granted for 3 s", up, i)
			}
		}
		end(t, w)
	}
}
