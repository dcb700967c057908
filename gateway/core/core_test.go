package core

import (
	"fmt"
	"testing"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"google.golang.org/grpc/codes"
)

// client drives one session stream.
type client struct {
	w       *sim
	id      StreamID
	str     string
	seq     uint64
	renew   uint64
	echo    uint64
	att     uint64
	read    int
	names   map[uint64]string
	tokens  map[uint64]uint64 // held
	pending map[uint64]bool
	below   uint64
	finals  map[uint64]int
}

func (w *sim) open(id StreamID) *client {
	c := &client{w: w, id: id, att: 1, names: map[uint64]string{}, tokens: map[uint64]uint64{}, pending: map[uint64]bool{}, finals: map[uint64]int{}}
	w.step(Input{Kind: StreamOpened, Stream: id})
	c.send(&lockv1.SessionOp{Op: &lockv1.SessionOp_Open{Open: &lockv1.OpenOp{Client: fmt.Sprint("client-", id)}}})
	c.poll()
	return c
}

func (c *client) send(ops ...*lockv1.SessionOp) {
	c.w.step(Input{Kind: StreamFrame, Stream: c.id, Frame: &lockv1.SessionRequest{EchoMs: c.echo, DoneBelow: c.below, Ops: ops}})
	c.echo = millis(c.w.now)
}

func (c *client) acquireOp(seq uint64, wait uint64) *lockv1.SessionOp {
	return &lockv1.SessionOp{Op: &lockv1.SessionOp_Acquire{Acquire: &lockv1.AcquireOp{Seq: seq, Name: c.names[seq], WaitMs: &wait}}}
}

func (c *client) acquire(name string, wait uint64) uint64 {
	c.seq++
	c.names[c.seq], c.pending[c.seq] = name, true
	c.send(c.acquireOp(c.seq, wait))
	return c.seq
}

func (c *client) release(seq uint64) {
	t := c.tokens[seq]
	delete(c.tokens, seq)
	c.send(&lockv1.SessionOp{Op: &lockv1.SessionOp_Release{Release: &lockv1.ReleaseOp{Seq: seq, Name: c.names[seq], Token: t}}})
}

func (c *client) cancel(seq uint64) {
	c.send(&lockv1.SessionOp{Op: &lockv1.SessionOp_Cancel{Cancel: &lockv1.CancelOp{Seq: seq, Name: c.names[seq]}}})
}

func (c *client) renewOp() *lockv1.SessionOp {
	c.renew++
	return &lockv1.SessionOp{Op: &lockv1.SessionOp_Renew{Renew: &lockv1.RenewOp{Number: c.renew}}}
}

// poll reads what came and returns it.
func (c *client) poll() []*lockv1.SessionEvent {
	evs := c.w.events[c.id][c.read:]
	c.read += len(evs)
	for _, e := range evs {
		switch e := e.Event.(type) {
		case *lockv1.SessionEvent_Opened:
			c.str = e.Opened.SessionId
		case *lockv1.SessionEvent_Granted:
			c.finals[e.Granted.Seq]++
			if c.pending[e.Granted.Seq] {
				delete(c.pending, e.Granted.Seq)
				c.tokens[e.Granted.Seq] = e.Granted.Token
			}
		case *lockv1.SessionEvent_Ended:
			c.finals[e.Ended.Seq]++
			delete(c.pending, e.Ended.Seq)
		case *lockv1.SessionEvent_Cancelled:
			delete(c.pending, e.Cancelled.Seq)
			delete(c.tokens, e.Cancelled.Seq)
		}
	}
	return evs
}

func (w *sim) checkEmpty(t *testing.T) {
	t.Helper()
	for _, s := range w.shards {
		for n, l := range s.locks {
			if l.holder != nil || len(l.queue) > 0 {
				t.Errorf("shard %d: %s is held by %+v with %d waiters, but nobody was told so", s.id, n, l.holder, len(l.queue))
			}
		}
	}
}

func (w *sim) checkNoLeaks(t *testing.T) {
	t.Helper()
	st := w.core.Stats()
	st.Timers, st.Nodes = 0, 0
	if st != (Stats{}) {
		t.Errorf("tables are not empty at the end: %+v", st)
	}
	if len(w.core.bySess) != 0 || len(w.core.acquiring) != 0 || len(w.core.renewList) != 0 {
		t.Errorf("leak: %d sessions, %d acquires, %d renewals", len(w.core.bySess), len(w.core.acquiring), len(w.core.renewList))
	}
}

func TestAcquireWaitReleaseInOrder(t *testing.T) {
	w := newSim(1, 4, 3)
	w.boot()
	a, b, c := w.open(1), w.open(2), w.open(3)
	sa := a.acquire("x", 0)
	w.settle()
	sb := b.acquire("x", 60000)
	w.settle()
	sc := c.acquire("x", 60000)
	w.settle()
	for _, cl := range []*client{a, b, c} {
		cl.poll()
	}
	if a.tokens[sa] == 0 || b.tokens[sb] != 0 || c.tokens[sc] != 0 {
		t.Fatalf("first acquire must hold alone: %v %v %v", a.tokens, b.tokens, c.tokens)
	}
	// A wait survives a leader change that nobody announces to it.
	s := w.shards[hashShard(w, "x")]
	w.lead(s, s.leader%3+1)
	w.settle()
	a.release(sa)
	w.settle()
	b.poll()
	if b.tokens[sb] == 0 {
		t.Fatalf("b waited first and did not get the lock after a leader change")
	}
	b.release(sb)
	w.settle()
	c.poll()
	if c.tokens[sc] <= b.tokens[sb] {
		t.Fatalf("c must hold with a larger token")
	}
	c.release(sc)
	w.settle()
	w.checkEmpty(t)
	for _, cl := range []*client{a, b, c} {
		cl.send(&lockv1.SessionOp{Op: &lockv1.SessionOp_Close{Close: &lockv1.CloseOp{}}})
	}
	w.settle()
	for _, cl := range []*client{a, b, c} {
		if !w.endedSt[cl.id] || w.ends[cl.id] != nil {
			t.Errorf("stream %d must end well after Close: %v", cl.id, w.ends[cl.id])
		}
	}
	w.checkNoLeaks(t)
}

func hashShard(w *sim, name string) int {
	id, _ := hashRouter(len(w.shards)).Route(name)
	return int(id) - 1
}

// TestStorm is T6, T7, T21, T23 and T35 at once: cancels, lost and duplicated
// answers, leader changes and broken node streams at every moment; then calm,
// and nothing may be left that a caller was not told of.
func TestStorm(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { storm(t, seed) })
	}
}

func storm(t *testing.T, seed uint64) {
	w := newSim(seed, 3, 3)
	w.unknown, w.reorder, w.duplicate = 50, 200, 100
	w.boot()
	var cs []*client
	for i := range 5 {
		cs = append(cs, w.open(StreamID(i+1)))
	}
	names := []string{"a", "b", "c", "d"}
	cancelled := map[*client]map[uint64]bool{}
	for _, c := range cs {
		cancelled[c] = map[uint64]bool{}
	}
	for range 600 {
		c := cs[w.rng.IntN(len(cs))]
		c.poll()
		switch w.rng.IntN(12) {
		case 0, 1, 2:
			if len(c.pending) < 3 {
				c.acquire(names[w.rng.IntN(len(names))], uint64(w.rng.IntN(2)*60000))
			}
		case 3, 4:
			for seq := c.seq; seq > 0; seq-- {
				if c.tokens[seq] != 0 {
					c.release(seq)
					break
				}
			}
		case 5:
			if c.seq > 0 {
				seq := c.seq - uint64(w.rng.IntN(3))
				if c.pending[seq] && c.tokens[seq] == 0 && seq > 0 {
					cancelled[c][seq] = true
					c.cancel(seq)
				}
			}
		case 6:
			s := w.shards[w.rng.IntN(len(w.shards))]
			w.lead(s, uint64(w.rng.IntN(3)+1))
		case 7:
			if n := w.nodes[w.rng.IntN(3)]; n.up {
				w.down(n)
			} else {
				w.up(n)
			}
		case 8:
			if seq := c.seq; c.pending[seq] {
				c.send(c.acquireOp(seq, 60000)) // a client that asks again
			}
		default:
			for range w.rng.IntN(30) {
				w.pass()
			}
			if w.rng.IntN(3) == 0 {
				w.advance(w.now + time.Duration(w.rng.IntN(100))*time.Millisecond)
			}
		}
	}
	// Calm. Everybody gets what it waits for and gives it back.
	w.unknown, w.reorder = 0, 0
	for _, n := range w.nodes {
		if !n.up {
			w.up(n)
		}
	}
	for range 200 {
		w.settleFor(300 * time.Millisecond)
		busy := false
		for _, c := range cs {
			c.poll()
			for seq := range c.seq + 1 {
				if c.tokens[seq] != 0 {
					c.release(seq)
					busy = true
				}
			}
			busy = busy || len(c.pending) > 0
			c.send()
		}
		if !busy {
			break
		}
	}
	for _, c := range cs {
		c.poll()
		if w.endedSt[c.id] {
			t.Fatalf("stream %d ended: %v", c.id, w.ends[c.id])
		}
		if len(c.pending) > 0 {
			t.Errorf("client %d: acquires %v never ended", c.id, c.pending)
		}
	}
	w.settle()
	w.checkEmpty(t)
	for _, c := range cs {
		w.step(Input{Kind: StreamClosed, Stream: c.id})
	}
	w.settle()
	w.checkNoLeaks(t)
}

// TestResumeElsewhere: another gateway takes a session over; its holds and
// waits are listed, old traffic is refused, and a grant that happened in
// between is not missed (T31).
func TestResumeElsewhere(t *testing.T) {
	for seed := range uint64(30) {
		w := newSim(seed, 4, 3)
		w.boot()
		a, b := w.open(1), w.open(2)
		held := a.acquire("held", 0)
		w.settle()
		a.poll()
		other := b.acquire("contended", 0)
		w.settle()
		b.poll()
		wait := a.acquire("contended", 60000)
		w.settle()
		a.poll()
		// The first gateway dies; the lock passes to a meanwhile.
		w.step(Input{Kind: StreamClosed, Stream: a.id})
		b.release(other)
		w.settle()
		a2 := &client{w: w, id: 9, att: 2, names: a.names, tokens: map[uint64]uint64{}, pending: map[uint64]bool{wait: true}, finals: map[uint64]int{}, renew: a.renew, seq: a.seq}
		w.step(Input{Kind: StreamOpened, Stream: 9})
		a2.send(&lockv1.SessionOp{Op: &lockv1.SessionOp_Resume{Resume: &lockv1.ResumeOp{SessionId: a.str, Attachment: 2}}},
			a2.renewOp(), a2.acquireOp(wait, 60000))
		w.settle()
		var resumed *lockv1.ResumedEvent
		inv, granted, covered := 0, 0, 0
		for _, e := range a2.poll() {
			switch e := e.Event.(type) {
			case *lockv1.SessionEvent_Resumed:
				resumed = e.Resumed
			case *lockv1.SessionEvent_Inventory:
				if resumed == nil {
					t.Fatal("inventory before resumed")
				}
				inv++
			case *lockv1.SessionEvent_Granted:
				granted++
			case *lockv1.SessionEvent_Renewed:
				covered += len(e.Renewed.Covered)
			}
		}
		if resumed == nil || int(resumed.Registrations) != inv || inv == 0 {
			t.Fatalf("seed %d: resumed %v with %d inventories", seed, resumed, inv)
		}
		if granted != 1 || a2.tokens[wait] == 0 {
			t.Fatalf("seed %d: the grant of the time between was told %d times", seed, granted)
		}
		if covered < inv {
			t.Fatalf("seed %d: the renewal of the resume covered %d of %d", seed, covered, inv)
		}
		// A stream with an older attachment is turned away.
		w.step(Input{Kind: StreamOpened, Stream: 10})
		old := &client{w: w, id: 10}
		old.send(&lockv1.SessionOp{Op: &lockv1.SessionOp_Resume{Resume: &lockv1.ResumeOp{SessionId: a.str, Attachment: 1}}}, old.renewOp())
		w.settle()
		if !w.endedSt[10] || reason(w.ends[10]) != ReasonSuperseded {
			t.Fatalf("an older attachment was let in: %v", w.ends[10])
		}
		a2.tokens[held] = a.tokens[held]
		a2.release(held)
		a2.release(wait)
		w.settle()
		w.checkEmpty(t)
	}
}

// TestRegistrationEnds: the session expires in one shard; what it had there
// ends, once, and the next acquire registers anew.
func TestRegistrationEnds(t *testing.T) {
	w := newSim(3, 2, 3)
	w.boot()
	a, b := w.open(1), w.open(2)
	b.acquire("x", 0)
	w.settle()
	wait := a.acquire("x", 60000)
	w.settle()
	a.poll()
	s := w.shards[hashShard(w, "x")]
	for _, r := range s.regs {
		if len(r.out) > 0 && r.out[idKey(&nodev1.AcquireId{Seq: wait})].state == 2 {
			s.end(r)
		}
	}
	w.news(s)
	w.settle()
	ended := 0
	for _, e := range a.poll() {
		if e.GetRegistrationEnded() != nil {
			ended++
		}
	}
	if a.finals[wait] != 1 || a.pending[wait] || ended != 1 {
		t.Fatalf("finals %v pending %v registration_ended %d", a.finals, a.pending, ended)
	}
	again := a.acquire("x", 60000)
	w.settle()
	b.poll()
	b.release(1)
	w.settle()
	a.poll()
	if a.tokens[again] == 0 {
		t.Fatal("the next acquire must register anew and get the lock")
	}
}

func TestFrozenFramesActOnNothing(t *testing.T) {
	w := newSim(1, 1, 3)
	w.boot()
	a := w.open(1)
	w.settleFor(20 * time.Second)
	a.send()
	old := a.echo
	for range 2 {
		w.settleFor(20 * time.Second)
		a.send(&lockv1.SessionOp{Op: &lockv1.SessionOp_Inventory{Inventory: &lockv1.InventoryOp{}}})
	}
	a.echo = old
	a.names[1] = "x"
	a.send(a.acquireOp(1, 0))
	w.settle()
	if !w.endedSt[1] || reason(w.ends[1]) != ReasonStale || len(w.shards[0].grants) != 0 {
		t.Fatalf("a frame with an echo 40 s old was acted upon: %v %v", w.ends[1], w.shards[0].grants)
	}
	b := w.open(2)
	w.settleFor(40 * time.Second)
	if !w.endedSt[b.id] || reason(w.ends[b.id]) != ReasonSilent {
		t.Fatalf("a silent stream must end: %v", w.ends[b.id])
	}
	w.checkNoLeaks(t)
}

func TestRefusalsNameTheField(t *testing.T) {
	w := newSim(1, 1, 3)
	w.boot()
	a := w.open(1)
	u := func(v uint64) *uint64 { return &v }
	p := func(v uint32) *uint32 { return &v }
	for _, tc := range []struct {
		op    *lockv1.AcquireOp
		code  codes.Code
		field string
	}{
		{&lockv1.AcquireOp{Name: "x"}, codes.InvalidArgument, "seq"},
		{&lockv1.AcquireOp{Seq: 1}, codes.InvalidArgument, "name"},
		{&lockv1.AcquireOp{Seq: 2, Name: "x", Mode: 9}, codes.InvalidArgument, "mode"},
		{&lockv1.AcquireOp{Seq: 3, Name: "x", Tier: lockv1.Tier_TIER_FAST}, codes.FailedPrecondition, "tier"},
		{&lockv1.AcquireOp{Seq: 4, Name: "x", WaitMs: u(MaxWaitMS + 1)}, codes.InvalidArgument, "wait_ms"},
		{&lockv1.AcquireOp{Seq: 5, Name: "x", LockDelayMs: u(MaxLockDelayMS + 1)}, codes.InvalidArgument, "lock_delay_ms"},
		{&lockv1.AcquireOp{Seq: 6, Name: "x", Mode: lockv1.Mode_MODE_COUNTED}, codes.InvalidArgument, "limit"},
		{&lockv1.AcquireOp{Seq: 7, Name: "x", Mode: lockv1.Mode_MODE_COUNTED, Limit: p(3), Permits: p(0)}, codes.InvalidArgument, "permits"},
		{&lockv1.AcquireOp{Seq: 8, Name: "x", Mode: lockv1.Mode_MODE_COUNTED, Limit: p(3), Permits: p(4)}, codes.InvalidArgument, "permits"},
		{&lockv1.AcquireOp{Seq: 9, Name: "x", Limit: p(3)}, codes.InvalidArgument, "limit"},
	} {
		a.send(&lockv1.SessionOp{Op: &lockv1.SessionOp_Acquire{Acquire: tc.op}})
		evs := a.poll()
		if len(evs) != 1 || evs[0].GetEnded().GetReason() != lockv1.EndReason_END_REASON_REFUSED {
			t.Errorf("%v: events %v", tc.op, evs)
			continue
		}
		f := evs[0].GetEnded().Failure
		if codes.Code(f.Code) != tc.code || f.Detail.Field != tc.field || f.Detail.Rule == "" {
			t.Errorf("%v: refused with %v", tc.op, f)
		}
	}
	if w.endedSt[1] {
		t.Errorf("refusals ended the stream: %v", w.ends[1])
	}
	ops := make([]*lockv1.SessionOp, MaxFrameOps+1)
	for i := range ops {
		ops[i] = a.renewOp()
	}
	b := w.open(2)
	b.send(ops...)
	if !w.endedSt[2] || w.endedSt[1] {
		t.Errorf("a frame that is too large must end its own stream alone")
	}
}

func TestRenewals(t *testing.T) {
	w := newSim(5, 4, 3)
	w.boot()
	a := w.open(1)
	a.send(a.renewOp())
	evs := a.poll()
	if len(evs) != 1 || evs[0].GetRenewed().GetNumber() != 1 || len(evs[0].GetRenewed().Covered) != 0 {
		t.Fatalf("a session that is registered nowhere is acknowledged at once: %v", evs)
	}
	for _, n := range []string{"a", "b", "c", "d", "e", "f"} {
		a.acquire(n, 0)
	}
	w.settle()
	a.poll()
	regs := len(w.core.bySess[w.core.streams[1].sess.id].sess.regs)
	for range 20 {
		// Leaders move while renewals are under way; all must be covered in time.
		for _, s := range w.shards {
			w.lead(s, uint64(w.rng.IntN(3)+1))
		}
		a.send(a.renewOp())
		w.settle()
		got := map[uint32]bool{}
		for _, e := range a.poll() {
			for _, c := range e.GetRenewed().GetCovered() {
				if e.GetRenewed().Number == a.renew {
					got[c.Shard] = true
				}
			}
		}
		if len(got) != regs {
			t.Fatalf("renewal %d covered %d of %d registrations", a.renew, len(got), regs)
		}
	}
	if len(w.core.renewList) != 0 {
		t.Errorf("renewals left: %d", len(w.core.renewList))
	}
}

// TestDeafNode: a node whose stream is up but whose answers do not come is
// taken for unreachable, and the others tell who leads (T28).
func TestDeafNode(t *testing.T) {
	w := newSim(8, 1, 3)
	w.boot()
	a := w.open(1)
	old := w.shards[0].leader
	w.lead(w.shards[0], old%3+1)
	for _, n := range w.nodes {
		n.out = nil // nobody hears of it
	}
	a.acquire("x", 1000)
	for range 10 {
		w.nodes[old-1].in = nil // what goes there is lost
		w.settleForDeaf(old, time.Second)
		a.send()
		a.poll()
		if len(a.tokens) == 1 {
			return
		}
	}
	t.Fatal("no other way was found within ten seconds")
}

// settleForDeaf is settleFor while one node neither hears nor speaks.
func (w *sim) settleForDeaf(deaf uint64, d time.Duration) {
	for end := w.now + d; w.now < end; {
		w.nodes[deaf-1].in, w.nodes[deaf-1].out = nil, nil
		if !w.pass() {
			at, ok := w.core.Next()
			if !ok || at > end {
				at = end
			}
			w.now = max(w.now, at)
			w.step(Input{Kind: Tick})
		}
	}
}
