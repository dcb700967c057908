package disk

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/node/logstore/mem"
)

// faulty runs a history over a file system that fails, cuts the power, and
// checks what survived: at least all that was acknowledged.
func faulty(t *testing.T, seed uint64, cause error, when func(errorfs.Op) bool) (failed bool) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 7))
	fs, h, a := vfs.NewCrashableMem(), newHistory(rng), newAcks()
	var armed atomic.Bool
	s, err := Open(testOptions(errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if armed.Load() && when(op) {
			return cause
		}
		return nil
	})), a))
	if err != nil {
		t.Fatal(err)
	}
	mustLoad(t, s)
	armed.Store(true)
	var submits [][]logstore.Append
	steps := 0
	for range 60 {
		steps1 := h.submit()
		steps1[len(steps1)-1].NeedSync = true
		submits = append(submits, steps1)
		s.Submit(steps1)
		if steps += len(steps1); rng.IntN(3) == 0 && a.wait(steps) != nil {
			break
		}
	}
	fatal := a.wait(steps)
	for range 5 { // to a dead store, or not
		submits = append(submits, h.submit())
		s.Submit(submits[len(submits)-1])
	}
	closed := s.Close()
	if (fatal != nil) != (closed != nil) && fatal != nil {
		t.Fatalf("OnFatal said %v, Close %v", fatal, closed)
	}
	if fatal == nil && closed == nil {
		return false
	}
	a.mu.Lock()
	if len(a.fatal) > 1 || a.afterFatal > 0 {
		t.Fatalf("OnFatal %d times, %d reports after it", len(a.fatal), a.afterFatal)
	}
	acked := len(a.steps)
	a.mu.Unlock()
	why := fatal
	if why == nil {
		why = closed
	}
	if !errors.Is(why, cause) {
		t.Fatalf("the reason is %v, want one that wraps %v", why, cause)
	}
	if errors.Is(cause, syscall.ENOSPC) && (!errors.Is(why, ErrNoSpace) || !strings.Contains(why.Error(), "free some space")) {
		t.Fatalf("a full disk is reported as %v", why)
	}

	// Power cut; the disk is well again.
	s2, err := Open(testOptions(fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng}), newAcks()))
	if err != nil {
		t.Fatal(err)
	}
	after := mustLoad(t, s2)
	mustClose(t, s2)
	model, n := mem.New(nil), 0
	for i := 0; ; i++ {
		if n >= acked && same(mustLoad(t, model), after) == nil {
			return true
		}
		if i == len(submits) {
			t.Fatalf("seed %d: what survived is no prefix with the %d acknowledged steps", seed, acked)
		}
		model.Submit(submits[i])
		model.Sync(-1)
		n += len(submits[i])
	}
}

// once fails the n-th operation that pred accepts, and no later one.
func once(n int32, pred func(errorfs.Op) bool) func(errorfs.Op) bool {
	var left atomic.Int32
	left.Store(n)
	return func(op errorfs.Op) bool { return pred(op) && left.Add(-1) == 0 }
}

func isSync(op errorfs.Op) bool {
	return (op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncTo) && strings.HasSuffix(op.Path, ".log")
}

func isWrite(op errorfs.Op) bool {
	return op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpRemove && op.Kind != errorfs.OpFileClose
}

// TestSyncFailsOnce: an fsync fails once and the next ones succeed. The first
// failure ends the store.
func TestSyncFailsOnce(t *testing.T) {
	for n := range int32(12) {
		if !faulty(t, uint64(n), errorfs.ErrInjected, once(n+1, isSync)) {
			t.Fatalf("sync %d failed but the store went on", n+1)
		}
	}
}

// TestEveryOperationFails fails the n-th of all writing operations, once.
func TestEveryOperationFails(t *testing.T) {
	failed := 0
	for n := range int32(80) {
		if faulty(t, uint64(n), errorfs.ErrInjected, once(n+1, isWrite)) {
			failed++
		}
	}
	if failed < 40 {
		t.Fatalf("only %d of 80 failures were noticed", failed)
	}
}

// TestDiskFull: from some operation on, nothing can be written.
func TestDiskFull(t *testing.T) {
	for n := range int32(20) {
		var count atomic.Int32
		if !faulty(t, uint64(n), syscall.ENOSPC, func(op errorfs.Op) bool {
			return (op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpCreate) && count.Add(1) > n
		}) {
			t.Fatal("the disk was full but the store went on")
		}
	}
}

// TestOpenFails fails each operation of Open: an error, never a store, a panic
// or a wait without end.
func TestOpenFails(t *testing.T) {
	for _, existing := range []bool{false, true} {
		failed := 0
		for n := int32(1); ; n++ {
			fs := vfs.NewMem()
			if existing {
				s := mustOpen(t, fs, newAcks())
				mustLoad(t, s)
				s.Submit(newHistory(rand.New(rand.NewPCG(1, 1))).submit())
				mustClose(t, s)
			}
			var hit atomic.Bool
			fail := once(n, isWrite)
			a := newAcks()
			s, err := Open(testOptions(errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if fail(op) {
					hit.Store(true)
					return errorfs.ErrInjected
				}
				return nil
			})), a))
			if err == nil {
				_ = s.Close()
				if !hit.Load() {
					break
				}
				continue
			}
			failed++
			if len(a.fatal) > 0 {
				t.Fatalf("operation %d: OnFatal from within Open", n)
			}
			if !errors.Is(err, errorfs.ErrInjected) && !strings.Contains(err.Error(), errorfs.ErrInjected.Error()) {
				t.Fatalf("operation %d: %v", n, err)
			}
		}
		if failed < 10 {
			t.Fatalf("only %d operations of Open failed", failed)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	o := Options{Dir: filepath.Join(dir, "a"), MemTableSize: 256 << 10}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(o); !errors.Is(err, ErrInUse) {
		t.Errorf("second Open: %v, want ErrInUse", err)
	}
	if _, ok := s.Identity(); ok {
		t.Error("a new directory has an identity")
	}
	id := Identity{ClusterID: "c1", NodeID: 3}
	for range 2 {
		if err := s.PutIdentity(id); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.PutMeta("map", []byte("m")); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	if s, err = Open(o); err != nil {
		t.Fatal(err)
	}
	if got, ok := s.Identity(); !ok || got.ClusterID != "c1" || got.NodeID != 3 || got.Format != Format {
		t.Errorf("identity %+v", got)
	}
	if m, err := s.Meta("map"); err != nil || string(m) != "m" {
		t.Errorf("meta %q, %v", m, err)
	}
	if m, err := s.Meta("other"); err != nil || m != nil {
		t.Errorf("meta %q, %v", m, err)
	}
	for _, c := range []struct {
		id   Identity
		want string
	}{{Identity{ClusterID: "c2", NodeID: 3}, "of cluster c1, not c2"}, {Identity{ClusterID: "c1", NodeID: 4}, "of node 3, not 4"}} {
		for _, err := range []error{s.CheckIdentity(c.id), s.PutIdentity(c.id)} {
			if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), o.Dir) {
				t.Errorf("%v, want ErrForeign, %q and the directory", err, c.want)
			}
		}
	}
	if err := s.CheckIdentity(Identity{ClusterID: "c1"}); err != nil {
		t.Error(err)
	}
	// As a newer version would leave it.
	if err := s.set(keyFormat, appendNumber(nil, Format+1)); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	if _, err := Open(o); !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), "run that version or a newer one") {
		t.Errorf("newer format: %v, want ErrNewer", err)
	}
	if _, err := Open(Options{}); err == nil {
		t.Error("opened without a directory")
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: file}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file as directory: %v", err)
	}
	for _, cause := range []error{syscall.EACCES, syscall.EROFS} {
		ro := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if isWrite(op) {
				return &os.PathError{Op: "open", Path: op.Path, Err: cause}
			}
			return nil
		}))
		if _, err := Open(testOptions(ro, newAcks())); !errors.Is(err, ErrNotWritable) {
			t.Errorf("%v, want ErrNotWritable", err)
		}
	}
}

// TestInvalidStep: nothing of a step that cannot be is stored, and nothing
// after it.
func TestInvalidStep(t *testing.T) {
	fs, a := vfs.NewMem(), newAcks()
	s := mustOpen(t, fs, a)
	mustLoad(t, s)
	h := newHistory(rand.New(rand.NewPCG(4, 4)))
	good := h.step(1)
	good.NeedSync = true
	s.Submit([]logstore.Append{good})
	if err := a.wait(1); err != nil {
		t.Fatal(err)
	}
	s.Submit([]logstore.Append{{Shard: 1, Replica: good.Replica, HardState: &logstore.HardState{Term: 9, Commit: 99}, NeedSync: true}})
	if err := a.wait(2); !errors.Is(err, logstore.ErrInvalid) {
		t.Fatalf("%v, want ErrInvalid", err)
	}
	if err := s.Close(); !errors.Is(err, logstore.ErrInvalid) {
		t.Fatalf("Close: %v, want ErrInvalid", err)
	}
	s, err := Open(testOptions(vfs.NewMem(), a))
	if err != nil {
		t.Fatal(err)
	}
	s.Submit([]logstore.Append{good}) // before Load
	if !errors.Is(s.Failed(), logstore.ErrInvalid) {
		t.Fatalf("%v, want ErrInvalid", s.Failed())
	}
}

func TestSpace(t *testing.T) {
	fs := vfs.NewMem()
	s := mustOpen(t, fs, newAcks())
	defer mustClose(t, s)
	if s.LowOnSpace() {
		t.Error("low on space although unknown")
	}
	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: defaultLowSpace - 1, TotalBytes: 1 << 40})
	s.space.at = time.Time{}
	if free, err := s.DiskFree(); err != nil || free != defaultLowSpace-1 || !s.LowOnSpace() {
		t.Errorf("free %d, %v, low %v", free, err, s.LowOnSpace())
	}
	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: defaultLowSpace, TotalBytes: 1 << 40})
	s.space.at = time.Time{}
	if s.LowOnSpace() {
		t.Error("low on space with enough of it")
	}
}

// TestSlowDisk: a sync that hangs is told of while it hangs.
func TestSlowDisk(t *testing.T) {
	slow, release := make(chan time.Duration, 100), make(chan struct{})
	var hang atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if hang.Load() && isSync(op) {
			<-release
		}
		return nil
	}))
	a := newAcks()
	o := testOptions(fs, a)
	o.SlowDisk = time.Millisecond
	o.OnDiskSlow = func(d time.Duration) {
		select {
		case slow <- d:
		default:
		}
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	mustLoad(t, s)
	hang.Store(true)
	step := newHistory(rand.New(rand.NewPCG(4, 4))).step(1)
	step.NeedSync = true
	s.Submit([]logstore.Append{step})
	<-slow
	if st := s.Stats(); st.Waiting == 0 || st.SlowOps == 0 {
		t.Errorf("stats %+v", st)
	}
	close(release)
	if err := a.wait(1); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
}
