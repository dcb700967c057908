package disk

import (
	"testing"

	"github.com/mortise-lock/mortise/node/logstore"
	"go.etcd.io/raft/v3/raftpb"
)

func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	got := make(chan []logstore.Append, 10)
	o := Options{Dir: dir, OnSynced: func(a []logstore.Append) { got <- a }, OnFatal: func(err error) { t.Error(err) }}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(o); err == nil {
		t.Fatal("opened twice")
	} else {
		t.Log(err)
	}
	if _, err := s.Load(); err != nil {
		t.Fatal(err)
	}
	s.Submit([]logstore.Append{{Shard: 3, Replica: 1, Base: &logstore.Base{Index: 10, Term: 5, Snapshot: "x", ConfState: &raftpb.ConfState{Voters: []uint64{1, 2}}},
		HardState: &logstore.HardState{Term: 5, Commit: 10}, NeedSync: true}})
	<-got
	if err := s.PutIdentity(Identity{ClusterID: "c", NodeID: 4}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(o); err != nil {
		t.Fatal(err)
	}
	st, err := s.Load()
	t.Log(st, err)
	t.Log(s.Identity())
	t.Log(s.CheckIdentity(Identity{ClusterID: "d"}))
	t.Logf("%+v", s.Stats())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
