package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/mortise-lock/mortise/node/logstore"
)

func folder(t *testing.T, fs vfs.FS) *Folder {
	t.Helper()
	f, err := Open("snapshots", fs)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func content(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func put(f *Folder, name string, index uint64, b []byte) (int64, error) {
	w, err := f.Create(name, 7, index)
	if err != nil {
		return 0, err
	}
	defer w.Abort()
	for len(b) > 0 {
		n := min(len(b), 1000)
		if _, err := w.Write(b[:n]); err != nil {
			return 0, err
		}
		b = b[n:]
	}
	return w.Commit()
}

func get(f *Folder, name string) ([]byte, error) {
	r, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(r)
	if e := r.Close(); err == nil {
		err = e
	}
	return b, err
}

func TestWriteReadSendReceive(t *testing.T) {
	f, peer := folder(t, vfs.NewMem()), folder(t, vfs.NewMem())
	rng := rand.New(rand.NewPCG(1, 1))
	for i, n := range []int{0, 1, 999, 64 << 10, 300_000} {
		name, want := fmt.Sprintf("7-1-%d.snap", i), content(rng, n)
		size, err := put(f, name, uint64(i), want)
		if err != nil || size != int64(n+headerLen+trailerLen) {
			t.Fatalf("%d bytes: size %d, %v", n, size, err)
		}
		r, err := f.Open(name)
		if err != nil || r.Shard != 7 || r.Index != uint64(i) || r.Size != size {
			t.Fatalf("%d bytes: %+v, %v", n, r, err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes: read %d, %v", n, len(got), err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		raw, err := f.OpenFile(name)
		if err != nil || raw.Size() != size {
			t.Fatal(err)
		}
		in, err := peer.Receive("in-"+name, 7, uint64(i))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(in, raw); err != nil {
			t.Fatal(err)
		}
		if err := raw.Close(); err != nil {
			t.Fatal(err)
		}
		if got, err := in.Commit(); err != nil || got != size {
			t.Fatalf("received %d of %d, %v", got, size, err)
		}
		if got, err := get(peer, "in-"+name); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("received %d bytes, %v", len(got), err)
		}
	}
}

func TestReceiveRefuses(t *testing.T) {
	f := folder(t, vfs.NewMem())
	if _, err := put(f, "a.snap", 5, []byte("state")); err != nil {
		t.Fatal(err)
	}
	raw, err := f.OpenFile("a.snap")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(raw)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		index uint64
		bytes []byte
	}{
		"wrong index": {6, b},
		"cut":         {5, b[:len(b)-1]},
		"longer":      {5, append(bytes.Clone(b), 0)},
		"empty":       {5, nil},
	} {
		in, err := f.Receive("b.snap", 7, c.index)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.Write(c.bytes); err != nil {
			t.Fatal(err)
		}
		if _, err := in.Commit(); !errors.Is(err, logstore.ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
		if _, err := in.Write(b); err == nil {
			t.Errorf("%s: written after Commit", name)
		}
	}
	if all, err := f.fs.List(f.dir); err != nil || len(all) != 1 {
		t.Fatalf("left behind: %v, %v", all, err)
	}
}

func TestEveryBitCounts(t *testing.T) {
	mem := vfs.NewMem()
	f := folder(t, mem)
	if _, err := put(f, "a.snap", 5, []byte("some state")); err != nil {
		t.Fatal(err)
	}
	b, err := mem.UnsafeGetFileDataBuffer("snapshots/a.snap")
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if _, err := f.Open("a.snap"); !errors.Is(err, logstore.ErrCorrupt) {
				t.Fatalf("byte %d bit %d: %v, want ErrCorrupt", i, bit, err)
			}
			b[i] ^= 1 << bit
		}
	}
	if _, err := f.Open("b.snap"); !errors.Is(err, logstore.ErrCorrupt) || !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("missing file: %v", err)
	}
}

func TestNames(t *testing.T) {
	f := folder(t, vfs.NewMem())
	for _, name := range []string{"", ".snap", "a", "../a.snap", "a/b.snap", "a.snap.tmp", ".a.snap", "a\x00.snap", "ä.snap", string(bytes.Repeat([]byte("a"), 300)) + ".snap"} {
		_, e1 := f.Create(name, 1, 1)
		_, e2 := f.Receive(name, 1, 1)
		_, e3 := f.Open(name)
		_, e4 := f.OpenFile(name)
		for _, err := range []error{e1, e2, e3, e4, f.Remove(name)} {
			if !errors.Is(err, ErrName) {
				t.Errorf("%q: %v, want ErrName", name, err)
			}
		}
	}
}

func TestCollect(t *testing.T) {
	mem := vfs.NewMem()
	f := folder(t, mem)
	for _, name := range []string{"a.snap", "b.snap", "c.snap"} {
		if _, err := put(f, name, 1, []byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Create("d.snap", 1, 1); err != nil { // left over, as after a crash
		t.Fatal(err)
	}
	f = folder(t, mem)
	mine, err := f.Create("e.snap", 1, 1) // of this process
	if err != nil {
		t.Fatal(err)
	}
	other, err := mem.Create("snapshots/README", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := f.Collect(map[string]bool{"b.snap": true, "z.snap": true}); n != 0 || !errors.Is(err, logstore.ErrCorrupt) {
		t.Fatalf("a missing file: %d removed, %v", n, err)
	}
	if n, err := f.Collect(map[string]bool{"b.snap": true}); err != nil || n != 3 {
		t.Fatalf("%d removed, %v", n, err)
	}
	if _, err := mine.Commit(); err != nil {
		t.Fatal(err)
	}
	names, err := f.Names()
	if err != nil || fmt.Sprint(names) != "[b.snap e.snap]" {
		t.Fatalf("left %v, %v", names, err)
	}
	if all, err := mem.List("snapshots"); err != nil || len(all) != 3 {
		t.Fatalf("left %v, %v", all, err)
	}
	for range 2 {
		if err := f.Remove("b.snap"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCrashClones crashes at every operation on files: a committed file is
// whole; one that was not committed is whole, absent, or the one before it.
func TestCrashClones(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	old, fresh := content(rng, 5000), content(rng, 20_000)
	for seed := range uint64(150) {
		mem := vfs.NewCrashableMem()
		if _, err := put(folder(t, mem), "a.snap", 1, old); err != nil {
			t.Fatal(err)
		}
		var clones []*vfs.MemFS
		rng := rand.New(rand.NewPCG(seed, 3))
		at := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				clones = append(clones, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng}))
			}
			return nil
		})
		if _, err := put(folder(t, errorfs.Wrap(mem, at)), "a.snap", 2, fresh); err != nil {
			t.Fatal(err)
		}
		for i, c := range append(clones, mem.CrashClone(vfs.CrashCloneCfg{})) {
			f := folder(t, c)
			if _, err := f.Collect(map[string]bool{"a.snap": true}); err != nil {
				t.Fatalf("seed %d, crash %d: %v", seed, i, err)
			}
			got, err := get(f, "a.snap")
			if err != nil || !bytes.Equal(got, fresh) && (i == len(clones) || !bytes.Equal(got, old)) {
				t.Fatalf("seed %d, crash %d of %d: %d bytes, %v", seed, i, len(clones), len(got), err)
			}
			if all, err := c.List("snapshots"); err != nil || len(all) != 1 {
				t.Fatalf("seed %d, crash %d: left %v, %v", seed, i, all, err)
			}
		}
	}
}

// TestFailures fails each operation in turn, also with a full disk. Nothing
// half done may be readable, and the next try succeeds.
func TestFailures(t *testing.T) {
	for _, cause := range []error{errorfs.ErrInjected, syscall.ENOSPC} {
		failed := 0
		for i := 0; ; i++ {
			mem := vfs.NewMem()
			ops, syncs := 0, false
			inj := errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpRemove {
					return nil
				}
				if ops++; ops == i+1 {
					syncs = op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData
					return cause
				}
				return nil
			})
			f, err := Open("snapshots", errorfs.Wrap(mem, inj))
			if err == nil {
				_, err = put(f, "a.snap", 1, make([]byte, 200_000))
			}
			if err == nil && ops <= i {
				break // all operations were fine
			}
			failed++
			if err != nil && !errors.Is(err, cause) {
				t.Fatalf("operation %d: %v, want the cause %v", i, err, cause)
			}
			if err != nil && syncs && !errors.Is(err, ErrSync) {
				t.Fatalf("operation %d: %v, want ErrSync", i, err)
			}
			f = folder(t, mem)
			if _, err := put(f, "b.snap", 1, make([]byte, 200_000)); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Collect(map[string]bool{"b.snap": true}); err != nil {
				t.Fatal(err)
			}
		}
		if failed < 5 {
			t.Fatalf("only %d operations failed", failed)
		}
	}
}
