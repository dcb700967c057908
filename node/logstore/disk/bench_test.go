package disk

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
)

// BenchmarkSync is the figure to compare with: a write and a sync.
func BenchmarkSync(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "f"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	p := make([]byte, 400)
	for b.Loop() {
		if _, err := f.Write(p); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAppend appends entries of 300 bytes to shards that each wait for
// their last one: ns/op is per entry.
func BenchmarkAppend(b *testing.B) {
	for _, c := range []struct {
		name   string
		shards int
	}{{"shards=1", 1}, {"shards=16", 16}, {"shards=256", 256}} {
		b.Run(c.name, func(b *testing.B) {
			var mu sync.Mutex
			waiting := map[shard.ID]chan struct{}{}
			s, err := Open(Options{Dir: b.TempDir(), OnFatal: func(err error) { b.Error(err) }, OnSynced: func(steps []logstore.Append) {
				mu.Lock()
				defer mu.Unlock()
				for i := range steps {
					waiting[steps[i].Shard] <- struct{}{}
				}
			}})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := s.Load(); err != nil {
				b.Fatal(err)
			}
			data := make([]byte, 300)
			var wg sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for i := range c.shards {
				id, done := shard.ID(i), make(chan struct{}, 1)
				mu.Lock()
				waiting[id] = done
				mu.Unlock()
				wg.Go(func() {
					h := logstore.HardState{Term: 5, Commit: 10}
					s.Submit([]logstore.Append{{Shard: id, Replica: 1, NeedSync: true, HardState: &h, ResetLog: true,
						Base: &logstore.Base{Index: 10, Term: 5, ConfState: &raftpb.ConfState{}}}})
					<-done
					for n := range b.N / c.shards {
						index := uint64(11 + n)
						s.Submit([]logstore.Append{{Shard: id, Replica: 1, NeedSync: true,
							Entries: []*raftpb.Entry{{Index: &index, Term: new(uint64(5)), Data: data}}}})
						<-done
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			st := s.Stats()
			b.ReportMetric(float64(st.P50.Microseconds()), "p50-us")
			b.ReportMetric(float64(st.P99.Microseconds()), "p99-us")
			b.ReportMetric(float64(b.N)/float64(max(st.Syncs, 1)), "entries/sync")
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
