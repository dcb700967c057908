package crash

import (
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// liar is a disk that says that the files of some kind are synced and does
// nothing, from the moment that on is set.
type liar struct {
	vfs.FS
	part string // of their paths
	on   *atomic.Bool
}

func (l liar) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.Contains(name, l.part) {
		return f, err
	}
	return lied{f, l.on}, nil
}

// Create implements vfs.FS.
func (l liar) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := l.FS.Create(name, c)
	return l.wrap(name, f, err)
}

// ReuseForWrite implements vfs.FS.
func (l liar) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := l.FS.ReuseForWrite(from, to, c)
	return l.wrap(to, f, err)
}

type lied struct {
	vfs.File
	on *atomic.Bool
}

// Sync implements vfs.File.
func (l lied) Sync() error {
	if l.on.Load() {
		return nil
	}
	return l.File.Sync()
}

// SyncData implements vfs.File.
func (l lied) SyncData() error {
	if l.on.Load() {
		return nil
	}
	return l.File.SyncData()
}

// SyncTo implements vfs.File.
func (l lied) SyncTo(n int64) (bool, error) {
	if l.on.Load() {
		return true, nil
	}
	return l.File.SyncTo(n)
}
