package disk

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/shard"
)

// Load implements logstore.Store. It reads and checks every key.
func (s *Store) Load() ([]logstore.ReplicaState, error) {
	if s.loaded.Load() {
		return nil, errors.New("disk: Load may be called once")
	}
	var states []logstore.ReplicaState
	err := s.guard(func() (err error) {
		states, err = s.load()
		return err
	})
	if err == nil {
		err = s.Failed()
	}
	if err != nil {
		return nil, s.explain(err)
	}
	s.loaded.Store(true)
	return states, nil
}

// found gathers what the keys say about one shard.
type found struct {
	logstore.ReplicaState
	truncated  uint64
	hard, base bool
}

func (s *Store) load() (_ []logstore.ReplicaState, err error) {
	it, err := s.db.NewIter(nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if e := it.Close(); e != nil && err == nil {
			err = e
		}
		if pebble.IsCorruptionError(err) && !errors.Is(err, logstore.ErrCorrupt) {
			err = fmt.Errorf("%w: %w", logstore.ErrCorrupt, err)
		}
	}()
	all := map[shard.ID]*found{}
	for ok := it.First(); ok; ok = it.Next() {
		if it.Key()[0] == prefixStore {
			continue
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, err
		}
		if err := s.loadKey(all, it.Key(), v); err != nil {
			return nil, err
		}
	}
	if err := it.Error(); err != nil {
		return nil, err
	}
	states := make([]logstore.ReplicaState, 0, len(all))
	for _, id := range slices.Sorted(maps.Keys(all)) {
		f := all[id]
		if err := f.check(); err != nil {
			return nil, err
		}
		r := &replica{id: f.Replica, hard: f.HardState, base: f.Base, truncated: f.truncated, last: f.truncated}
		if n := len(f.Entries); n > 0 {
			r.last = f.Entries[n-1].GetIndex()
		}
		s.shards[id] = r
		states = append(states, f.ReplicaState)
	}
	return states, nil
}

func (s *Store) loadKey(all map[shard.ID]*found, key, value []byte) error {
	switch key[0] {
	case prefixHard, prefixEntry, prefixBase:
	default:
		return fmt.Errorf("%w: unknown key %x", logstore.ErrCorrupt, key)
	}
	id, index, err := parseKey(key)
	if err != nil {
		return err
	}
	f := all[id]
	if f == nil {
		f = &found{}
		f.Shard = id
		all[id] = f
	}
	what := "hard state"
	switch key[0] {
	case prefixHard:
		f.hard = true
		f.HardState, err = decodeHardState(key, value)
	case prefixBase:
		what, f.base = "base", true
		f.Replica, f.truncated, f.Base, err = decodeBase(key, value)
	default:
		e, derr := decodeEntry(key, value, index)
		if derr != nil {
			return fmt.Errorf("%w: shard %d, index %d: %w", logstore.ErrCorrupt, id, index, derr)
		}
		f.Entries = append(f.Entries, e)
	}
	if err != nil {
		return fmt.Errorf("%w: shard %d, %s: %w", logstore.ErrCorrupt, id, what, err)
	}
	return nil
}

// check adds to logstore.Check what only this layout knows: that all three
// kinds of keys are there, and where exactly the entries begin.
func (f *found) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: shard %d: %s", logstore.ErrCorrupt, f.Shard, fmt.Sprintf(format, args...))
	}
	switch {
	case !f.base:
		return bad("its base is missing")
	case !f.hard:
		return bad("its hard state is missing")
	case f.truncated > f.Base.Index:
		return bad("it was truncated at %d, after the base %d", f.truncated, f.Base.Index)
	}
	if len(f.Entries) > 0 {
		if first := f.Entries[0].GetIndex(); first != f.truncated+1 {
			return bad("entries begin at index %d but the log was truncated at %d", first, f.truncated)
		}
	} else if f.truncated < f.Base.Index {
		return bad("entries from index %d to the base %d are missing", f.truncated+1, f.Base.Index)
	}
	return logstore.Check(&f.ReplicaState)
}
