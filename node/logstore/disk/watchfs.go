package disk

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// watchFS sees every error of writing before Pebble does. Pebble's own ways to
// handle one differ: it tries again, panics with a mutex unlocked (which no
// recover survives), or asks the logger to end the process. Here each of them
// ends the store, and the operation never returns: no code runs on a disk that
// failed. OnFatal is expected to end the process.
type watchFS struct {
	vfs.FS
	fail func(error)
}

// check does not return if there is an error.
func (w watchFS) check(op, name string, err error) {
	if err == nil {
		return
	}
	w.fail(fmt.Errorf("%s %s failed: %w", op, name, err))
	select {}
}

// Create implements vfs.FS.
func (w watchFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := w.FS.Create(name, category)
	w.check("creating", name, err)
	return watchFile{f, w, name}, nil
}

// ReuseForWrite implements vfs.FS.
func (w watchFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := w.FS.ReuseForWrite(oldname, newname, category)
	w.check("reusing a file as", newname, err)
	return watchFile{f, w, newname}, nil
}

// OpenReadWrite implements vfs.FS.
func (w watchFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := w.FS.OpenReadWrite(name, category, opts...)
	if err != nil {
		return nil, err
	}
	return watchFile{f, w, name}, nil
}

// OpenDir implements vfs.FS.
func (w watchFS) OpenDir(name string) (vfs.File, error) {
	f, err := w.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return watchFile{f, w, name}, nil
}

// Rename implements vfs.FS.
func (w watchFS) Rename(oldname, newname string) error {
	w.check("renaming a file to", newname, w.FS.Rename(oldname, newname))
	return nil
}

// Unwrap implements vfs.FS.
func (w watchFS) Unwrap() vfs.FS { return w.FS }

type watchFile struct {
	vfs.File
	fs   watchFS
	name string
}

// Write implements vfs.File.
func (f watchFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.fs.check("writing", f.name, err)
	return n, nil
}

// WriteAt implements vfs.File.
func (f watchFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(p, off)
	f.fs.check("writing", f.name, err)
	return n, nil
}

// Sync implements vfs.File.
func (f watchFile) Sync() error {
	f.fs.check("syncing", f.name, f.File.Sync())
	return nil
}

// SyncData implements vfs.File.
func (f watchFile) SyncData() error {
	f.fs.check("syncing", f.name, f.File.SyncData())
	return nil
}

// SyncTo implements vfs.File.
func (f watchFile) SyncTo(length int64) (bool, error) {
	full, err := f.File.SyncTo(length)
	f.fs.check("syncing", f.name, err)
	return full, nil
}
