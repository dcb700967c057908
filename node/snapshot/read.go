package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/shard"
)

// Reader reads the content of a snapshot whose sum was right when it was
// opened. Not safe for concurrent use.
type Reader struct {
	Shard shard.ID
	Index uint64
	// Size is the file's, in bytes.
	Size int64

	name    string
	file    vfs.File
	content *io.SectionReader
}

// Open checks a whole file and opens it. A file that is damaged or missing is
// an error that wraps logstore.ErrCorrupt (a missing one also wraps
// fs.ErrNotExist).
func (f *Folder) Open(name string) (*Reader, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	return f.open(name)
}

func (f *Folder) open(name string) (*Reader, error) {
	file, size, err := f.openFile(name)
	if err != nil {
		return nil, err
	}
	r := &Reader{Size: size, name: name, file: file}
	if err := r.verify(); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("snapshot %s: %w", name, err)
	}
	r.content = io.NewSectionReader(file, headerLen, size-headerLen-trailerLen)
	return r, nil
}

func (f *Folder) openFile(name string) (vfs.File, int64, error) {
	file, err := f.fs.Open(f.path(name), vfs.SequentialReadsOption)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("%w: snapshot %s is missing: %w", logstore.ErrCorrupt, name, err)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("snapshot %s: %w", name, err)
	}
	st, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return nil, 0, fmt.Errorf("snapshot %s: %w", name, err)
	}
	return file, st.Size(), nil
}

// verify reads the whole file.
func (r *Reader) verify() error {
	if r.Size < headerLen+trailerLen {
		return fmt.Errorf("%w: it has only %d bytes", logstore.ErrCorrupt, r.Size)
	}
	var h [headerLen]byte
	if _, err := r.file.ReadAt(h[:], 0); err != nil {
		return err
	}
	if string(h[:len(magic)]) != magic {
		return fmt.Errorf("%w: it does not begin like one", logstore.ErrCorrupt)
	}
	sum := crc32.New(castagnoli)
	if _, err := io.CopyBuffer(sum, io.NewSectionReader(r.file, 0, r.Size-4), make([]byte, 64<<10)); err != nil {
		return err
	}
	var t [trailerLen]byte
	if _, err := r.file.ReadAt(t[:], r.Size-trailerLen); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(t[8:]) != sum.Sum32() {
		return fmt.Errorf("%w: its checksum does not match", logstore.ErrCorrupt)
	}
	// What follows was written like this.
	if v := h[len(magic)]; v != format {
		return fmt.Errorf("%w: format %d, this program knows %d", ErrNewer, v, format)
	}
	if n := binary.LittleEndian.Uint64(t[:]); n != uint64(r.Size-headerLen-trailerLen) {
		return fmt.Errorf("%w: it should hold %d bytes but holds %d", logstore.ErrCorrupt, n, r.Size-headerLen-trailerLen)
	}
	r.Shard = shard.ID(binary.LittleEndian.Uint32(h[12:]))
	r.Index = binary.LittleEndian.Uint64(h[16:])
	return nil
}

// Read reads content.
func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.content.Read(p)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("snapshot %s: %w", r.name, err)
	}
	return n, err
}

// Close closes the file.
func (r *Reader) Close() error { return r.file.Close() }

// File is a finished file as it is, to be sent to a peer.
type File struct {
	*io.SectionReader
	file vfs.File
}

// OpenFile opens a finished file without checking it: the receiver does.
func (f *Folder) OpenFile(name string) (*File, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	file, size, err := f.openFile(name)
	if err != nil {
		return nil, err
	}
	return &File{io.NewSectionReader(file, 0, size), file}, nil
}

// Close closes the file.
func (f *File) Close() error { return f.file.Close() }
