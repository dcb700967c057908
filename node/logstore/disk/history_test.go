package disk

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/node/logstore/mem"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// history makes random steps such as replicas make, and knows what they add up
// to.
type history struct {
	rng    *rand.Rand
	shards map[shard.ID]*view
	nextID uint64
	// maxData caps the data of an entry; 0: most are small, some are not.
	maxData int
}

type view struct {
	replica   uint64
	hard      logstore.HardState
	base      logstore.Base
	truncated uint64
	terms     []uint64 // of the entries after truncated
}

func (v *view) last() uint64 { return v.truncated + uint64(len(v.terms)) }

func (v *view) term(i uint64) uint64 {
	if i <= v.truncated {
		return v.base.Term
	}
	return v.terms[i-v.truncated-1]
}

func newHistory(rng *rand.Rand) *history {
	return &history{rng: rng, shards: map[shard.ID]*view{}, nextID: 1}
}

// resume goes on from what a store holds.
func (h *history) resume(states []logstore.ReplicaState) {
	h.shards = map[shard.ID]*view{}
	for _, s := range states {
		v := &view{replica: s.Replica, hard: s.HardState, base: s.Base, truncated: s.Base.Index}
		if len(s.Entries) > 0 {
			v.truncated = s.Entries[0].GetIndex() - 1
		}
		for _, e := range s.Entries {
			v.terms = append(v.terms, e.GetTerm())
		}
		h.shards[s.Shard] = v
	}
}

func (h *history) newBase(index, term uint64) *logstore.Base {
	return &logstore.Base{Index: index, Term: term, Snapshot: fmt.Sprintf("%d-%d.snap", index, h.rng.Uint32()),
		ConfState: &raftpb.ConfState{Voters: []uint64{1, 2, h.rng.Uint64N(9) + 3}}}
}

func (h *history) entries(v *view, first, n uint64) (es []*raftpb.Entry) {
	v.terms = v.terms[:first-v.truncated-1]
	for i := range n {
		limit := 300
		if h.maxData > 0 {
			limit = h.maxData
		}
		data := make([]byte, h.rng.IntN(limit))
		if h.rng.IntN(50) == 0 && h.maxData == 0 {
			data = make([]byte, 40<<10)
		}
		for j := range data {
			data[j] = byte(h.rng.Uint32())
		}
		e := &raftpb.Entry{Index: new(first + i), Term: new(v.hard.Term), Type: raftpb.EntryNormal.Enum(), Data: data}
		if len(data) == 0 {
			e.Data = nil
		}
		v.terms = append(v.terms, v.hard.Term)
		es = append(es, e)
	}
	return es
}

// submit makes the steps of one Submit.
func (h *history) submit() (steps []logstore.Append) {
	for range 1 + h.rng.IntN(3) {
		steps = append(steps, h.step(shard.ID(h.rng.IntN(4))))
	}
	return steps
}

func (h *history) step(id shard.ID) logstore.Append {
	v := h.shards[id]
	a := logstore.Append{Shard: id, NeedSync: h.rng.IntN(3) > 0}
	r := h.rng.IntN(100)
	switch {
	case v == nil || r < 2: // a replica begins
		h.nextID++
		a.ResetLog = v != nil || r%2 == 0
		v = &view{replica: h.nextID, hard: logstore.HardState{Term: 5, Commit: 10}, base: *h.newBase(10, 5), truncated: 10}
		h.shards[id] = v
		a.Base, a.HardState = new(v.base), new(v.hard)
	case r < 6: // a snapshot came
		v.base = *h.newBase(v.last()+h.rng.Uint64N(5), v.hard.Term)
		v.truncated, v.terms = v.base.Index, nil
		v.hard.Commit = v.base.Index
		a.Base, a.ResetLog, a.HardState = new(v.base), true, new(v.hard)
		if h.rng.IntN(2) == 0 {
			a.Entries = h.entries(v, v.base.Index+1, 1+h.rng.Uint64N(3))
		}
	case r < 15: // a snapshot was written
		to := v.hard.Commit
		v.base = *h.newBase(to, v.term(to))
		cut := v.truncated + h.rng.Uint64N(to-v.truncated+1)
		v.terms = append([]uint64(nil), v.terms[cut-v.truncated:]...)
		v.truncated = cut
		a.Base, a.TruncateTo = new(v.base), cut
	case r < 25: // a vote
		v.hard.Term++
		v.hard.Vote = h.rng.Uint64N(3) + 1
		a.HardState = new(v.hard)
	case r < 35: // a new leader overwrites
		v.hard.Term++
		v.hard.Vote = 0
		first := v.hard.Commit + 1 + h.rng.Uint64N(v.last()-v.hard.Commit+1)
		a.Entries, a.HardState = h.entries(v, first, 1+h.rng.Uint64N(3)), new(v.hard)
	case r < 55: // commit moves
		v.hard.Commit += h.rng.Uint64N(v.last() - v.hard.Commit + 1)
		a.HardState = new(v.hard)
		a.NeedSync = false
	default:
		a.Entries = h.entries(v, v.last()+1, 1+h.rng.Uint64N(6))
	}
	a.Replica = v.replica
	return a
}

// same compares what two stores loaded.
func same(a, b []logstore.ReplicaState) error {
	if len(a) != len(b) {
		return fmt.Errorf("%d replicas against %d", len(a), len(b))
	}
	for i := range a {
		x, y := &a[i], &b[i]
		if x.Shard != y.Shard || x.Replica != y.Replica || x.HardState != y.HardState {
			return fmt.Errorf("shard %d replica %d %+v against shard %d replica %d %+v", x.Shard, x.Replica, x.HardState, y.Shard, y.Replica, y.HardState)
		}
		if x.Base.Index != y.Base.Index || x.Base.Term != y.Base.Term || x.Base.Snapshot != y.Base.Snapshot || !proto.Equal(x.Base.ConfState, y.Base.ConfState) {
			return fmt.Errorf("shard %d: base %v against %v", x.Shard, x.Base, y.Base)
		}
		if !slices.EqualFunc(x.Entries, y.Entries, func(e, f *raftpb.Entry) bool { return proto.Equal(e, f) }) {
			return fmt.Errorf("shard %d: %d entries against other %d", x.Shard, len(x.Entries), len(y.Entries))
		}
	}
	return nil
}

// acks gathers what a store reports.
type acks struct {
	mu    sync.Mutex
	cond  *sync.Cond
	steps []logstore.Append
	fatal []error
	// afterFatal counts reports after OnFatal.
	afterFatal int
}

func newAcks() *acks {
	a := &acks{}
	a.cond = sync.NewCond(&a.mu)
	return a
}

func (a *acks) synced(steps []logstore.Append) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.fatal) > 0 {
		a.afterFatal++
	}
	a.steps = append(a.steps, steps...)
	a.cond.Broadcast()
}

func (a *acks) died(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fatal = append(a.fatal, err)
	a.cond.Broadcast()
}

func (a *acks) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.steps)
}

// wait waits for n acknowledged steps or the end of the store.
func (a *acks) wait(n int) (fatal error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.steps) < n && len(a.fatal) == 0 {
		a.cond.Wait()
	}
	if len(a.fatal) > 0 {
		return a.fatal[0]
	}
	return nil
}

func testOptions(fs vfs.FS, a *acks) Options {
	return Options{Dir: "data", FS: fs, OnSynced: a.synced, OnFatal: a.died, MemTableSize: 256 << 10}
}

func mustOpen(t *testing.T, fs vfs.FS, a *acks) *Store {
	t.Helper()
	s, err := Open(testOptions(fs, a))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustLoad(t *testing.T, s logstore.Store) []logstore.ReplicaState {
	t.Helper()
	states, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	return states
}

func mustClose(t *testing.T, s logstore.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// clone copies a model's durable state into a new model.
func clone(t *testing.T, states []logstore.ReplicaState) *mem.Store {
	t.Helper()
	m := mem.New(nil)
	for i := range states {
		s := &states[i]
		first := s.Base.Index + 1
		if len(s.Entries) > 0 {
			first = s.Entries[0].GetIndex()
		}
		// Truncation is where the entries begin: a base there, then the real one.
		low := s.Base
		low.Index = first - 1
		m.Submit([]logstore.Append{
			{Shard: s.Shard, Replica: s.Replica, Base: &low, HardState: &logstore.HardState{Term: s.HardState.Term, Commit: first - 1}},
			{Shard: s.Shard, Replica: s.Replica, Entries: s.Entries, HardState: &s.HardState},
			{Shard: s.Shard, Replica: s.Replica, Base: &s.Base},
		})
	}
	m.Sync(-1)
	return m
}

func TestDifferential(t *testing.T) {
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 1))
		h, model, fs := newHistory(rng), mem.New(nil), vfs.NewCrashableMem()
		for range 5 {
			a := newAcks()
			s := mustOpen(t, fs, a)
			if err := same(mustLoad(t, s), mustLoad(t, model)); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			n := 0
			for range rng.IntN(150) {
				steps := h.submit()
				n += len(steps)
				s.Submit(steps)
				model.Submit(steps)
			}
			mustClose(t, s)
			want := model.Sync(-1)
			if len(a.steps) != n || len(want) != n || len(a.fatal) > 0 {
				t.Fatalf("seed %d: %d of %d steps reported, fatal %v", seed, len(a.steps), n, a.fatal)
			}
			for i := range want {
				if want[i].Shard != a.steps[i].Shard || want[i].HardState != a.steps[i].HardState || len(want[i].Entries) != len(a.steps[i].Entries) {
					t.Fatalf("seed %d: step %d was reported out of order", seed, i)
				}
			}
		}
	}
}

func TestManySubmitters(t *testing.T) {
	const each = 200
	a := newAcks()
	s := mustOpen(t, vfs.NewMem(), a)
	mustLoad(t, s)
	var wg sync.WaitGroup
	for id := range shard.ID(8) {
		wg.Go(func() {
			h := newHistory(rand.New(rand.NewPCG(uint64(id), 2)))
			for range each {
				s.Submit([]logstore.Append{h.step(id)})
			}
		})
	}
	wg.Wait()
	mustClose(t, s)
	if len(a.steps) != 8*each || len(a.fatal) > 0 {
		t.Fatalf("%d steps reported, fatal %v", len(a.steps), a.fatal)
	}
	got := map[shard.ID]*mem.Store{}
	for _, step := range a.steps { // in the order of each submitter, or the model panics
		if got[step.Shard] == nil {
			got[step.Shard] = mem.New(nil)
		}
		got[step.Shard].Submit([]logstore.Append{step})
	}
	if len(slices.Collect(maps.Keys(got))) != 8 {
		t.Fatal("a shard is missing")
	}
	if st := s.Stats(); st.Steps != 8*each || st.Syncs == 0 || st.P50 == 0 || st.P99 < st.P50 {
		t.Fatalf("stats %+v", st)
	}
}
