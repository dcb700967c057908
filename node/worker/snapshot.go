package worker

import (
	"fmt"
	"io"
	"slices"

	"github.com/mortise-lock/mortise/node/logstore"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// snapshotState is a replica's bookkeeping about snapshot files.
type snapshotState struct {
	// bytes of log since the state was last captured; lastBytes is the size of
	// the last file, lastIndex the index last captured.
	bytes, lastBytes int64
	lastIndex        uint64
	writing          bool
	// old files are removed once base is durable and no stream reads them.
	old []oldFile
	// sending names the file being streamed to each replica, in order of begin.
	sending []sending
}

type oldFile struct {
	name    string
	durable bool // its successor is durable
}

type sending struct {
	replica uint64
	index   uint64
	file    string
}

// maxSnapshotDistance caps how far the log may grow because the last snapshot was large.
const maxSnapshotDistance = 64 << 20

// snapshotDue tells whether so much log has gathered that the state should be
// written. Thresholds differ by up to a fifth between shards.
func (r *replica) snapshotDue() bool {
	if r.snap.writing || r.w.snapshots >= r.w.cfg.Snapshots.Concurrent {
		return false
	}
	p := &r.w.cfg.Snapshots
	applied := r.applied()
	from := max(r.snap.lastIndex, r.log.base.Index)
	if applied <= from {
		return false
	}
	jitter := uint64(r.shard) * 7 % 16
	bytes := max(p.Bytes, min(r.snap.lastBytes, maxSnapshotDistance))
	return r.snap.bytes >= bytes+bytes/80*int64(jitter) || applied-from >= p.Entries+p.Entries*jitter/80
}

// maybeSnapshot captures the state, which stalls nothing, and asks for it to be
// written.
func (r *replica) maybeSnapshot() {
	if !r.snapshotDue() {
		return
	}
	index := r.applied()
	s := WriteSnapshot{Shard: r.shard, Index: index, File: fmt.Sprintf("%d-%d-%d.snap", r.shard, r.id, index)}
	if r.m != nil {
		sn := r.m.Snapshot()
		s.Snapshot = writable{sn, sn.Close}
	} else {
		sn := r.meta.Snapshot()
		s.Snapshot = writable{sn, sn.Close}
	}
	r.snap.writing, r.snap.bytes, r.snap.lastIndex = true, 0, index
	r.w.snapshots++
	r.w.out.Snapshots = append(r.w.out.Snapshots, s)
}

// writable fits a machine's snapshot to the effect.
type writable struct {
	io.WriterTo
	close func()
}

func (w writable) WriteSnapshot(to Writer) (int64, error) { return w.WriteTo(to) }
func (w writable) Close()                                 { w.close() }

// snapshotWritten makes a finished file the log's new base and truncates the
// log behind it.
func (w *Worker) snapshotWritten(s *SnapshotWritten) {
	r := w.byShard[s.Shard]
	if r == nil || !r.snap.writing {
		return
	}
	r.snap.writing = false
	w.snapshots--
	w.mark(r)
	if s.Err != nil {
		w.counters.SnapshotErrors++
		w.log(levelError, r, "snapshot could not be written; the log is kept and it is tried again",
			"file", s.File, "index", s.Index, "error", s.Err.Error())
		// Again after half as much more log.
		r.snap.bytes = w.cfg.Snapshots.Bytes / 2
		return
	}
	w.counters.SnapshotsWritten++
	term, err := r.log.Term(s.Index)
	if s.Index <= r.log.base.Index || err != nil {
		// Overtaken by an installed snapshot.
		w.out.RemoveFiles = append(w.out.RemoveFiles, s.File)
		return
	}
	r.snap.lastBytes = s.Bytes
	p := &w.cfg.Snapshots
	to := r.log.tail(s.Index, p.KeepEntries, p.KeepBytes)
	for _, snd := range r.snap.sending {
		to = min(to, snd.index) // it goes on from there
	}
	r.rebase(logstore.Base{Index: s.Index, Term: term, ConfState: r.log.conf, Snapshot: s.File})
	base := r.log.base
	// The stored commit index never lies before the base.
	r.submit(logstore.Append{Shard: r.shard, Replica: r.id, Base: &base, HardState: new(r.log.hard), TruncateTo: to, NeedSync: true})
	r.log.truncate(to)
	w.log(levelInfo, r, "snapshot written", "index", s.Index, "bytes", s.Bytes, "truncated_to", to)
}

// rebase names a new base; the former file goes once that is durable.
func (r *replica) rebase(base logstore.Base) {
	if f := r.log.base.Snapshot; f != "" && f != base.Snapshot {
		r.snap.old = append(r.snap.old, oldFile{name: f})
	}
	r.log.base = base
}

// baseDurable: the log store holds a base that we submitted.
func (r *replica) baseDurable(base *logstore.Base) {
	// Bases become durable in order: all files before this one are superseded.
	for i := range r.snap.old {
		if r.snap.old[i].name == base.Snapshot {
			break
		}
		r.snap.old[i].durable = true
	}
	r.removeOld()
}

func (r *replica) removeOld() {
	r.snap.old = slices.DeleteFunc(r.snap.old, func(o oldFile) bool {
		if !o.durable || slices.ContainsFunc(r.snap.sending, func(s sending) bool { return s.file == o.name }) {
			return false
		}
		r.w.out.RemoveFiles = append(r.w.out.RemoveFiles, o.name)
		return true
	})
}

// attachSnapshot names the file that an outbound MsgSnap describes.
func (r *replica) attachSnapshot(m *RaftMessage) bool {
	to, index := m.Msg.GetTo(), m.Msg.GetSnapshot().GetMetadata().GetIndex()
	if index != r.log.base.Index || slices.ContainsFunc(r.snap.sending, func(s sending) bool { return s.replica == to }) {
		// A newer one took its place within this step, or the last one is still on
		// its way: raft tries again.
		r.rn.ReportSnapshot(to, raft.SnapshotFailure)
		return false
	}
	m.SnapshotFile = r.log.base.Snapshot
	r.snap.sending = append(r.snap.sending, sending{to, index, m.SnapshotFile})
	return true
}

// snapshotSent tells raft how the streaming ended; without it raft would wait
// for ever.
func (w *Worker) snapshotSent(s *SnapshotSent) {
	r := w.byShard[s.Shard]
	if r == nil {
		return
	}
	i := slices.IndexFunc(r.snap.sending, func(x sending) bool { return x.replica == s.Replica })
	if i < 0 {
		return
	}
	r.snap.sending = slices.Delete(r.snap.sending, i, i+1)
	r.removeOld()
	status := raft.SnapshotFinish
	if s.Err != nil {
		status = raft.SnapshotFailure
		w.log(levelWarn, r, "snapshot could not be sent", "replica", s.Replica, "error", s.Err.Error())
	}
	r.rn.ReportSnapshot(s.Replica, status)
	w.mark(r)
}

// stepSnapshot steps an inbound MsgSnap. If raft wants it, the very next Ready
// carries it, and install takes the restored state; else the file goes.
func (r *replica) stepSnapshot(m *RaftMessage) {
	// What is pending comes first, so that the next Ready is about this message.
	for r.rn.HasReady() {
		if r.handleReady(); r.w.failed {
			return
		}
	}
	r.incoming = m
	r.step(m.Msg)
	for r.rn.HasReady() {
		if r.handleReady(); r.w.failed {
			return
		}
	}
	if r.incoming != nil {
		r.incoming = nil
		if m.SnapshotFile != r.log.base.Snapshot {
			r.w.out.RemoveFiles = append(r.w.out.RemoveFiles, m.SnapshotFile)
		}
	}
}

// install replaces state and log by the incoming snapshot.
func (r *replica) install(s *raftpb.Snapshot, a *logstore.Append) {
	in := r.incoming
	md := s.GetMetadata()
	if in == nil || in.restoredAt() != md.GetIndex() {
		panic(fmt.Sprintf("worker: shard %d was asked to install a snapshot at %d that nobody sent", r.shard, md.GetIndex()))
	}
	r.incoming = nil
	r.unindexSessions()
	r.m, r.meta = in.Restored, in.RestoredMap
	r.indexSessions()
	base := logstore.Base{Index: md.GetIndex(), Term: md.GetTerm(), ConfState: md.GetConfState(), Snapshot: in.SnapshotFile}
	r.rebase(base)
	r.log.reset(base)
	r.snap.bytes, r.snap.lastIndex = 0, base.Index
	r.lastHandover = handover{}
	a.Base, a.ResetLog, a.NeedSync = new(base), true, true
	if r.meta != nil {
		r.w.out.Map = r.meta.Map()
	}
	r.w.counters.SnapshotsInstalled++
	r.w.log(levelInfo, r, "snapshot installed", "index", base.Index, "term", base.Term)
}
