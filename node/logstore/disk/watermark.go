package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/mortise-lock/mortise/node/logstore"
)

const (
	watermarkFile   = "watermark"
	watermarkTmp    = "watermark.tmp"
	watermarkFormat = 1
	watermarkLen    = 13
)

// watermarks keeps the file that says which batch is known to be durable.
type watermarks struct {
	durable atomic.Uint64 // number of the last batch whose sync returned
	asked   chan struct{}
	stop    chan struct{}
	done    chan struct{}
}

// request asks for a new watermark. It never blocks: Pebble calls it.
func (w *watermarks) request() {
	select {
	case w.asked <- struct{}{}:
	default:
	}
}

func (s *Store) startWatermarks() {
	w := &s.marks
	w.stop, w.done = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(w.done)
		for {
			select {
			case <-w.stop:
				return
			case <-w.asked:
			}
			if s.Failed() != nil {
				return
			}
			if err := s.writeWatermark(w.durable.Load()); err != nil {
				s.fail(fmt.Errorf("the watermark could not be written: %w", err))
			}
		}
	}()
}

func (s *Store) writeWatermark(seq uint64) error {
	b := make([]byte, 4, watermarkLen)
	b = append(b, watermarkFormat)
	b = binary.LittleEndian.AppendUint64(b, seq)
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	path := func(name string) string { return s.fs.PathJoin(s.opts.Dir, name) }
	f, err := s.fs.Create(path(watermarkTmp), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	if err := s.fs.Rename(path(watermarkTmp), path(watermarkFile)); err != nil {
		return err
	}
	dir, err := s.fs.OpenDir(s.opts.Dir)
	if err != nil {
		return err
	}
	err = dir.Sync()
	if e := dir.Close(); err == nil {
		err = e
	}
	return err
}

// readWatermark returns 0 when there is no file yet.
func (s *Store) readWatermark() (uint64, error) {
	f, err := s.fs.Open(s.fs.PathJoin(s.opts.Dir, watermarkFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, watermarkLen+1))
	if err != nil {
		return 0, err
	}
	if len(b) != watermarkLen || binary.LittleEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli) {
		return 0, fmt.Errorf("%w: file %q: %w", logstore.ErrCorrupt, watermarkFile, errSum)
	}
	if b[4] > watermarkFormat {
		return 0, fmt.Errorf("%w: file %q has format %d", ErrNewer, watermarkFile, b[4])
	}
	return binary.LittleEndian.Uint64(b[5:]), nil
}

// checkWatermark compares the file with the store.
func (s *Store) checkWatermark(mark uint64) error {
	seq, _, err := s.getNumber(keySeq)
	if err != nil {
		return err
	}
	if seq < mark {
		return fmt.Errorf("%w: it ends at batch %d, but batch %d was durable: synced writes are gone", logstore.ErrCorrupt, seq, mark)
	}
	s.stats.seq = seq
	s.marks.durable.Store(seq)
	return nil
}
