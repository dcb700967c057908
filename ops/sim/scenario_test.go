package sim

import (
	"testing"
	"testing/cryptotest"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"github.com/mortise-lock/mortise/sdk/core"
)

// scenario builds a calm world whose raft is pinned, too.
func scenario(t *testing.T, c Config) *World {
	t.Helper()
	cryptotest.SetGlobalRandom(t, c.Seed)
	if testing.Verbose() && *traceFlag {
		c.Trace = func(s string) { t.Log(s) }
	}
	w := New(c)
	w.Start()
	return w
}

// end demands that nothing was broken and nothing is left.
func end(t *testing.T, w *World) {
	t.Helper()
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
}

func excl(name string, wait Time) core.Request {
	return core.Request{Name: name, Mode: lockv1.Mode_MODE_EXCLUSIVE, Wait: wait}
}

// TestDeadWaiter (T1): a waiter whose session died is never granted; whoever
// waits behind it is, in its place.
func TestDeadWaiter(t *testing.T) {
	for _, mode := range []lockv1.Mode{lockv1.Mode_MODE_EXCLUSIVE, lockv1.Mode_MODE_SHARED, lockv1.Mode_MODE_COUNTED} {
		w := scenario(t, Config{Seed: 1})
		a, b, c := w.AddClient(), w.AddClient(), w.AddClient()
		holds := w.Lock(a.Open(20*second), excl("x", 0), 5*second)
		req := core.Request{Name: "x", Mode: mode, Wait: Wait}
		if mode == lockv1.Mode_MODE_COUNTED {
			req.Name, req.Permits, req.Limit = "y", 1, 1
			holds = w.Lock(a.Session, core.Request{Name: "y", Mode: mode, Permits: 1, Limit: 1}, 5*second)
		}
		dead := w.Lock(b.Open(3*second), req, second)
		b.Pause()
		last := w.Lock(c.Open(20*second), req, second)
		w.Run(9 * second)
		holds.Release()
		if !w.Until(second, func() bool { return last.State == Held }) {
			t.Fatalf("%v: the waiter behind the dead one was not granted", mode)
		}
		b.Resume()
		w.Run(200 * ms)
		if dead.State == Held && dead.Token < last.Token {
			t.Fatalf("%v: the dead waiter got token %d before %d", mode, dead.Token, last.Token)
		}
		end(t, w)
	}
}

// TestDeposedLeaderExpiresNobody (T4): a leader whose disk stood still for three
// TTLs wakes up after another was elected; sessions that renewed there live.
func TestDeposedLeaderExpiresNobody(t *testing.T) {
	w := scenario(t, Config{Seed: 2, Shards: 2})
	var held []*Grant
	for i := range 20 {
		g := w.Lock(w.AddClient().Open(5*second), excl(w.NameIn(1, i), 0), 5*second)
		held = append(held, g)
	}
	old := w.Leader(1)
	w.Stick(old)
	w.Run(15 * second)
	if l := w.Leader(1); l == 0 || l == old {
		t.Fatalf("node %d leads while the disk of node %d stands still", l, old)
	}
	w.Unstick(old)
	w.Run(10 * second)
	for _, g := range held {
		if !g.Protected() {
			t.Errorf("%s was lost: %v", g.Req.Name, g.Lost)
		}
	}
	if k := w.Expired(); k != 0 {
		t.Errorf("%d registrations expired", k)
	}
	end(t, w)
}

// TestDeposedLeaderRenewsNobody (T5): the old leader is cut off together with a
// gateway and the holder; the holder must learn of its loss before the majority
// grants the lock to somebody else.
func TestDeposedLeaderRenewsNobody(t *testing.T) {
	w := scenario(t, Config{Seed: 3})
	a, b := w.AddClient(), w.AddClient()
	g := w.Lock(a.Open(3*second), excl("x", 0), 5*second)
	l := w.Leader(1)
	heal := w.Cut(w.Node(l), w.Gateway(1), a.Host())
	next := b.Open(10 * second).Acquire(excl("x", Wait))
	if !w.Until(30*second, func() bool { return next.State == Held }) {
		t.Fatal("the majority did not grant the lock")
	}
	if g.Protected() { // P1 is watched, too
		t.Fatal("the holder that is cut off still relies on its lock")
	}
	if next.Token <= g.Token {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
	heal()
	w.Run(5 * second)
	end(t, w)
}

// TestLeaderChangesKeepNoDeadAlive (T10): transfers, however many, give a dead
// holder no more than a TTL and a little.
func TestLeaderChangesKeepNoDeadAlive(t *testing.T) {
	w := scenario(t, Config{Seed: 4})
	a, b := w.AddClient(), w.AddClient()
	w.Lock(a.Open(15*second), excl("x", 0), 5*second)
	next := b.Open(10 * second).Acquire(excl("x", Wait))
	w.Run(second)
	a.Kill(true)
	died := w.Now()
	for i := 0; next.State == Asked && w.Now()-died < 60*second; i++ {
		w.Transfer(1, 1+i%3)
		w.Run(2 * second)
	}
	if next.State != Held {
		t.Fatal("the dead holder's lock never came free")
	}
	if took := w.Now() - died; took > 20*second {
		t.Errorf("a TTL of 15 s took %v", took)
	}
	end(t, w)
}

// TestCancelMeetsGrant (T6): an acquire that is cancelled at any moment of its
// life leaves no hold and no wait.
func TestCancelMeetsGrant(t *testing.T) {
	w := scenario(t, Config{Seed: 5, Latency: ms, Jitter: 4 * ms})
	a, b, c := w.AddClient(), w.AddClient(), w.AddClient()
	sa, sb, sc := a.Open(10*second), b.Open(10*second), c.Open(10*second)
	w.Run(second)
	for i := range 200 {
		g := w.Lock(sa, excl("x", Wait), 10*second)
		h := sb.Acquire(excl("x", Wait))
		w.Run(Time(i%20) * ms)
		g.Release()
		w.Run(Time(i%7) * ms)
		if i%50 == 49 {
			w.Transfer(1, 1+w.Leader(1)%3)
		}
		h.Cancel()
		h.Release() // it may have been granted before
		if g := w.Lock(sc, excl("x", Wait), 5*second); g.State != Held {
			t.Fatalf("round %d: the lock is stuck", i)
		} else {
			g.Release()
		}
	}
	end(t, w)
}

// TestBlindHolder (T3): everything between the holder and the world is swallowed
// without a word; it learns of its loss by its own clock, before the next grant.
func TestBlindHolder(t *testing.T) {
	for ppm := range int64(3) {
		w := scenario(t, Config{Seed: 6 + uint64(ppm), ClockPPM: ppm * 5000})
		a, b := w.AddClient(), w.AddClient()
		g := w.Lock(a.Open(6*second), excl("x", 0), 5*second)
		next := b.Open(10 * second).Acquire(excl("x", Wait))
		w.Run(second)
		cut := w.Now()
		heal := w.Cut(a.Host())
		lost := Time(0)
		w.Until(20*second, func() bool {
			if lost == 0 && !g.Protected() {
				lost = w.Now()
			}
			return next.State == Held
		})
		if next.State != Held || lost == 0 {
			t.Fatalf("lost after %v, next granted: %v", lost-cut, next.State == Held)
		}
		heal()
		end(t, w)
	}
}

// TestWaiterSurvivesGateway (T31): the gateway through which a waiter waits dies
// just when the lock comes free; the grant reaches the waiter by another one.
func TestWaiterSurvivesGateway(t *testing.T) {
	for seed := range uint64(6) {
		w := scenario(t, Config{Seed: 20 + seed, Gateways: 2})
		a, b := w.AddClient(), w.AddClient()
		g := w.Lock(a.Open(10*second), excl("x", 0), 5*second)
		next := w.Lock(b.Open(5*second), excl("x", Wait), second)
		w.KillGateway(1)
		w.Run(Time(seed) * ms)
		g.Release()
		if !w.Until(8*second, func() bool { return next.State == Held }) {
			t.Fatalf("seed %d: the waiter hears nothing", seed)
		}
		w.StartGateway(1)
		end(t, w)
	}
}

// TestMinorityRefuses (P8): a leader that is cut off from the others answers no
// read.
func TestMinorityRefuses(t *testing.T) {
	w := scenario(t, Config{Seed: 30})
	a := w.AddClient()
	g := w.Lock(a.Open(5*second), excl("x", 0), 5*second)
	if h := w.Holders(a, "x", 3*second); len(h) != 1 || h[0].Token != g.Token {
		t.Fatalf("holders: %v", h)
	}
	heal := w.Cut(w.Node(w.Leader(1)), w.Gateway(1), w.Gateway(2), w.Gateway(3), a.Host())
	w.Run(100 * ms)
	if h := w.Holders(a, "x", 5*second); h != nil {
		t.Errorf("a minority says that %v hold the lock", h)
	}
	heal()
	end(t, w)
}

// TestRefusalAfterGrant: the leader dies after it proposed an acquire, and the
// next one, whose disk is nearly full, refuses it without a look at what the
// first did. The holder that nobody knows of must not stay.
func TestRefusalAfterGrant(t *testing.T) {
	for seed := range uint64(10) {
		w := scenario(t, Config{Seed: 40 + seed, Sync: 100 * us})
		a := w.AddClient()
		w.Lock(a.Open(5*second), excl("y", 0), 5*second).Release()
		l := w.Leader(1)
		for n := range 3 {
			w.nodes[n].disk.low = n+1 != l
		}
		g := a.Session.Acquire(excl("x", Wait))
		w.Run(second/1000 + Time(seed)*200*us)
		w.Crash(l)
		w.Run(4 * second)
		g.Cancel()
		g.Release()
		w.Run(3 * second)
		for n := range 3 {
			w.nodes[n].disk.low = false
		}
		if left := w.heldOrQueued(); left != "" {
			t.Fatalf("seed %d: %s", seed, left)
		}
		end(t, w)
	}
}

// TestRepetitionAfterUnavailable: a unary acquire under the caller's request id
// gets no answer through a gateway that is cut off from the leader, and is
// repeated at another, which grants it. Nothing that the first one does later
// takes the grant away.
func TestRepetitionAfterUnavailable(t *testing.T) {
	w := scenario(t, Config{Seed: 60, Gateways: 2})
	a := w.AddClient()
	u := a.openUnary(10 * second)
	u.gw = 0
	w.Run(second)
	heal := w.CutOneWay(w.Gateway(1), w.Node(w.Leader(1)))
	h := u.acquire(core.Request{Name: "x", Mode: lockv1.Mode_MODE_EXCLUSIVE, Wait: second}, true)
	h.granted = func(*unaryHold) {}
	w.Until(30*second, func() bool { return h.token != 0 || h.over })
	heal()
	w.Run(15 * second)
	if h.token != 0 && w.heldOrQueued() == "" {
		t.Fatal("the grant was taken away")
	}
	end(t, w)
}
