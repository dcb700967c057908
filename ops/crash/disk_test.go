package crash

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// disk is a node's crashable disk. While its power is held for writing, no sync
// completes on it: the node acknowledges nothing that a clone taken meanwhile
// lacks.
type disk struct {
	vfs.FS
	power *sync.RWMutex
	lies  *lies
}

// lies make the syncs of some files or folders do nothing, once told to, or
// return before they have done it.
type lies struct {
	about func(path string) bool
	late  bool
	begun atomic.Bool
}

func (d disk) file(path string, f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return file{f, path, d, new(sync.WaitGroup)}, nil
}

// Create implements vfs.FS.
func (d disk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, c)
	return d.file(name, f, err)
}

// ReuseForWrite implements vfs.FS.
func (d disk) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.ReuseForWrite(from, to, c)
	return d.file(to, f, err)
}

// OpenReadWrite implements vfs.FS.
func (d disk) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.OpenReadWrite(name, c, opts...)
	return d.file(name, f, err)
}

// OpenDir implements vfs.FS.
func (d disk) OpenDir(name string) (vfs.File, error) {
	f, err := d.FS.OpenDir(name)
	return d.file(name, f, err)
}

// file's SyncTo is that of the memory file system, which does nothing: it need
// not make anything durable.
type file struct {
	vfs.File
	path string
	disk disk
	late *sync.WaitGroup // syncs that have returned, but are still to be done
}

// syncTime is how long a sync takes, so that there is something to lose: the
// slower, the more gathers for the next one.
func syncTime() time.Duration {
	if rand.N(20) == 0 {
		return rand.N(30 * time.Millisecond)
	}
	return rand.N(3 * time.Millisecond)
}

// sync carries a sync out in its time, or lies about it.
func (f file) sync(do func() error) error {
	l := f.disk.lies
	lied := l != nil && l.begun.Load() && l.about(f.path)
	switch {
	case lied && l.late:
		f.late.Go(func() { _ = f.inTime(do) })
		return nil
	case lied:
		return f.inTime(func() error { return nil })
	}
	return f.inTime(do)
}

func (f file) inTime(do func() error) error {
	wait(syncTime())
	f.disk.power.RLock()
	defer f.disk.power.RUnlock()
	return do()
}

// Sync implements vfs.File.
func (f file) Sync() error { return f.sync(f.File.Sync) }

// SyncData implements vfs.File.
func (f file) SyncData() error { return f.sync(f.File.SyncData) }

// Close implements vfs.File.
func (f file) Close() error {
	f.late.Wait()
	return f.File.Close()
}
