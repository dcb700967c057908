package crash

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// disk is a node's crashable disk. While power is held for writing, no sync
// completes on any disk, so that what is cloned meanwhile is of one moment: no
// node acknowledges anything that its clone lacks.
type disk struct {
	vfs.FS
	power *sync.RWMutex
	lies  *lies
}

// lies make the syncs of files do nothing, once told to.
type lies struct {
	about func(path string) bool
	begun atomic.Bool
}

func (d disk) file(path string, f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return file{f, path, d}, nil
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

type file struct {
	vfs.File
	path string
	disk disk
}

// lied takes part in the power; the caller gives it back.
func (f file) lied() bool {
	// A sync takes its time, so that there is something to lose.
	wait(rand.N(3 * time.Millisecond))
	f.disk.power.RLock()
	l := f.disk.lies
	return l != nil && l.begun.Load() && l.about(f.path)
}

// Sync implements vfs.File.
func (f file) Sync() error {
	defer f.disk.power.RUnlock()
	if f.lied() {
		return nil
	}
	return f.File.Sync()
}

// SyncData implements vfs.File.
func (f file) SyncData() error {
	defer f.disk.power.RUnlock()
	if f.lied() {
		return nil
	}
	return f.File.SyncData()
}

// SyncTo implements vfs.File.
func (f file) SyncTo(n int64) (bool, error) {
	defer f.disk.power.RUnlock()
	if f.lied() {
		return true, nil
	}
	return f.File.SyncTo(n)
}
