package crash

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/mortise-lock/mortise/node/logstore"
	logdisk "github.com/mortise-lock/mortise/node/logstore/disk"
	"github.com/mortise-lock/mortise/node/snapshot"
	"github.com/mortise-lock/mortise/node/worker"
	"github.com/mortise-lock/mortise/placement"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
)

// recovered is what one node has after the crash.
type recovered struct {
	node   worker.NodeID
	states map[shard.ID]logstore.ReplicaState
	folder *snapshot.Folder
}

// recoverNode opens what a crash left of a node's files, as the node would.
func recoverNode(fs vfs.FS) (*recovered, error) {
	var fatal error
	s, err := logdisk.Open(logdisk.Options{Dir: filepath.Join(dataDir, "log"), FS: fs, MemTableSize: memTable, OnFatal: func(err error) { fatal = err }})
	if err != nil {
		return nil, err
	}
	states, err := s.Load()
	if err != nil {
		return nil, err
	}
	id, ok := s.Identity()
	if !ok {
		return nil, fmt.Errorf("the directory has lost its identity")
	}
	if err := s.Close(); err != nil || fatal != nil {
		return nil, fmt.Errorf("close: %v, %v", err, fatal)
	}
	r := &recovered{node: worker.NodeID(id.NodeID), states: map[shard.ID]logstore.ReplicaState{}}
	if r.folder, err = snapshot.Open(filepath.Join(dataDir, "snapshots"), fs); err != nil {
		return nil, err
	}
	keep := map[string]bool{}
	for _, st := range states {
		r.states[st.Shard] = st
		keep[st.Base.Snapshot] = true
	}
	_, err = r.folder.Collect(keep)
	return r, err
}

// config is what the node's worker starts with.
func (r *recovered) config() (worker.Config, error) {
	cfg := worker.Config{Node: r.node, Snapshots: snapshots}
	meta, err := r.meta()
	if err != nil {
		return cfg, err
	}
	for _, s := range meta.Map().Shards {
		i := slices.IndexFunc(s.Replicas, func(x *placementv1.Replica) bool { return worker.NodeID(x.Node) == r.node })
		st, ok := r.states[shard.ID(s.Id)]
		if i < 0 || !ok {
			return cfg, fmt.Errorf("shard %d: on the map %v, on disk %v", s.Id, i >= 0, ok)
		}
		rep := worker.Replica{Shard: st.Shard, Replica: s.Replicas[i].Id, State: st}
		for _, p := range s.Replicas {
			rep.Peers = append(rep.Peers, worker.Peer{Replica: p.Id, Node: worker.NodeID(p.Node)})
		}
		if s.Id == 0 {
			rep.Meta = meta
		} else if rep.Machine, err = r.machine(st.Shard); err != nil {
			return cfg, err
		}
		cfg.Replicas = append(cfg.Replicas, rep)
	}
	return cfg, nil
}

func (r *recovered) meta() (*placement.Machine, error) {
	f, err := r.folder.Open(r.states[0].Base.Snapshot)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return placement.Restore(f)
}

// machine is the state at the base of the shard's log.
func (r *recovered) machine(id shard.ID) (*shard.Machine, error) {
	f, err := r.folder.Open(r.states[id].Base.Snapshot)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return shard.Restore(f)
}

// replay applies the shard's log from its base up to an index.
func (r *recovered) replay(id shard.ID, to uint64) (*shard.Machine, error) {
	m, err := r.machine(id)
	if err != nil {
		return nil, err
	}
	var out shard.Outcome
	for _, e := range r.states[id].Entries {
		if e.GetIndex() <= m.Applied() || e.GetIndex() > to {
			continue
		}
		data := e.GetData()
		if e.GetType() != raftpb.EntryNormal {
			data = nil
		}
		if err := m.Apply(e.GetIndex(), e.GetTerm(), data, &out); err != nil {
			return nil, err
		}
	}
	if m.Applied() < to {
		return nil, fmt.Errorf("shard %d: the log ends at %d, before %d", id, m.Applied(), to)
	}
	return m, m.Check()
}

// last is the index and term of the last entry.
func (r *recovered) last(id shard.ID) (index, term uint64) {
	st := r.states[id]
	if n := len(st.Entries); n > 0 {
		return st.Entries[n-1].GetIndex(), st.Entries[n-1].GetTerm()
	}
	return st.Base.Index, st.Base.Term
}

// leaders are the nodes that may lead the shard after the crash: for each
// majority the one whose log is most up to date (raft's rule).
func leaders(all []*recovered, id shard.ID) map[int]bool {
	out := map[int]bool{}
	for absent := range all {
		best := -1
		for i := range all {
			if i == absent {
				continue
			}
			if best < 0 {
				best = i
				continue
			}
			bi, bt := all[best].last(id)
			if index, term := all[i].last(id); term > bt || term == bt && index > bi {
				best = i
			}
		}
		out[best] = true
	}
	return out
}
