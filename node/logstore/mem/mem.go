// Package mem is the log store as a model: what is durable and what is not is
// decided by its owner, step by step. It runs in one thread, reads no clock and
// has no randomness of its own, so that a simulation can crash it at will. The
// tests of package disk hold both to the same behaviour.
package mem

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
)

// Store implements logstore.Store. Not safe for concurrent use. It keeps the
// entries that it is given and hands the same ones out: nobody may change them.
type Store struct {
	onSynced func([]logstore.Append)
	durable  map[shard.ID]state
	// written is durable with pending on top; a step is checked against it.
	written map[shard.ID]state
	// pending are the submits that are not durable, one slice each.
	pending [][]logstore.Append
}

var _ logstore.Store = (*Store)(nil)

// state is one replica. The array of entries belongs to it alone and is changed
// in place.
type state struct {
	replica   uint64
	hard      logstore.HardState
	base      logstore.Base
	truncated uint64
	entries   []*raftpb.Entry // from truncated+1 on
}

func (s *state) last() uint64 { return s.truncated + uint64(len(s.entries)) }

// New makes an empty store. onSynced, which may be nil, is called by Sync.
func New(onSynced func([]logstore.Append)) *Store {
	return &Store{onSynced: onSynced, durable: map[shard.ID]state{}, written: map[shard.ID]state{}}
}

// SetOnSynced replaces the function that Sync calls, for a node that restarts
// on the same store.
func (s *Store) SetOnSynced(f func([]logstore.Append)) { s.onSynced = f }

// Load returns what is durable. It may be called after every Crash.
func (s *Store) Load() ([]logstore.ReplicaState, error) {
	var all []logstore.ReplicaState
	for _, id := range slices.Sorted(maps.Keys(s.durable)) {
		st := s.durable[id]
		r := logstore.ReplicaState{Shard: id, Replica: st.replica, HardState: st.hard, Base: st.base,
			Entries: slices.Clone(st.entries)}
		if err := logstore.Check(&r); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// Submit queues steps until Sync makes them durable. An impossible step is a
// bug of the caller and panics with an error that wraps logstore.ErrInvalid.
func (s *Store) Submit(steps []logstore.Append) {
	if len(steps) == 0 {
		return
	}
	for i := range steps {
		if err := apply(s.written, &steps[i]); err != nil {
			panic(err)
		}
	}
	s.pending = append(s.pending, slices.Clone(steps))
}

// Pending is the number of submits that are not durable.
func (s *Store) Pending() int { return len(s.pending) }

// NeedSync tells whether a pending step asks for durability.
func (s *Store) NeedSync() bool {
	return slices.ContainsFunc(s.pending, func(steps []logstore.Append) bool {
		return slices.ContainsFunc(steps, func(a logstore.Append) bool { return a.NeedSync })
	})
}

// Sync makes the n oldest pending submits durable (all if n is negative or too
// large), reports their steps to the function given to New, and returns them.
func (s *Store) Sync(n int) []logstore.Append {
	steps := s.persist(n)
	if len(steps) > 0 && s.onSynced != nil {
		s.onSynced(steps)
	}
	return steps
}

func (s *Store) persist(n int) []logstore.Append {
	if n < 0 || n > len(s.pending) {
		n = len(s.pending)
	}
	steps := slices.Concat(s.pending[:n]...)
	s.pending = slices.Delete(s.pending, 0, n)
	for i := range steps {
		if err := apply(s.durable, &steps[i]); err != nil {
			panic(err)
		}
	}
	return steps
}

// Crash loses what is not durable, except for a random number of the oldest
// pending submits, which reached the disk although nobody was told. It returns
// how many did.
func (s *Store) Crash(rng *rand.Rand) int {
	n := 0
	if rng != nil {
		n = rng.IntN(len(s.pending) + 1)
	}
	s.persist(n)
	s.pending = nil
	s.written = make(map[shard.ID]state, len(s.durable))
	for id, st := range s.durable {
		st.entries = slices.Clone(st.entries)
		s.written[id] = st
	}
	return n
}

// Close makes everything durable and reports it.
func (s *Store) Close() error {
	s.Sync(-1)
	return nil
}

// apply carries out one step.
func apply(all map[shard.ID]state, a *logstore.Append) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: shard %d, replica %d: %s", logstore.ErrInvalid, a.Shard, a.Replica, fmt.Sprintf(format, args...))
	}
	st, known := all[a.Shard]
	if a.Replica == 0 {
		return bad("no replica id")
	}
	if !known || st.replica != a.Replica {
		if a.Base == nil || a.HardState == nil || known && !a.ResetLog {
			return bad("a new replica begins with Base and HardState, and with ResetLog in place of another")
		}
	}
	if a.ResetLog && a.Base == nil {
		return bad("ResetLog without Base")
	}
	if a.ResetLog || !known {
		st = state{replica: st.replica, hard: st.hard, truncated: a.Base.Index}
	} else if a.Base != nil && a.Base.Index < st.base.Index {
		return bad("base %d before base %d", a.Base.Index, st.base.Index)
	}
	st.replica = a.Replica
	if a.Base != nil {
		st.base = *a.Base
	}
	if a.TruncateTo > st.truncated {
		if a.TruncateTo > st.base.Index {
			return bad("truncation to %d, past the base %d", a.TruncateTo, st.base.Index)
		}
		st.entries = slices.Clone(st.entries[min(a.TruncateTo-st.truncated, uint64(len(st.entries))):])
		st.truncated = a.TruncateTo
	}
	for i, e := range a.Entries {
		index := e.GetIndex()
		if i > 0 && index != a.Entries[i-1].GetIndex()+1 || index <= st.truncated || index > st.last()+1 {
			return bad("entry %d does not fit the log %d to %d", index, st.truncated+1, st.last())
		}
		if i == 0 {
			keep := int(index - st.truncated - 1)
			clear(st.entries[keep:])
			st.entries = st.entries[:keep]
		}
		st.entries = append(st.entries, e)
	}
	if a.HardState != nil {
		st.hard = *a.HardState
	}
	if c := st.hard.Commit; c < st.base.Index || c > st.last() {
		return bad("commit index %d not within base %d and last index %d", c, st.base.Index, st.last())
	}
	all[a.Shard] = st
	return nil
}
