package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/mortise-lock/mortise/node/logstore"
)

const (
	suffix    = ".snap"
	tmpSuffix = ".tmp"
	maxName   = 200
	// MaxSize caps a file, in bytes, also while it is received.
	MaxSize = 4 << 30
	// bytesPerSync spreads the writing to disk, so that the log's syncs do not
	// wait for a whole snapshot.
	bytesPerSync = 512 << 10
)

var (
	// ErrSync: a sync failed. What the folder holds of the file is not known;
	// like any failed sync it is a reason to stop the node.
	ErrSync = errors.New("snapshot could not be synced to disk")
	// ErrTooLarge: MaxSize.
	ErrTooLarge = errors.New("snapshot is too large")
	// ErrName: not a name for a snapshot file.
	ErrName = errors.New("not a name of a snapshot file")
	// ErrNewer: written by a newer version of this program.
	ErrNewer = errors.New("snapshot was written by a newer version")
)

// Folder is a folder of snapshot files. Safe for concurrent use.
type Folder struct {
	dir string
	fs  vfs.FS
	// tmp makes names of unfinished files unique.
	tmp atomic.Uint64

	mu sync.Mutex
	// writing are the unfinished files of this process, spared by Collect.
	writing map[string]bool
}

// Open opens a folder, and creates it when missing. fs is nil for the operating
// system's. The folder belongs to one process; the lock on the data directory
// sees to that.
func Open(dir string, fsys vfs.FS) (*Folder, error) {
	if fsys == nil {
		fsys = vfs.Default
	}
	f := &Folder{dir: dir, fs: fsys, writing: map[string]bool{}}
	if err := fsys.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("snapshot folder: %w", err)
	}
	// The folder's own entry must survive too.
	if err := f.sync(fsys.PathDir(dir)); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *Folder) path(name string) string { return f.fs.PathJoin(f.dir, name) }

// sync syncs a folder.
func (f *Folder) sync(dir string) error {
	d, err := f.fs.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrSync, err)
	}
	err = d.Sync()
	if e := d.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("%w: folder %s: %w", ErrSync, dir, err)
	}
	return nil
}

// CheckName refuses what is not the plain name of a snapshot file. Names from
// peers go through it.
func CheckName(name string) error {
	ok := strings.HasSuffix(name, suffix) && len(name) > len(suffix) && len(name) <= maxName && name[0] != '.'
	for _, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.')
	}
	if !ok {
		return fmt.Errorf("%w: %.64q: want up to %d letters, digits, '-', '_' or '.', and %q at the end", ErrName, name, maxName, suffix)
	}
	return nil
}

// Remove removes a finished file; it is fine if there is none. What is being
// read from it can be read to its end.
func (f *Folder) Remove(name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if err := f.fs.Remove(f.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("snapshot %s: %w", name, err)
	}
	return nil
}

// Names lists the finished files, sorted.
func (f *Folder) Names() ([]string, error) {
	all, err := f.fs.List(f.dir)
	if err != nil {
		return nil, fmt.Errorf("snapshot folder: %w", err)
	}
	all = slices.DeleteFunc(all, func(n string) bool { return CheckName(n) != nil })
	slices.Sort(all)
	return all, nil
}

// Collect removes finished files that are not in keep and leftovers of
// unfinished ones, and returns how many. For the start of a node, before
// anything is written; keep are the names in the log's bases. One of keep that
// does not exist is an error that wraps logstore.ErrCorrupt, and nothing is
// removed then. Files with other names are not touched.
func (f *Folder) Collect(keep map[string]bool) (removed int, err error) {
	all, err := f.fs.List(f.dir)
	if err != nil {
		return 0, fmt.Errorf("snapshot folder: %w", err)
	}
	for name, wanted := range keep {
		if wanted && !slices.Contains(all, name) {
			return 0, fmt.Errorf("%w: snapshot %s, which the log begins with, is missing", logstore.ErrCorrupt, name)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range all {
		old := CheckName(name) == nil && !keep[name]
		left := strings.HasSuffix(name, tmpSuffix) && !f.writing[name]
		if !old && !left {
			continue
		}
		if err := f.fs.Remove(f.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return removed, fmt.Errorf("snapshot folder: %w", err)
		}
		removed++
	}
	return removed, nil
}
