package host

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/mortise-lock/mortise/node/logstore/disk"
	"github.com/mortise-lock/mortise/node/snapshot"
	"github.com/mortise-lock/mortise/node/transport"
)

// filesOn is a node's view of its snapshot folder on a file system, and no more
// of a node.
func filesOn(t *testing.T, fs vfs.FS) (files, *atomic.Pointer[error]) {
	t.Helper()
	folder, err := snapshot.Open(snapshotFolder, fs)
	if err != nil {
		t.Fatal(err)
	}
	fatal := new(atomic.Pointer[error])
	n := &Node{cfg: Config{DataDir: "data", Store: disk.Options{FS: fs}, OnFatal: func(err error) { fatal.Store(&err) }},
		log: slog.New(slog.DiscardHandler), snapshots: folder, snapshotPace: transport.NewPacer(snapshotWriteRate, snapshotWriteBurst)}
	return files{folder, n}, fatal
}

func TestRoomForSnapshots(t *testing.T) {
	fs := vfs.NewMem()
	f, _ := filesOn(t, fs)
	if room, err := f.Room(); room != snapshot.MaxSize || err != nil {
		t.Errorf("a disk that does not tell: %d, %v", room, err)
	}
	for avail, want := range map[uint64]uint64{0: 0, diskReserve: 0, diskReserve + 5: 5, 1 << 50: snapshot.MaxSize} {
		fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: avail, TotalBytes: 1 << 50})
		if room, err := f.Room(); room != want || err != nil {
			t.Errorf("%d bytes available: room for %d, %v; want %d", avail, room, err, want)
		}
	}
}

// One that is written here and one that comes in share the rate, and end with
// their context.
func TestSnapshotWritesArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := filesOn(t, vfs.NewMem())
		in, err := f.Create(t.Context(), "7-1-9.snap", 7, 9)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Abort()
		const size = 8 << 20
		began := time.Now()
		done := make(chan error, 2)
		for _, w := range []io.Writer{in, paced{io.Discard, t.Context(), f.n.snapshotPace}} {
			go func() {
				n, err := w.Write(make([]byte, size))
				if n != size && err == nil {
					err = io.ErrShortWrite
				}
				done <- err
			}()
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if took, want := time.Since(began).Seconds(), float64(2*size-snapshotWriteBurst)/snapshotWriteRate; took < want-0.01 || took > want+0.01 {
			t.Errorf("took %.3f s, want %.3f", took, want)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var b bytes.Buffer
		if n, err := (paced{&b, ctx, f.n.snapshotPace}).Write(make([]byte, size)); n != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("wrote %d, %v after the end", n, err)
		}
	})
}

// A failed sync ends the node also when the snapshot comes from a peer.
func TestFailedSyncOfReceivedSnapshot(t *testing.T) {
	mem := vfs.NewMem()
	src, _ := filesOn(t, mem)
	w, err := src.Folder.Create("7-1-9.snap", 7, 9)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	r, _, err := src.Open("7-1-9.snap")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	var failing atomic.Bool
	f, fatal := filesOn(t, errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if failing.Load() && op.Kind == errorfs.OpFileSync {
			return errors.New("input/output error")
		}
		return nil
	})))
	for _, fail := range []bool{false, true} {
		failing.Store(fail)
		in, err := f.Create(t.Context(), "7-2-9.snap", 7, 9)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.Write(content); err != nil {
			t.Fatal(err)
		}
		if err := in.Commit(); errors.Is(err, snapshot.ErrSync) != fail {
			t.Errorf("failing %v: committed with %v", fail, err)
		}
		if got := fatal.Load(); (got != nil) != fail {
			t.Errorf("failing %v: the node was told %v", fail, got)
		}
	}
}
