package disk

import (
	"errors"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// makeDir makes a directory with its missing parents, so that a power loss
// can't take any of them away again: a file is only as durable as the entries
// on the way to it.
func makeDir(fsys vfs.FS, dir string) error {
	var missing []string
	for d := dir; ; d = fsys.PathDir(d) {
		if _, err := fsys.Stat(d); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		missing = append(missing, d)
		if fsys.PathDir(d) == d {
			break
		}
	}
	if err := fsys.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, d := range missing {
		parent, err := fsys.OpenDir(fsys.PathDir(d))
		if err != nil {
			return err
		}
		err = parent.Sync()
		if e := parent.Close(); err == nil {
			err = e
		}
		if err != nil {
			return err
		}
	}
	return nil
}
