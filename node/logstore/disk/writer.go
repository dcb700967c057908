package disk

import (
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/mortise-lock/mortise/node/logstore"
)

// maxUnsynced is how many steps without NeedSync may gather before they are
// synced and reported nevertheless.
const maxUnsynced = 1 << 14

// queued is a step that waits for the writer.
type queued struct {
	step logstore.Append
	at   time.Time
}

// Submit queues steps. It does not wait for the disk. After a failure or Close
// it does nothing. A step that cannot be (logstore.ErrInvalid) makes the store
// fail.
func (s *Store) Submit(steps []logstore.Append) {
	if len(steps) == 0 {
		return
	}
	if !s.loaded.Load() {
		s.fail(fmt.Errorf("%w: Submit before Load", logstore.ErrInvalid))
		return
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.Failed() != nil {
		return
	}
	for i := range steps {
		s.queue = append(s.queue, queued{steps[i], now})
	}
	s.wake.Broadcast()
}

// write is the writer goroutine.
func (s *Store) write() {
	defer close(s.writerDone)
	err := func() (err error) {
		defer s.recovered(&err)
		return s.writeAll()
	}()
	if err != nil {
		s.fail(err)
	}
}

// writeAll writes batches, waits for their syncs, and reports what is durable,
// until Close or failure. One batch is on its way at a time, so steps that come
// during a sync share the next one, and a failed sync is seen before any later
// one begins. Whole steps only: a step larger than maxBatchBytes gets a batch
// of its own.
func (s *Store) writeAll() error {
	var (
		enc encoder
		// lazy are steps that are written but wait for somebody else's sync.
		lazy   []logstore.Append
		oldest time.Time
	)
	for {
		s.mu.Lock()
		for s.Failed() == nil && len(s.queue) == 0 && !s.closing {
			s.wake.Wait()
		}
		if s.Failed() != nil {
			s.mu.Unlock()
			return nil
		}
		closing := s.closing && len(s.queue) == 0
		steps, at := s.take()
		s.mu.Unlock()

		if closing && len(lazy) == 0 {
			return nil
		}
		sync := closing || len(lazy)+len(steps) > maxUnsynced
		size := 0
		for i := range steps {
			size += stepSize(&steps[i])
			sync = sync || steps[i].NeedSync
		}
		b := s.db.NewBatchWithSize(size + 256)
		for i := range steps {
			if err := s.stepInto(b, &enc, &steps[i]); err != nil {
				return err
			}
		}
		s.stats.seq++
		enc.value = appendNumber(enc.value[:0], s.stats.seq)
		if err := b.Set(keySeq, seal(keySeq, enc.value), nil); err != nil {
			return err
		}
		s.stats.bytes.Add(uint64(b.Len()))
		s.stats.steps.Add(uint64(len(steps)))
		if len(lazy) == 0 {
			oldest = at
		}
		lazy = append(lazy, steps...)
		if !sync {
			if err := s.db.Apply(b, pebble.NoSync); err != nil {
				return err
			}
			if err := b.Close(); err != nil {
				return err
			}
			continue
		}
		if err := s.sync(b, oldest); err != nil {
			return err
		}
		if s.opts.OnSynced != nil {
			s.opts.OnSynced(lazy)
		}
		lazy = nil
		if err := b.Close(); err != nil {
			return err
		}
	}
}

// sync writes a batch and waits until it and all before it are durable. oldest
// is when the first of the steps concerned was submitted.
func (s *Store) sync(b *pebble.Batch, oldest time.Time) error {
	begun := time.Now()
	s.stats.waiting.Store(int64(oldest.Sub(s.stats.start)) + 1)
	if err := s.db.ApplyNoSyncWait(b, pebble.Sync); err != nil {
		return err
	}
	if err := b.SyncWait(); err != nil {
		return fmt.Errorf("the log could not be synced to disk: %w", err)
	}
	if err := s.Failed(); err != nil {
		return err
	}
	s.stats.synced(time.Since(begun))
	s.marks.durable.Store(s.stats.seq)
	s.stats.waiting.Store(0)
	return nil
}

// take removes up to a batch of steps from the queue. Called with mu held.
func (s *Store) take() (steps []logstore.Append, oldest time.Time) {
	n, size := 0, 0
	for n < len(s.queue) && (n == 0 || size < maxBatchBytes) {
		size += stepSize(&s.queue[n].step)
		n++
	}
	if n > 1 && size > maxBatchBytes {
		n-- // the last one did not fit
	}
	if n == 0 {
		return nil, oldest
	}
	oldest = s.queue[0].at
	steps = make([]logstore.Append, n)
	for i := range steps {
		steps[i] = s.queue[i].step
	}
	rest := copy(s.queue, s.queue[n:])
	clear(s.queue[rest:])
	s.queue = s.queue[:rest]
	return steps, oldest
}

func (s *Store) stepInto(b *pebble.Batch, enc *encoder, a *logstore.Append) error {
	r := s.shards[a.Shard]
	p, err := r.step(a)
	if err != nil {
		return err
	}
	if err := enc.write(b, a, &p); err != nil {
		return err
	}
	if r == nil {
		r = new(replica)
		s.shards[a.Shard] = r
	}
	*r = p.next
	return nil
}

// Close writes and reports everything submitted, then closes. After a failure
// it does nothing: goroutines and the lock on the directory stay until the
// process ends, because Pebble cannot be closed safely then. The error is the
// failure, if there was one.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return nil
	}
	s.closing = true
	s.wake.Broadcast()
	s.mu.Unlock()
	close(s.marks.stop)
	for _, done := range []chan struct{}{s.writerDone, s.marks.done} {
		select {
		case <-done:
		case <-s.failure.happened:
		}
	}
	if err := s.Failed(); err != nil {
		return err
	}
	return s.guard(s.closePebble)
}

// closePebble leaves an empty WAL behind, so that all that is stored is under
// checksums whose absence would be noticed.
func (s *Store) closePebble() (err error) {
	keep := func(e error) {
		if err == nil && e != nil {
			err = s.explain(e)
		}
	}
	keep(s.db.Flush())
	if err == nil {
		keep(s.writeWatermark(s.stats.seq))
	}
	if s.Failed() != nil {
		return s.Failed()
	}
	s.dbGone.Lock() // for good
	keep(s.db.Close())
	keep(s.lock.Close())
	keep(s.health.Close())
	return err
}
