package disk

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// statWindow is how far back sync latencies are looked at, in statSlots
	// slots of up to statSamples samples each.
	statWindow  = time.Minute
	statSlots   = 12
	statSamples = 256
	// spaceEvery is how old the answer about free space may be.
	spaceEvery = time.Second
)

// Stats are figures for metrics.
type Stats struct {
	// Syncs since Open, and the latency of those of the last minute, from handing
	// the batch to Pebble to the return of the sync. 0 when there were none.
	Syncs    uint64
	P50, P99 time.Duration
	// Steps written since Open, and BytesWritten to the WAL.
	Steps, BytesWritten uint64
	// Queued is how many steps wait for the writer.
	Queued int
	// Waiting is how long the oldest step in the sync under way has waited for
	// durability, 0 when none waits: it tells a stalled disk.
	Waiting time.Duration
	// SlowOps counts file operations longer than Options.SlowDisk, Stalls how
	// often Pebble made writes wait for background work.
	SlowOps, Stalls uint64
	// DiskUsage is the size of the store's files in bytes.
	DiskUsage uint64
}

type stats struct {
	seq     uint64 // last batch; the writer's
	steps   atomic.Uint64
	bytes   atomic.Uint64
	slow    atomic.Uint64
	stalls  atomic.Uint64
	start   time.Time
	waiting atomic.Int64 // when the oldest step in flight came, ns after start, +1; 0: none

	mu    sync.Mutex
	syncs uint64
	slots [statSlots]slot
}

// slot holds a reservoir of the samples of one twelfth of the window.
type slot struct {
	number  int64
	n       int
	samples []time.Duration
}

const slotLen = statWindow / statSlots

func (s *stats) synced(d time.Duration) {
	number := time.Now().UnixNano() / int64(slotLen)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.syncs++
	sl := &s.slots[number%statSlots]
	if sl.number != number {
		*sl = slot{number: number, samples: sl.samples[:0]}
	}
	sl.n++
	if len(sl.samples) < statSamples {
		sl.samples = append(sl.samples, d)
		return
	}
	// Every sample of the slot ends up here with about the same chance; a
	// multiplicative hash of the count is random enough for that.
	if i := int(uint64(sl.n) * 0x9e3779b97f4a7c15 >> 33 % uint64(sl.n)); i < statSamples {
		sl.samples[i] = d
	}
}

func (s *stats) latency() (syncs uint64, p50, p99 time.Duration) {
	now := time.Now().UnixNano() / int64(slotLen)
	s.mu.Lock()
	var all []time.Duration
	for i := range s.slots {
		if sl := &s.slots[i]; now-sl.number < statSlots {
			all = append(all, sl.samples...)
		}
	}
	syncs = s.syncs
	s.mu.Unlock()
	if len(all) == 0 {
		return syncs, 0, 0
	}
	slices.Sort(all)
	return syncs, all[len(all)/2], all[len(all)*99/100]
}

// Stats returns the figures. It reads no disk; after a failure the size of the
// files is 0.
func (s *Store) Stats() Stats {
	st := Stats{Steps: s.stats.steps.Load(), BytesWritten: s.stats.bytes.Load(), SlowOps: s.stats.slow.Load(), Stalls: s.stats.stalls.Load()}
	st.Syncs, st.P50, st.P99 = s.stats.latency()
	if at := s.stats.waiting.Load(); at != 0 {
		st.Waiting = max(0, time.Since(s.stats.start.Add(time.Duration(at))))
	}
	s.mu.Lock()
	st.Queued = len(s.queue)
	closed := s.closing
	s.mu.Unlock()
	// Close holds dbGone to the end; nobody waits for that here.
	if s.Failed() == nil && !closed && s.dbGone.TryRLock() {
		st.DiskUsage = s.db.Metrics().DiskSpaceUsage()
		s.dbGone.RUnlock()
	}
	return st
}

// space caches what the file system says about free space.
type space struct {
	mu    sync.Mutex
	at    time.Time
	usage vfs.DiskUsage
	err   error
}

// DiskFree returns the bytes that this process may still write to the disk of
// the data directory, at most a second old.
func (s *Store) DiskFree() (uint64, error) {
	sp := &s.space
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if now := time.Now(); sp.at.IsZero() || now.Sub(sp.at) >= spaceEvery {
		sp.at = now
		sp.usage, sp.err = s.opts.FS.GetDiskUsage(s.opts.Dir)
	}
	return sp.usage.AvailBytes, sp.err
}

// LowOnSpace tells whether less than Options.LowSpace is free: new work should
// be refused, while releases and expiries still go on. When the file system
// does not tell, it is false.
func (s *Store) LowOnSpace() bool {
	free, err := s.DiskFree()
	return err == nil && free < s.opts.LowSpace
}
