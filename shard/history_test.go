package shard

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var seedFlag = flag.Int64("shard.seed", 0, "run TestHistories with this seed only")

func everything() []Selector { return []Selector{{HashLast: 1<<64 - 1}} }

// history drives a machine, its replicas and the model with one random stream
// of commands.
type history struct {
	t      testing.TB
	rng    *rand.Rand
	cfg    Config
	model  *model
	rep    []*Machine
	term   uint64
	time   LeaderTime
	names  []string
	regs   []Registration
	old    []Command // to be repeated later
	tokens []Token
	open   []*Snapshot
	hashes []uint64
	seq    uint64
	log    []entry // since cfg.Index
}

type entry struct {
	term uint64
	data []byte
}

func newHistory(t testing.TB, seed int64) *history {
	rng := rand.New(rand.NewSource(seed))
	l := DefaultLimits()
	if rng.Intn(2) == 0 {
		l = Limits{
			Registrations: 4, WaitersPerName: 3, WaitsPerRegistration: 4, HoldsPerRegistration: 6,
			ContendedPerRegistration: 5, OutcomesPerRegistration: 4, EventsPerRegistration: 2,
		}
	}
	h := &history{
		t: t, rng: rng, term: 5,
		cfg: Config{ID: 7, Floor: 1000, Index: 10, Term: 5, Limits: l, Owns: []Selector{{Excluded: []string{"not/"}, HashLast: 1<<64 - 1}}},
	}
	h.model = newModel(h.cfg)
	for range 3 {
		h.rep = append(h.rep, New(h.cfg))
	}
	// They must agree whatever they remove when.
	h.rep[1].removals = removals{}
	h.rep[2].removals = removals{1, 1, 1}
	for i := range 1 + rng.Intn(6) {
		h.names = append(h.names, fmt.Sprintf("n%d", i))
	}
	h.names = append(h.names, "not/ours")
	return h
}

func pick[T any](h *history, s []T) (zero T) {
	if len(s) == 0 {
		return zero
	}
	return s[h.rng.Intn(len(s))]
}

func (h *history) id() AcquireID {
	if h.rng.Intn(4) == 0 {
		return AcquireID{RequestID: [16]byte{byte(1 + h.rng.Intn(20))}}
	}
	if h.rng.Intn(3) > 0 {
		h.seq++
		return AcquireID{Seq: h.seq}
	}
	return AcquireID{Seq: 1 + uint64(h.rng.Int63n(int64(h.seq+1)))}
}

func (h *history) command() Command {
	r := h.rng
	if r.Intn(8) == 0 && len(h.old) > 0 {
		return pick(h, h.old)
	}
	reg := pick(h, h.regs)
	if r.Intn(3) > 0 && len(h.regs) > 5 {
		reg = pick(h, h.regs[len(h.regs)-5:])
	}
	act := Command{Registration: reg}
	if r.Intn(3) == 0 {
		act.Attachment = uint64(r.Intn(4))
	} else if v, ok := h.rep[0].Get(reg); ok {
		act.Attachment = v.Attachment
	}
	if r.Intn(10) == 0 && h.seq > 4 {
		act.DoneBelow = h.seq - uint64(r.Intn(4))
	}
	c := act
	c.Name = pick(h, h.names)
	switch n := r.Intn(100); {
	case n < 8 || reg == 0:
		return Command{Kind: KindRegister, Session: SessionID{byte(1 + r.Intn(5))}, Client: fmt.Sprintf("c%d", r.Intn(9)), TTL: 1e10, Attachment: act.Attachment}
	case n < 10:
		act.Kind = KindAttach
		return act
	case n < 55:
		c.Kind, c.Acquire, c.Mode = KindAcquire, h.id(), Mode(1+r.Intn(3))
		if r.Intn(3) > 0 { // favour one mode per name, so that queues form
			c.Mode = Mode(1 + len(c.Name+fmt.Sprint(c.Name[1]))%3)
		}
		if c.Mode == Counted {
			c.Limit = 3
			if r.Intn(10) == 0 {
				c.Limit = 4
			}
			c.Permits = 1 + uint32(r.Intn(3))
		}
		if r.Intn(3) > 0 {
			c.Wait = int64(1+r.Intn(60)) * 1e9
		}
		if r.Intn(4) == 0 {
			c.LockDelay = int64(1+r.Intn(20)) * 1e9
		}
	case n < 62:
		c.Kind, c.Acquire = KindCancel, h.id()
	case n < 80:
		c.Kind, c.Token = KindRelease, pick(h, h.tokens)
		if _, holds, _, ok := h.rep[0].Inventory(reg); ok && len(holds) > 0 && r.Intn(4) > 0 {
			x := pick(h, holds)
			c.Name, c.Token, c.Acquire = x.Name, x.Token, x.Acquire
		} else if reg != 0 && r.Intn(2) == 0 {
			c.Acquire = h.id()
		}
		switch r.Intn(6) {
		case 0, 1:
			c = Command{Kind: KindRelease, Name: c.Name, Token: c.Token}
		case 2:
			c.Acquire = AcquireID{} // by its session and its token
		}
	case n < 86:
		v, _ := h.rep[0].Get(reg)
		c = Command{Kind: KindExpire, Registration: reg, Epoch: v.Epoch, Term: h.term}
		if r.Intn(4) == 0 {
			c.Epoch--
		}
		if r.Intn(4) == 0 {
			c.Term--
		}
	case n < 89:
		act.Kind = KindClose
		act.Reason = Reason(r.Intn(6))
		return act
	case n < 90:
		return Command{Kind: KindLeave, Registration: reg}
	case n < 93:
		return Command{Kind: KindWake, Name: c.Name, Token: pick(h, h.tokens)}
	case n < 95:
		c = Command{Kind: KindForceRelease, Name: c.Name, By: "op", Why: "test"}
		if r.Intn(2) == 0 {
			c.Token = pick(h, h.tokens)
		}
	case n < 96:
		return Command{Kind: KindHandover, Handover: []Remaining{{Registration: reg, Epoch: 3, Left: 7}}}
	default:
		if due := h.rep[0].Due(h.time, 3); len(due) > 0 {
			return pick(h, due)
		}
		c = Command{Kind: KindWaitOver, Registration: reg, Acquire: h.id(), Name: c.Name}
	}
	return c
}

func (h *history) step() {
	r := h.rng
	switch r.Intn(20) {
	case 0:
		h.time += LeaderTime(r.Int63n(300e9))
	case 1:
		h.time += LeaderTime(r.Int63n(15e9))
	case 2:
		h.time += 1e9
	}
	b := Batch{Time: h.time, WallMS: int64(r.Intn(1000))}
	if r.Intn(15) == 0 {
		b.Time -= 1e9 // a clock that lags behind the log
		b.Time = max(b.Time, 0)
	}
	if r.Intn(30) == 0 {
		h.term++
	}
	if r.Intn(4) == 0 {
		b.Commands = h.rep[0].Due(h.time, 1+r.Intn(4))
	}
	for range 1 + r.Intn(3) {
		c := h.command()
		b.Commands = append(b.Commands, c)
		if r.Intn(2) == 0 {
			h.old = append(h.old, c)
		}
		if r.Intn(10) == 0 {
			b.Commands = append(b.Commands, c)
		}
	}
	if len(h.old) > 30 {
		h.old = h.old[10:]
	}
	h.apply(b)
	h.replace()
}

func (h *history) apply(b Batch) {
	t := h.t
	data := b.AppendTo(nil)
	h.log = append(h.log, entry{h.term, data})
	h.model.apply(h.term, b)
	for i, m := range h.rep {
		var out Outcome
		if err := m.Apply(m.Applied()+1, h.term, data, &out); err != nil {
			t.Fatal(err)
		}
		if err := m.Check(); err != nil {
			t.Fatalf("replica %d after %s: %v", i, show(b), err)
		}
		for j := range out.Results {
			if got, want := out.Results[j], h.model.results[j]; !reflect.DeepEqual(got, want) {
				t.Fatalf("replica %d, command %d of %s:\n got %+v\nwant %+v", i, j, show(b), got, want)
			}
			if tok := out.Results[j].Token; tok != 0 && i == 0 {
				h.tokens = append(h.tokens, tok)
			}
			if b.Commands[j].Kind == KindRegister && i == 0 && out.Results[j].Registration != 0 && !slices.Contains(h.regs, out.Results[j].Registration) {
				h.regs = append(h.regs, out.Results[j].Registration)
			}
		}
		if len(out.Events) != len(h.model.events) {
			t.Fatalf("replica %d, %s:\n got %+v\nwant %+v", i, show(b), out.Events, h.model.events)
		}
		for j := range out.Events {
			if !reflect.DeepEqual(out.Events[j], h.model.events[j]) {
				t.Fatalf("replica %d, event %d of %s:\n got %+v\nwant %+v", i, j, show(b), out.Events[j], h.model.events[j])
			}
		}
		if m.Hash() != h.rep[0].Hash() {
			t.Fatalf("replica %d: hash differs after %s", i, show(b))
		}
	}
	if len(h.tokens) > 20 {
		h.tokens = h.tokens[10:]
	}
	h.compareReads()
}

func (h *history) compareReads() {
	t, m := h.t, h.rep[h.rng.Intn(len(h.rep))]
	mo := h.model
	var inUse []string
	for _, n := range h.names {
		got := m.Describe(n)
		want := LockView{Name: n, Holders: mo.holders(n)}
		if l := mo.locks[n]; l != nil {
			want.Mode, want.Limit, want.Waiters = l.mode(), l.limit, len(l.queue)
			want.Delayed = max(0, l.delayUntil-mo.time)
			for _, a := range l.queue {
				want.Queue = append(want.Queue, WaiterView{Client: a.reg.view.Client, Mode: a.mode, Permits: a.permits, Waiting: mo.time - a.at})
			}
			inUse = append(inUse, n)
			for _, a := range l.holds {
				if !m.CheckToken(n, a.token) {
					t.Fatalf("%s: token %d is not current", n, a.token)
				}
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("describe\n got %+v\nwant %+v", got, want)
		}
	}
	var listed []string
	for after, more := "", true; more; {
		var page []LockView
		page, more = m.List("n", after, 2)
		for _, l := range page {
			listed = append(listed, l.Name)
			after = l.Name
		}
	}
	if !slices.Equal(listed, inUse) {
		t.Fatalf("list: got %v, want %v", listed, inUse)
	}
	n := 0
	m.Registrations(func(v RegistrationView) bool {
		n++
		r := mo.regs[v.Registration]
		if r == nil {
			t.Fatalf("registration %d should be over", v.Registration)
		}
		w := r.view
		w.Holds, w.Waits = int(r.count(AcquireGranted, nil)), int(r.count(AcquireWaiting, nil))
		if v != w {
			t.Fatalf("registration\n got %+v\nwant %+v", v, w)
		}
		_, holds, waits, _ := m.Inventory(v.Registration)
		if len(holds) != w.Holds || len(waits) != w.Waits {
			t.Fatalf("inventory of %d", v.Registration)
		}
		for i, x := range waits {
			if r.order[i].id != x.Acquire || r.order[i].name != x.Name {
				t.Fatalf("waits of %d are out of order", v.Registration)
			}
		}
		since := h.cfg.Floor + uint64(h.rng.Intn(5))
		_, ev, dropped, _ := m.Events(v.Registration, since)
		want := slices.DeleteFunc(slices.Clone(r.events), func(e EpochEvent) bool { return e.Epoch <= since })
		if k := int(h.cfg.Limits.EventsPerRegistration); len(want) > k {
			if !dropped {
				t.Fatal("dropped events are not reported")
			}
			want = want[len(want)-k:]
		} else if dropped {
			t.Fatal("events are reported as dropped")
		}
		if len(ev) != len(want) || len(ev) > 0 && !reflect.DeepEqual(ev, want) {
			t.Fatalf("events\n got %+v\nwant %+v", ev, want)
		}
		return true
	})
	if n != len(mo.regs) {
		t.Fatalf("%d registrations, want %d", n, len(mo.regs))
	}
}

// replace restarts a replica from a snapshot, and checks that open snapshots
// still show what they showed.
func (h *history) replace() {
	if h.rng.Intn(10) == 0 {
		i := h.rng.Intn(len(h.rep))
		s := h.rep[i].Snapshot()
		h.open = append(h.open, s)
		h.hashes = append(h.hashes, h.rep[i].Hash())
	}
	if len(h.open) == 0 || h.rng.Intn(5) > 0 {
		return
	}
	k := h.rng.Intn(len(h.open))
	s := h.open[k]
	if s.Hash() != h.hashes[k] {
		h.t.Fatal("an open snapshot changed")
	}
	var buf bytes.Buffer
	if _, err := s.WriteTo(&buf); err != nil {
		h.t.Fatal(err)
	}
	m, err := Restore(bytes.NewReader(buf.Bytes()))
	if err != nil {
		h.t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		h.t.Fatalf("restored: %v", err)
	}
	if m.Hash() != h.hashes[k] {
		h.t.Fatal("a restored snapshot has another hash")
	}
	// It replays the tail of the log and takes a replica's place.
	i := h.rng.Intn(len(h.rep))
	m.removals = h.rep[i].removals
	var out Outcome
	for _, e := range h.log[s.Index()-h.cfg.Index:] {
		if err := m.Apply(m.Applied()+1, e.term, e.data, &out); err != nil {
			h.t.Fatal(err)
		}
	}
	if m.Hash() != h.rep[i].Hash() {
		h.t.Fatal("a restarted replica has another hash")
	}
	h.rep[i] = m
	s.Close()
	h.open = slices.Delete(h.open, k, k+1)
	h.hashes = slices.Delete(h.hashes, k, k+1)
}

func show(b Batch) string {
	var s strings.Builder
	fmt.Fprintf(&s, "batch at %d:", b.Time)
	for _, c := range b.Commands {
		fmt.Fprintf(&s, "\n  %+v", c)
	}
	return s.String()
}

// TestHistories runs random histories beside the model on three replicas that
// remove leftovers at different speeds and restart from snapshots at random
// moments.
func TestHistories(t *testing.T) {
	n, steps := 60, 400
	if testing.Short() {
		n = 10
	}
	for i := range n {
		seed := int64(i + 1)
		if *seedFlag != 0 {
			seed = *seedFlag
		}
		if !t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			h := newHistory(t, seed)
			for range steps {
				h.step()
			}
		}) || *seedFlag != 0 {
			t.Logf("again: go test ./shard -run TestHistories -shard.seed=%d", seed)
			return
		}
	}
}
