package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/shard"
)

// Defaults and limits.
const (
	defaultMemTableSize = 64 << 20
	// defaultLowSpace is what must stay free: two memtables of WAL and their
	// flushes.
	defaultLowSpace = 256 << 20
	defaultSlowDisk = 500 * time.Millisecond
	// maxBatchBytes caps a batch. Above half a memtable Pebble would have to
	// rotate memtable and WAL for it.
	maxBatchBytes = 4 << 20
)

// Errors of Open, beside those that wrap logstore.ErrCorrupt.
var (
	// ErrInUse: another process holds the directory.
	ErrInUse = errors.New("data directory is in use by another process")
	// ErrNotWritable: permissions or a read-only file system.
	ErrNotWritable = errors.New("data directory is not writable")
	// ErrNewer: written by a newer version of this program.
	ErrNewer = errors.New("data directory was written by a newer version")
	// ErrForeign: the directory holds something else, or belongs to another
	// cluster or node.
	ErrForeign = errors.New("data directory belongs to something else")
	// ErrNoSpace: the disk is full.
	ErrNoSpace = errors.New("no space left on the disk of the data directory")
)

// Options of Open.
type Options struct {
	// Dir is created when missing (not its parents' parents' permissions: 0700).
	Dir string
	// FS is nil for the operating system's.
	FS vfs.FS
	// Logger is nil for none.
	Logger *slog.Logger
	// OnSynced gets steps that became durable, in the order of submission, from
	// one goroutine. It must not block for long: the next acknowledgements wait.
	// Steps without NeedSync come along with the next ones that have it.
	OnSynced func([]logstore.Append)
	// OnFatal is called at most once, with the reason why nothing will ever be
	// acknowledged again. It may be called from within Pebble with its locks
	// held: it must not call the store, except Failed, and should end the process.
	// Default: log and go on, with a dead store.
	OnFatal func(error)
	// OnDiskSlow is called while an operation on a file has taken longer than
	// SlowDisk, with the time so far; again and again as long as it lasts. It must
	// not block or do I/O.
	OnDiskSlow func(time.Duration)
	// SlowDisk is 500 ms when 0.
	SlowDisk time.Duration
	// MemTableSize in bytes, 64 MiB when 0. Tests on memory file systems want it
	// small.
	MemTableSize int
	// LowSpace is how many free bytes LowOnSpace demands; 256 MiB when 0.
	LowSpace uint64
}

// Store implements logstore.Store. All methods are safe for concurrent use,
// except that Load must have returned before the first Submit.
type Store struct {
	opts     Options
	fs       vfs.FS // watched, with health checks
	health   io.Closer
	lock     *pebble.Lock
	db       *pebble.DB
	log      *slog.Logger
	identity *Identity // nil when the directory is new

	// shards is what the writer knows about each replica; built by Load.
	shards map[shard.ID]*replica
	loaded atomic.Bool

	mu      sync.Mutex
	wake    sync.Cond // queue, closing, failed
	queue   []queued
	closing bool

	writerDone chan struct{}

	// dbGone is locked once Pebble is closed; whoever reads from it outside the
	// writer holds it shared.
	dbGone sync.RWMutex

	failure failure
	stats   stats
	marks   watermarks
	space   space
}

var _ logstore.Store = (*Store)(nil)

// Open opens or creates the store in a directory and locks it.
func Open(o Options) (*Store, error) {
	if o.Dir == "" {
		return nil, errors.New("disk: Options.Dir is empty: name the data directory")
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.SlowDisk == 0 {
		o.SlowDisk = defaultSlowDisk
	}
	if o.MemTableSize == 0 {
		o.MemTableSize = defaultMemTableSize
	}
	if o.LowSpace == 0 {
		o.LowSpace = defaultLowSpace
	}
	s := &Store{opts: o, log: o.Logger, shards: map[shard.ID]*replica{},
		writerDone: make(chan struct{})}
	s.wake.L = &s.mu
	s.marks.asked = make(chan struct{}, 1)
	s.stats.start = time.Now()
	s.failure.happened = make(chan struct{})
	err := s.open()
	if err == nil {
		// From here on failures go to OnFatal.
		s.failure.opened.Store(true)
		err = s.Failed()
	}
	if err != nil {
		s.release()
		return nil, s.explain(err)
	}
	s.startWatermarks()
	go s.write()
	return s, nil
}

func (s *Store) open() error {
	o := &s.opts
	var inner vfs.FS
	inner, s.health = vfs.WithDiskHealthChecks(o.FS, o.SlowDisk, nil, func(i vfs.DiskSlowInfo) {
		s.stats.slow.Add(1)
		if o.OnDiskSlow != nil {
			o.OnDiskSlow(i.Duration)
		}
	})
	s.fs = watchFS{inner, s.fail}
	if err := makeDir(inner, o.Dir); err != nil {
		return err
	}
	var err error
	if s.lock, err = pebble.LockDirectory(o.Dir, s.fs); err != nil {
		if errors.Is(err, syscall.EAGAIN) || err.Error() == "lock held by current process" {
			return fmt.Errorf("%w (%w)", ErrInUse, err)
		}
		return err
	}
	mark, err := s.readWatermark()
	if err != nil {
		return err
	}
	d, err := pebble.Peek(o.Dir, s.fs)
	if err != nil {
		return err
	}
	if d.Exists && d.FormatMajorVersion > pebble.FormatNewest {
		return fmt.Errorf("%w: storage format %d, this program knows up to %d", ErrNewer, d.FormatMajorVersion, pebble.FormatNewest)
	}
	if !d.Exists && mark > 0 {
		return fmt.Errorf("%w: the log is gone, but the file %q shows that there was one", logstore.ErrCorrupt, watermarkFile)
	}
	if err := s.guard(s.openPebble); err != nil {
		if pebble.IsCorruptionError(err) {
			return fmt.Errorf("%w: %w", logstore.ErrCorrupt, err)
		}
		return err
	}
	var made bool
	err = s.guard(func() (err error) {
		made, err = s.checkFormat(d.Exists)
		return err
	})
	if err != nil {
		return err
	}
	if made {
		// Pebble begins the first WAL before it raises the format to the one asked
		// for: that WAL could be damaged unnoticed. The next one is as wanted.
		err := s.guard(func() error {
			err := s.db.Close()
			s.db = nil
			if err != nil {
				return err
			}
			return s.openPebble()
		})
		if err != nil {
			return err
		}
	}
	return s.guard(func() error {
		if err := s.loadIdentity(); err != nil {
			return err
		}
		return s.checkWatermark(mark)
	})
}

// openPebble opens Pebble's part.
func (s *Store) openPebble() (err error) {
	o := &pebble.Options{
		FS:   s.fs,
		Lock: s.lock,
		// The default is the oldest format, which takes a damaged WAL for a torn
		// one and silently forgets synced writes.
		FormatMajorVersion:          pebble.FormatNewest,
		MemTableSize:                uint64(s.opts.MemTableSize),
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       4,
		L0CompactionFileThreshold:   500,
		L0StopWritesThreshold:       32,
		LBaseMaxBytes:               64 << 20,
		MaxOpenFiles:                500,
		CacheSize:                   32 << 20,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 1 },
		BytesPerSync:                512 << 10,
		MaxManifestFileSize:         128 << 20,
		Logger:                      pebbleLogger{s},
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { s.background(err) },
			DataCorruption: func(i pebble.DataCorruptionInfo) {
				s.fail(fmt.Errorf("%w: file %s: %w", logstore.ErrCorrupt, i.Path, i.Details))
			},
			FlushEnd: func(i pebble.FlushInfo) {
				if i.Err == nil {
					s.marks.request()
				}
			},
			WriteStallBegin: func(i pebble.WriteStallBeginInfo) {
				s.stats.stalls.Add(1)
				s.log.Warn("log store stalls writes until its background work catches up", "reason", i.Reason)
			},
		},
	}
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	s.db, err = pebble.Open(s.opts.Dir, o)
	return err
}

// release frees what Open took, after a failed Open.
func (s *Store) release() {
	if s.Failed() != nil {
		return // it cannot be closed safely
	}
	if s.db != nil {
		_ = s.db.Close()
	}
	if s.lock != nil {
		_ = s.lock.Close()
	}
	if s.health != nil {
		_ = s.health.Close()
	}
}

// explain names the directory and what to do.
func (s *Store) explain(err error) error {
	dir := s.opts.Dir
	if err == nil || strings.HasPrefix(err.Error(), dir+": ") {
		return err
	}
	switch {
	case errors.Is(err, ErrInUse):
		return fmt.Errorf("%s: %w: stop the other process, or give each node a directory of its own", dir, err)
	case errors.Is(err, ErrNewer):
		return fmt.Errorf("%s: %w: run that version or a newer one, or give an empty directory to join as a new node", dir, err)
	case errors.Is(err, ErrForeign):
		return fmt.Errorf("%s: %w: give the directory of this node, or an empty one to join as a new node", dir, err)
	case errors.Is(err, logstore.ErrCorrupt):
		return fmt.Errorf("%s: %w: do not start this node on it again: move the directory away and let the node join as a new one", dir, err)
	case vfs.IsNoSpaceError(err):
		return fmt.Errorf("%s: %w: free some space and start again: %w", dir, ErrNoSpace, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%s: %w: give the user of this process the rights to write there: %w", dir, ErrNotWritable, err)
	}
	return fmt.Errorf("%s: %w", dir, err)
}
