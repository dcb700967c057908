package snapshot

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/shard"
)

const (
	magic      = "MRTSNAP\n"
	format     = 1
	headerLen  = 24
	trailerLen = 12
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func header(s shard.ID, index uint64) []byte {
	b := append([]byte(magic), format, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(s))
	return binary.LittleEndian.AppendUint64(b, index)
}

var errEnded = errors.New("snapshot was committed or aborted already")

// tmpFile is a file on its way into the folder.
type tmpFile struct {
	folder    *Folder
	name, tmp string
	file      vfs.File
	buf       *bufio.Writer
	size      int64
	err       error // first failure: no commit after it
	ended     bool
}

func (f *Folder) create(name string) (*tmpFile, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	t := &tmpFile{folder: f, name: name, tmp: fmt.Sprintf("%s.%d%s", name, f.tmp.Add(1), tmpSuffix)}
	f.mu.Lock()
	f.writing[t.tmp] = true
	f.mu.Unlock()
	file, err := f.fs.Create(f.path(t.tmp), vfs.WriteCategoryUnspecified)
	if err != nil {
		f.forget(t.tmp)
		return nil, fmt.Errorf("snapshot %s: %w", name, err)
	}
	t.file = vfs.NewSyncingFile(file, vfs.SyncingFileOptions{BytesPerSync: bytesPerSync})
	t.buf = bufio.NewWriterSize(t.file, 64<<10)
	return t, nil
}

func (f *Folder) forget(tmp string) {
	f.mu.Lock()
	delete(f.writing, tmp)
	f.mu.Unlock()
}

func (t *tmpFile) write(p []byte) (int, error) {
	if t.err == nil && t.ended {
		t.err = errEnded
	}
	if t.err == nil && t.size+int64(len(p)) > MaxSize {
		t.err = fmt.Errorf("snapshot %s: %w: more than %d bytes", t.name, ErrTooLarge, int64(MaxSize))
	}
	if t.err != nil {
		return 0, t.err
	}
	n, err := t.buf.Write(p)
	t.size += int64(n)
	if err != nil {
		t.err = fmt.Errorf("snapshot %s: %w", t.name, err)
	}
	return n, t.err
}

// commit makes the file durable under its name, replacing one that is there.
func (t *tmpFile) commit(check func() error) error {
	if t.ended {
		return errEnded
	}
	if t.err == nil {
		if err := t.buf.Flush(); err != nil {
			t.err = fmt.Errorf("snapshot %s: %w", t.name, err)
		}
	}
	if t.err == nil && check != nil {
		t.err = check()
	}
	if t.err == nil {
		if err := t.file.Sync(); err != nil {
			t.err = fmt.Errorf("%w: %s: %w", ErrSync, t.name, err)
		}
	}
	if t.err != nil {
		err := t.err
		t.Abort()
		return err
	}
	t.ended = true
	defer t.folder.forget(t.tmp)
	f := t.folder
	if err := t.file.Close(); err != nil {
		_ = f.fs.Remove(f.path(t.tmp))
		return fmt.Errorf("snapshot %s: %w", t.name, err)
	}
	if err := f.fs.Rename(f.path(t.tmp), f.path(t.name)); err != nil {
		_ = f.fs.Remove(f.path(t.tmp))
		return fmt.Errorf("snapshot %s: %w", t.name, err)
	}
	return f.sync(f.dir)
}

// Abort removes the unfinished file. After Commit it does nothing.
func (t *tmpFile) Abort() {
	if t.ended {
		return
	}
	t.ended = true
	_ = t.file.Close()
	_ = t.folder.fs.Remove(t.folder.path(t.tmp))
	t.folder.forget(t.tmp)
}

// Writer writes a new snapshot. Not safe for concurrent use.
type Writer struct {
	*tmpFile
	sum uint32
}

// Create begins a snapshot of a shard at a log index. Either Commit or Abort
// must follow; Abort after Commit is fine.
func (f *Folder) Create(name string, s shard.ID, index uint64) (*Writer, error) {
	t, err := f.create(name)
	if err != nil {
		return nil, err
	}
	w := &Writer{tmpFile: t}
	if _, err := w.Write(header(s, index)); err != nil {
		t.Abort()
		return nil, err
	}
	return w, nil
}

// Write implements io.Writer. After an error all that is left is Abort.
func (w *Writer) Write(p []byte) (int, error) {
	n, err := w.write(p)
	w.sum = crc32.Update(w.sum, castagnoli, p[:n])
	return n, err
}

// Commit makes the snapshot durable under its name and returns the file's size
// in bytes. On an error no file of that name has been made durable by it, and
// the unfinished one is gone; see ErrSync.
func (w *Writer) Commit() (int64, error) {
	b := binary.LittleEndian.AppendUint64(nil, uint64(w.size-headerLen))
	if _, err := w.Write(b); err == nil {
		_, _ = w.write(binary.LittleEndian.AppendUint32(nil, w.sum)) // commit returns its error
	}
	return w.size, w.commit(nil)
}

// Receiver takes the file that a peer streams. Not safe for concurrent use.
type Receiver struct {
	*tmpFile
	shard shard.ID
	index uint64
}

// Receive begins a file that must turn out to be a snapshot of the shard at the
// index. Either Commit or Abort must follow.
func (f *Folder) Receive(name string, s shard.ID, index uint64) (*Receiver, error) {
	t, err := f.create(name)
	if err != nil {
		return nil, err
	}
	return &Receiver{t, s, index}, nil
}

// Write takes the next bytes of the file, as they are in the sender's.
func (r *Receiver) Write(p []byte) (int, error) { return r.write(p) }

// Commit checks the whole file and makes it durable under its name. A damaged
// file, or one of another shard or index, is an error that wraps
// logstore.ErrCorrupt; nothing is left of it.
func (r *Receiver) Commit() (int64, error) {
	return r.size, r.commit(func() error {
		in, err := r.folder.open(r.tmp)
		if err != nil {
			return err
		}
		defer func() { _ = in.Close() }()
		if in.Shard != r.shard || in.Index != r.index {
			return fmt.Errorf("%w: snapshot %s: it is of shard %d at index %d, not of shard %d at index %d",
				logstore.ErrCorrupt, r.name, in.Shard, in.Index, r.shard, r.index)
		}
		return nil
	})
}
