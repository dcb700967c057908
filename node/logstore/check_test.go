package logstore_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/mortise-lock/mortise/node/logstore"
	"go.etcd.io/raft/v3/raftpb"
)

func TestCheck(t *testing.T) {
	es := func(pairs ...uint64) (out []*raftpb.Entry) {
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, &raftpb.Entry{Index: new(pairs[i]), Term: new(pairs[i+1])})
		}
		return out
	}
	for _, c := range []struct {
		name                string
		replica, term       uint64
		base, bterm, commit uint64
		entries             []*raftpb.Entry
		want                string // "" is fine
	}{
		{"only a base", 1, 5, 10, 5, 10, nil, ""},
		{"after the base", 1, 6, 10, 5, 11, es(11, 5, 12, 6), ""},
		{"kept tail", 1, 5, 10, 5, 10, es(9, 4, 10, 5, 11, 5), ""},
		{"no replica", 0, 5, 10, 5, 10, nil, "no replica id"},
		{"late begin", 1, 5, 10, 5, 10, es(12, 5), "index 12"},
		{"gap", 1, 5, 10, 5, 10, es(11, 5, 13, 5), "index 13 follows index 11"},
		{"falling terms", 1, 5, 10, 4, 10, es(11, 5, 12, 4), "index 12 has term 4"},
		{"term 0", 1, 5, 10, 4, 10, es(11, 0), "index 11 has term 0"},
		{"below the base's term", 1, 5, 10, 5, 10, es(11, 4), "index 11 has term 4"},
		{"other term at the base", 1, 5, 10, 5, 10, es(10, 4), "index 10 has term 4"},
		{"ends before the base", 1, 5, 10, 5, 10, es(8, 4, 9, 4), "end at index 9"},
		{"commit past the end", 1, 5, 10, 5, 12, es(11, 5), "commit index 12"},
		{"commit before the base", 1, 5, 10, 5, 9, es(11, 5), "commit index 9"},
		{"old hard state", 1, 5, 10, 5, 10, es(11, 6), "lower than term 6"},
	} {
		err := logstore.Check(&logstore.ReplicaState{Shard: 77, Replica: c.replica, HardState: logstore.HardState{Term: c.term, Commit: c.commit},
			Base: logstore.Base{Index: c.base, Term: c.bterm}, Entries: c.entries})
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if !errors.Is(err, logstore.ErrCorrupt) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "shard 77") {
			t.Errorf("%s: %v, want ErrCorrupt with shard 77 and %q", c.name, err, c.want)
		}
	}
}
