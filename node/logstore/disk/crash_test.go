package disk

import (
	"errors"
	"flag"
	"io"
	"maps"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/node/logstore/mem"
)

var (
	crashClones = flag.Int("crash-clones", 300, "how many crashes TestCrashClones goes through")
	crashSeed   = flag.Uint64("crash-seed", 1, "its seed")
)

// TestCrashClones crashes the machine at random points. After each crash the
// store holds exactly what some prefix of the submits adds up to, at least all
// that was acknowledged: so votes, entries, commit and base agree and nothing
// that a released response relied on is lost.
func TestCrashClones(t *testing.T) {
	rng := rand.New(rand.NewPCG(*crashSeed, 3))
	fs, h := vfs.NewCrashableMem(), newHistory(rng)
	var before []logstore.ReplicaState
	// Syncs take their time, so that crashes hit what is under way.
	slow := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSync {
			for range 100 {
				runtime.Gosched()
			}
		}
		return nil
	})
	lost, survived := 0, 0
	for round := range *crashClones {
		if round%50 == 0 {
			fs, before = vfs.NewCrashableMem(), nil
			h.resume(nil)
		}
		a := newAcks()
		s := mustOpen(t, errorfs.Wrap(fs, slow), a)
		got := mustLoad(t, s)
		if err := same(got, before); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		var submits [][]logstore.Append
		steps := 0
		for range rng.IntN(60) {
			submits = append(submits, h.submit())
			s.Submit(submits[len(submits)-1])
			steps += len(submits[len(submits)-1])
			if n := a.count(); rng.IntN(8) == 0 && n < steps {
				// Of the steps so far, the last that asks for a sync is acknowledged in time.
				for i, k := len(submits)-1, steps; i >= 0; i-- {
					k -= len(submits[i])
					if submits[i][0].NeedSync {
						if err := a.wait(k + 1); err != nil {
							t.Fatal(err)
						}
						break
					}
				}
			}
		}
		for range rng.IntN(500) {
			runtime.Gosched()
		}
		acked := a.count()
		crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
		mustClose(t, s)

		a2 := newAcks()
		s2, err := Open(testOptions(crashed, a2))
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		after := mustLoad(t, s2)
		mustClose(t, s2)
		model, n, found := clone(t, before), 0, -1
		for i := 0; ; i++ {
			if n >= acked && same(mustLoad(t, model), after) == nil {
				found = i
				break
			}
			if i == len(submits) {
				break
			}
			model.Submit(submits[i])
			model.Sync(-1)
			n += len(submits[i])
		}
		if found < 0 {
			t.Fatalf("round %d: what was found after the crash is no prefix of %d submits with at least the %d acknowledged steps", round, len(submits), acked)
		}
		lost += len(submits) - found
		if n > acked {
			survived++
		}
		fs, before = crashed, after
		h.resume(after)
	}
	t.Logf("%d submits lost, %d times more survived than was acknowledged", lost, survived)
}

// files lists the store's files with their contents.
func files(t *testing.T, fs vfs.FS) map[string][]byte {
	t.Helper()
	names, err := fs.List("data")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, n := range names {
		f, err := fs.Open("data/" + n)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		out[n] = b
	}
	return out
}

// write makes a memory file system out of contents.
func write(t *testing.T, files map[string][]byte) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewMem()
	if err := fs.MkdirAll("data", 0o700); err != nil {
		t.Fatal(err)
	}
	for n, b := range files {
		f, err := fs.Create("data/"+n, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return fs
}

// TestBitFlips damages the files of a store that was closed: either the start
// is refused, or nothing is missing.
func TestBitFlips(t *testing.T) {
	fs, h := vfs.NewMem(), newHistory(rand.New(rand.NewPCG(5, 5)))
	h.maxData = 100
	for range 3 {
		s := mustOpen(t, fs, newAcks())
		mustLoad(t, s)
		for range 150 {
			s.Submit(h.submit())
		}
		mustClose(t, s)
	}
	s := mustOpen(t, fs, newAcks())
	want := mustLoad(t, s)
	mustClose(t, s)
	flip(t, files(t, fs), 10, func(_ string, _ int, got []logstore.ReplicaState) error { return same(got, want) })
}

// TestBitFlipsAfterKill damages the files of a store that was killed. The last
// block of its WAL may be taken for torn by the crash, because nothing after it
// says that it was synced; all else is noticed.
func TestBitFlipsAfterKill(t *testing.T) {
	const block = 32 << 10
	fs, h, a := vfs.NewCrashableMem(), newHistory(rand.New(rand.NewPCG(8, 5))), newAcks()
	h.maxData = 100
	s := mustOpen(t, fs, a)
	model := mem.New(nil)
	states := [][]logstore.ReplicaState{mustLoad(t, s)}
	n := 0
	for range 400 {
		steps := h.submit()
		steps[0].NeedSync = true
		s.Submit(steps)
		n += len(steps)
		if err := a.wait(n); err != nil {
			t.Fatal(err)
		}
		model.Submit(steps)
		model.Sync(-1)
		states = append(states, mustLoad(t, model))
	}
	killed := fs.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	all := files(t, killed)
	flip(t, all, 12, func(name string, at int, got []logstore.ReplicaState) error {
		err := same(got, states[len(states)-1])
		if last := (len(all[name]) - 1) / block * block; err == nil || !strings.HasSuffix(name, ".log") || at < last {
			return err
		}
		for _, earlier := range states {
			if same(got, earlier) == nil {
				return nil
			}
		}
		return err
	})
}

// flip damages each file at up to n places, one at a time. A start that
// succeeds must find what right accepts.
func flip(t *testing.T, all map[string][]byte, n int, right func(name string, at int, got []logstore.ReplicaState) error) {
	t.Helper()
	rng := rand.New(rand.NewPCG(9, 5))
	refused, harmless := 0, 0
	for name, content := range all {
		for i := range n {
			if len(content) == 0 {
				break
			}
			b := append([]byte(nil), content...)
			at := rng.IntN(len(b))
			if i%3 == 0 {
				at = len(b) - 1 - rng.IntN(min(len(b), 200)) // ends deserve more
			}
			b[at] ^= 1 << rng.IntN(8)
			damaged := maps.Clone(all)
			damaged[name] = b
			s, err := Open(testOptions(write(t, damaged), newAcks()))
			if err != nil {
				refused++
				continue
			}
			got, err := s.Load()
			if err == nil {
				err = s.Failed()
			}
			switch {
			case err != nil:
				refused++
				if !errors.Is(err, logstore.ErrCorrupt) {
					t.Errorf("%s, byte %d of %d: %v, want ErrCorrupt", name, at, len(b), err)
				}
			case right(name, at, got) != nil:
				t.Errorf("%s, byte %d of %d: silently wrong: %v", name, at, len(b), right(name, at, got))
			default:
				harmless++
			}
			_ = s.Close()
		}
	}
	t.Logf("%d damages were refused, %d did no harm", refused, harmless)
	if refused == 0 {
		t.Error("nothing was refused")
	}
}

// TestLostFiles removes one file at a time.
func TestLostFiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 5))
	fs, h := vfs.NewMem(), newHistory(rng)
	s := mustOpen(t, fs, newAcks())
	mustLoad(t, s)
	for range 100 {
		s.Submit(h.submit())
	}
	mustClose(t, s)
	s = mustOpen(t, fs, newAcks())
	want := mustLoad(t, s)
	mustClose(t, s)
	all := files(t, fs)
	for name := range all {
		if name == watermarkFile {
			continue // a store may lose its second opinion
		}
		rest := map[string][]byte{}
		for n, b := range all {
			if n != name {
				rest[n] = b
			}
		}
		s, err := Open(testOptions(write(t, rest), newAcks()))
		if err != nil {
			continue
		}
		got, err := s.Load()
		if err == nil {
			if err := same(got, want); err != nil {
				t.Errorf("without %s: silently wrong: %v", name, err)
			}
		}
		_ = s.Close()
	}
}
