package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/node/snapshot"
	"github.com/mortise-lock/mortise/node/transport"
	"github.com/mortise-lock/mortise/node/worker"
	"github.com/mortise-lock/mortise/placement"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
)

const (
	// snapshotWriteRate caps what all snapshots together write to disk, in bytes
	// per second, those of our own state and those from peers: a quarter of what
	// the slowest disks in use by cloud machines take (125 MiB/s), so that the
	// syncs of the log find the disk's queue short.
	snapshotWriteRate  = 32 << 20
	snapshotWriteBurst = 1 << 20
	// diskReserve is kept for the log: snapshots from peers may not use it.
	diskReserve = 256 << 20
)

// files shows the snapshot folder to the transport.
type files struct {
	*snapshot.Folder
	n *Node
}

// Open implements transport.Files.
func (f files) Open(name string) (io.ReadCloser, int64, error) {
	file, err := f.OpenFile(name)
	if err != nil {
		return nil, 0, err
	}
	return file, file.Size(), nil
}

// Room implements transport.Files.
func (f files) Room() (uint64, error) {
	fs := f.n.cfg.Store.FS
	if fs == nil {
		fs = vfs.Default
	}
	du, err := fs.GetDiskUsage(f.n.cfg.DataDir)
	if errors.Is(err, vfs.ErrUnsupported) {
		return snapshot.MaxSize, nil
	}
	if err != nil {
		return 0, fmt.Errorf("room for snapshots in %s: %w", f.n.cfg.DataDir, err)
	}
	return min(du.AvailBytes-min(du.AvailBytes, diskReserve), snapshot.MaxSize), nil
}

// Create implements transport.Files.
func (f files) Create(ctx context.Context, name string, s shard.ID, index uint64) (transport.File, error) {
	r, err := f.Receive(name, s, index)
	if err != nil {
		return nil, err
	}
	return received{r, paced{r, ctx, f.n.snapshotPace}, f.n}, nil
}

type received struct {
	*snapshot.Receiver
	paced paced
	n     *Node
}

func (r received) Write(b []byte) (int, error) { return r.paced.Write(b) }

func (r received) Commit() error {
	_, err := r.Receiver.Commit()
	if errors.Is(err, snapshot.ErrSync) {
		r.n.fatal(err) // as in writeSnapshot
	}
	return err
}

// paced writes no faster than its pace, until ctx ends.
type paced struct {
	w    io.Writer
	ctx  context.Context
	pace *transport.Pacer
}

// pacedPiece is small enough to be buffered by the folder's writers: a vfs.File
// may change the slice it is handed.
const pacedPiece = 32 << 10

// Write implements io.Writer. Large writes are cut, so that nobody waits long
// behind another.
func (p paced) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		k := min(len(b), pacedPiece)
		if err = p.pace.Wait(p.ctx, k); err != nil {
			return n, err
		}
		k, err = p.w.Write(b[:k])
		n, b = n+k, b[k:]
	}
	return n, err
}

// writeSnapshot carries out a worker.WriteSnapshot.
func (n *Node) writeSnapshot(l *loop, s worker.WriteSnapshot) {
	n.work.Go(func() {
		defer s.Snapshot.Close()
		done := worker.SnapshotWritten{Shard: s.Shard, File: s.File, Index: s.Index}
		w, err := n.snapshots.Create(s.File, s.Shard, s.Index)
		if err == nil {
			if _, err = s.Snapshot.WriteSnapshot(paced{w, n.ctx, n.snapshotPace}); err == nil {
				done.Bytes, err = w.Commit()
			} else {
				w.Abort()
			}
		}
		if errors.Is(err, snapshot.ErrSync) {
			n.fatal(err) // a later sync may succeed over pages that this one lost
		}
		done.Err = err
		l.post(func(in *worker.Input) { in.SnapshotsWritten = append(in.SnapshotsWritten, done) })
	})
}

func (n *Node) removeFile(name string) {
	n.work.Go(func() {
		if err := n.snapshots.Remove(name); err != nil {
			n.log.Warn("a superseded snapshot could not be removed", "file", name, "error", err)
		}
	})
}

// install restores a received snapshot, off the loops, and hands it in.
func (n *Node) install(m worker.RaftMessage) error {
	lock, meta, err := n.restore(m.Shard, m.SnapshotFile)
	if err != nil {
		_ = n.snapshots.Remove(m.SnapshotFile)
		return err
	}
	m.Restored, m.RestoredMap = lock, meta
	n.deliver([]worker.RaftMessage{m})
	return nil
}

// restore reads a file into a state machine of its shard's kind.
func (n *Node) restore(id shard.ID, file string) (lock *shard.Machine, meta *placement.Machine, err error) {
	r, err := n.snapshots.Open(file)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	if id == 0 {
		meta, err = placement.Restore(r)
	} else {
		lock, err = shard.Restore(r)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("snapshot %s of shard %d: %w", file, id, err)
	}
	if lock != nil && lock.ID() != id {
		return nil, nil, fmt.Errorf("%w: snapshot %s is that of shard %d, not %d", logstore.ErrCorrupt, file, lock.ID(), id)
	}
	return lock, meta, nil
}

// restoreAll makes the replicas that the map puts on this node out of what the
// log store loaded; keep names the snapshot files that they need.
func (n *Node) restoreAll(m *placementv1.Map, node uint64, states []logstore.ReplicaState) (reps []worker.Replica, keep map[string]bool, err error) {
	keep = map[string]bool{}
	for _, s := range m.Shards {
		i := slices.IndexFunc(s.Replicas, func(r *placementv1.Replica) bool { return r.Node == node })
		if i < 0 {
			continue
		}
		j := slices.IndexFunc(states, func(st logstore.ReplicaState) bool {
			return uint32(st.Shard) == s.Id && st.Replica == s.Replicas[i].Id
		})
		if j < 0 {
			return nil, nil, fmt.Errorf("%w: the map puts replica %d of shard %d on this node, but the data directory does not have it: "+
				"do not start this node on it again; move the directory away and let the node join as a new one", logstore.ErrCorrupt, s.Replicas[i].Id, s.Id)
		}
		rep := worker.Replica{Shard: shard.ID(s.Id), Replica: s.Replicas[i].Id, State: states[j]}
		for _, p := range s.Replicas {
			rep.Peers = append(rep.Peers, worker.Peer{Replica: p.Id, Node: worker.NodeID(p.Node), Learner: p.Learner})
		}
		if rep.Machine, rep.Meta, err = n.restore(rep.Shard, states[j].Base.Snapshot); err != nil {
			return nil, nil, err
		}
		keep[states[j].Base.Snapshot] = true
		reps = append(reps, rep)
	}
	return reps, keep, nil
}

// Where the log of a new cluster's replicas begins. Above 1, so that a replica
// with nothing can only get there by a snapshot.
const (
	firstIndex = 10
	firstTerm  = 5
)

// initialState writes the first snapshot of a replica and returns what its log
// begins with. All replicas of a shard get the same.
func (n *Node) initialState(m *placementv1.Map, s *placementv1.Shard, replica, floor uint64) (logstore.ReplicaState, error) {
	name := fmt.Sprintf("%d-%d-%d.snap", s.Id, replica, firstIndex)
	st := logstore.ReplicaState{Shard: shard.ID(s.Id), Replica: replica,
		HardState: logstore.HardState{Term: firstTerm, Commit: firstIndex},
		Base:      logstore.Base{Index: firstIndex, Term: firstTerm, ConfState: new(raftpb.ConfState), Snapshot: name}}
	for _, r := range s.Replicas {
		if r.Learner {
			st.Base.ConfState.Learners = append(st.Base.ConfState.Learners, r.Id)
		} else {
			st.Base.ConfState.Voters = append(st.Base.ConfState.Voters, r.Id)
		}
	}
	var content io.WriterTo
	if s.Id == 0 {
		machine, err := placement.NewMachine(m, firstIndex)
		if err != nil {
			return st, err
		}
		content = machine.Snapshot()
	} else {
		sn := shard.New(shard.Config{ID: st.Shard, Owns: placement.Selectors(s), Floor: floor, Index: firstIndex, Term: firstTerm}).Snapshot()
		defer sn.Close()
		content = sn
	}
	w, err := n.snapshots.Create(name, st.Shard, firstIndex)
	if err != nil {
		return st, err
	}
	if _, err := content.WriteTo(w); err != nil {
		w.Abort()
		return st, err
	}
	_, err = w.Commit()
	return st, err
}
