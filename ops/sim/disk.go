package sim

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/node/logstore/mem"
	"github.com/mortise-lock/mortise/node/snapshot"
	"github.com/mortise-lock/mortise/node/worker"
)

// disk is what survives a node's process: the model of the log store, and the
// real snapshot folder on a file system that forgets what was not synced.
type disk struct {
	n     *node
	store *mem.Store
	fs    *vfs.MemFS
	files *snapshot.Folder

	syncing bool
	stuck   bool // syncs don't end until it is freed
	ready   bool // a sync ended while stuck
	batch   int
	extra   Time // added to every sync
	failing bool // the next sync fails
	low     bool // nearly full: new work is refused
	full    bool // snapshots can't be written
	// damage, if set, is done to what is read at the next start.
	damage func(states []logstore.ReplicaState) (what string)
}

const snapDir = "/snapshots"

func newDisk(n *node) *disk {
	d := &disk{n: n, fs: vfs.NewCrashableMem()}
	d.store = mem.New(nil)
	d.open()
	return d
}

func (d *disk) open() {
	var err error
	if d.files, err = snapshot.Open(snapDir, d.fs); err != nil {
		panic(err)
	}
	d.store.SetOnSynced(d.n.synced)
}

// crash loses what was not synced; of what was submitted to the log, a random
// part may have reached the disk.
func (d *disk) crash(rng *rand.Rand) {
	d.syncing, d.ready = false, false
	d.store.Crash(rng)
	d.fs = d.fs.CrashClone(vfs.CrashCloneCfg{})
	d.open()
}

// submit queues appends; one sync at a time serves all shards.
func (d *disk) submit(steps []logstore.Append) {
	d.store.Submit(steps)
	d.sync()
}

func (d *disk) sync() {
	if d.syncing || !d.store.NeedSync() {
		return
	}
	w := d.n.w
	d.syncing, d.batch = true, d.store.Pending()
	t := w.cfg.Sync/2 + w.upTo(w.cfg.Sync) + d.extra
	if w.chance(0.001) {
		t += w.upTo(300 * ms)
	}
	inc := d.n.p.inc
	w.after(t, func() {
		if d.n.p.inc == inc {
			d.synced()
		}
	})
}

func (d *disk) synced() {
	if d.stuck {
		d.ready = true
		return
	}
	if d.failing {
		d.failing = false
		d.n.w.count(FaultSyncFails)
		d.n.fatal(errors.New("sync: input/output error"))
		return
	}
	d.syncing, d.ready = false, false
	// The process hears of it when it runs.
	n := d.batch
	d.n.p.whenAwake(false, func() {
		d.store.Sync(n)
		d.sync()
	})
}

// unstick lets a stuck sync end.
func (d *disk) unstick() {
	d.stuck = false
	if d.ready && d.n.p.up {
		d.synced()
	}
}

// load reads what is durable, through the damage that a fault may do.
func (d *disk) load() ([]logstore.ReplicaState, error) {
	states, err := d.store.Load()
	if err != nil {
		return nil, err
	}
	if d.damage != nil {
		f := d.damage
		d.damage = nil
		what := f(states)
		d.n.w.note(d.n.p, "read back damaged: "+what)
		for i := range states {
			if err := logstore.Check(&states[i]); err != nil {
				return nil, err
			}
		}
	}
	return states, nil
}

var errFull = errors.New("no space left on device")

// writeSnapshot writes a captured state, a while after it was captured.
func (l *loop) writeSnapshot(s worker.WriteSnapshot) {
	n := l.n
	inc := n.p.inc
	n.w.after(ms+n.w.upTo(n.w.cfg.SnapshotTime), func() {
		if n.p.inc != inc || !n.p.up {
			s.Snapshot.Close()
			return
		}
		n.p.whenAwake(false, func() {
			defer s.Snapshot.Close()
			done := worker.SnapshotWritten{Shard: s.Shard, File: s.File, Index: s.Index}
			if n.disk.full {
				done.Err = errFull
			} else {
				done.Bytes, done.Err = n.putSnapshot(&s)
				n.w.stats.Snapshots++
			}
			l.in.SnapshotsWritten = append(l.in.SnapshotsWritten, done)
			l.wake()
		})
	})
}

func (n *node) putSnapshot(s *worker.WriteSnapshot) (int64, error) {
	f, err := n.disk.files.Create(s.File, s.Shard, s.Index)
	if err != nil {
		return 0, err
	}
	if _, err := s.Snapshot.WriteSnapshot(f); err != nil {
		f.Abort()
		return 0, err
	}
	return f.Commit()
}

// snapTransfer is a snapshot on its way to a peer.
type snapTransfer struct {
	from, to *node
	inc      uint64 // of the sender
	toInc    uint64
	m        worker.RaftMessage
	content  []byte
	over     bool
}

func (t *snapTransfer) done(err error) {
	if t.over {
		return
	}
	t.over = true
	if t.from.p.inc != t.inc || !t.from.p.up {
		return
	}
	t.from.p.whenAwake(false, func() {
		l := t.from.loopOf(t.m.Shard)
		l.in.SnapshotsSent = append(l.in.SnapshotsSent, worker.SnapshotSent{Shard: t.m.Shard, Replica: t.m.Msg.GetTo(), Err: err})
		l.wake()
	})
}

// sendSnapshot streams a file to a peer.
func (n *node) sendSnapshot(m worker.RaftMessage) {
	w := n.w
	to := w.nodes[m.Peer-1]
	t := &snapTransfer{from: n, to: to, inc: n.p.inc, m: m}
	t.m.Peer = n.id
	f, err := n.disk.files.OpenFile(m.SnapshotFile)
	if err == nil {
		t.content, err = io.ReadAll(f)
		f.Close()
	}
	if err != nil {
		w.violate("W10", fmt.Sprintf("node %d shard %d sends a snapshot that can't be read: %v", n.id, m.Shard, err))
		return
	}
	t.toInc = to.p.inc
	w.after(w.net.delay(n.p, to.p)+ms+w.upTo(w.cfg.SnapshotTime), func() { t.arrive(w.now + 13*second) })
}

// arrive lets the last frame wait for the end of a partition, like any other
// stream between nodes.
func (t *snapTransfer) arrive(until Time) {
	w := t.from.w
	switch {
	case t.from.p.inc != t.inc:
	case w.net.isCut(t.from.p.id, t.to.p.id) && w.now < until:
		w.after(100*ms+w.upTo(100*ms), func() { t.arrive(until) })
	case w.now >= until || !t.to.p.up || t.to.p.inc != t.toInc:
		t.done(errors.New("the peer went away"))
	default:
		t.to.p.whenAwake(false, t.receive)
		// A receiver that stands still is found dead after a while.
		w.after(until-w.now, func() { t.done(errors.New("the peer is silent")) })
	}
}

func (t *snapTransfer) receive() {
	n := t.to
	w := n.w
	if t.over {
		return
	}
	content := t.content
	damaged := w.cfg.SnapDamage > 0 && w.chance(w.cfg.SnapDamage)
	if damaged {
		w.count(FaultDamagedTransfer)
		content = slices.Clone(content)
		content[w.rng.IntN(len(content))] ^= byte(1 << w.rng.IntN(8))
	}
	n.received++
	index := t.m.Msg.GetSnapshot().GetMetadata().GetIndex()
	name := fmt.Sprintf("%d-%d-%d-in%d-%d.snap", t.m.Shard, t.m.Msg.GetTo(), index, n.p.inc, n.received)
	f, err := n.disk.files.Receive(name, t.m.Shard, index)
	if err == nil && n.disk.full {
		f.Abort()
		err = errFull
	}
	if err == nil {
		if _, err = f.Write(content); err == nil {
			_, err = f.Commit()
		} else {
			f.Abort()
		}
	}
	if err == nil && damaged {
		w.violate("corruption", "a snapshot that was damaged on its way was taken for good")
	}
	if err != nil {
		t.done(err)
		return
	}
	m := t.m
	m.SnapshotFile = name
	if m.Restored, m.RestoredMap, err = n.restore(m.Shard, name); err != nil {
		w.violate("snapshot", fmt.Sprintf("node %d shard %d can't restore a received snapshot: %v", n.id, m.Shard, err))
		return
	}
	w.stats.Installed++
	l := n.loopOf(m.Shard)
	l.in.Messages = append(l.in.Messages, m)
	l.wake()
	t.done(nil)
}

// flip changes one bit of a snapshot file.
func (d *disk) flip(name string, x uint64) {
	path := snapDir + "/" + name
	f, err := d.fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		panic(err)
	}
	at := int64(x % uint64(st.Size()))
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		panic(err)
	}
	b[0] ^= 1 << (x >> 40 % 8)
	if _, err := f.WriteAt(b[:], at); err != nil {
		panic(err)
	}
}
