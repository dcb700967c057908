package mem

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/mortise-lock/mortise/node/logstore"
	"go.etcd.io/raft/v3/raftpb"
)

func begin(commit uint64) logstore.Append {
	return logstore.Append{Shard: 1, Replica: 7, NeedSync: true,
		Base:      &logstore.Base{Index: 10, Term: 5, Snapshot: "a.snap", ConfState: &raftpb.ConfState{Voters: []uint64{7}}},
		HardState: &logstore.HardState{Term: 5, Commit: commit}}
}

func entries(first, n, term uint64) (es []*raftpb.Entry) {
	for i := range n {
		es = append(es, &raftpb.Entry{Index: new(first + i), Term: new(term)})
	}
	return es
}

func last(t *testing.T, s *Store) uint64 {
	t.Helper()
	all, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		return 0
	}
	if n := len(all[0].Entries); n > 0 {
		return all[0].Entries[n-1].GetIndex()
	}
	return all[0].Base.Index
}

func TestSyncMakesAPrefixDurable(t *testing.T) {
	var told int
	s := New(func(a []logstore.Append) { told += len(a) })
	s.Submit([]logstore.Append{begin(10)})
	s.Submit([]logstore.Append{{Shard: 1, Replica: 7, Entries: entries(11, 3, 5)}})
	s.Submit([]logstore.Append{{Shard: 1, Replica: 7, Entries: entries(12, 1, 5), NeedSync: true}})
	if got := last(t, s); got != 0 || s.Pending() != 3 || !s.NeedSync() {
		t.Fatalf("before Sync: last %d, pending %d", got, s.Pending())
	}
	if n := len(s.Sync(2)); n != 2 || told != 2 {
		t.Fatalf("Sync(2) returned %d steps and told of %d", n, told)
	}
	if got := last(t, s); got != 13 {
		t.Fatalf("last %d, want 13", got)
	}
	s.Crash(nil)
	if got := last(t, s); got != 13 || s.Pending() != 0 || told != 2 {
		t.Fatalf("after the crash: last %d, pending %d, told of %d", got, s.Pending(), told)
	}
	// The overwriting step is gone, and the log takes entries where it ends.
	s.Submit([]logstore.Append{{Shard: 1, Replica: 7, Entries: entries(14, 1, 5), NeedSync: true}})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := last(t, s); got != 14 {
		t.Fatalf("last %d, want 14", got)
	}
}

func TestCrashKeepsSomePrefix(t *testing.T) {
	seen := map[uint64]bool{}
	for seed := range uint64(60) {
		s := New(nil)
		s.Submit([]logstore.Append{begin(10)})
		s.Sync(-1)
		for i := range uint64(3) {
			s.Submit([]logstore.Append{{Shard: 1, Replica: 7, Entries: entries(11+i, 1, 5)}})
		}
		n := s.Crash(rand.New(rand.NewPCG(seed, 0)))
		got := last(t, s)
		if got != 10+uint64(n) {
			t.Fatalf("kept %d submits but the log ends at %d", n, got)
		}
		seen[got] = true
	}
	if len(seen) != 4 {
		t.Fatalf("60 crashes kept only the ends %v", seen)
	}
}

func TestImpossibleStepsPanic(t *testing.T) {
	for name, a := range map[string]logstore.Append{
		"gap":              {Shard: 1, Replica: 7, Entries: entries(12, 1, 5)},
		"commit past last": {Shard: 1, Replica: 7, HardState: &logstore.HardState{Term: 5, Commit: 11}},
		"truncation":       {Shard: 1, Replica: 7, TruncateTo: 11},
		"other replica":    {Shard: 1, Replica: 8, Entries: entries(11, 1, 5)},
		"no base":          {Shard: 2, Replica: 8, HardState: &logstore.HardState{Term: 1}},
		"reset":            {Shard: 1, Replica: 7, ResetLog: true},
	} {
		func() {
			s := New(nil)
			s.Submit([]logstore.Append{begin(10)})
			defer func() {
				if err, _ := recover().(error); !errors.Is(err, logstore.ErrInvalid) {
					t.Errorf("%s: %v, want ErrInvalid", name, err)
				}
			}()
			s.Submit([]logstore.Append{a})
		}()
	}
}
