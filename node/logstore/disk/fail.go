package disk

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/mortise-lock/mortise/node/logstore"
)

// failure is the first error after which nothing is acknowledged.
type failure struct {
	once sync.Once
	err  atomic.Pointer[error]
	// happened is closed when err is set.
	happened chan struct{}
	// opened: Open has returned, so that nobody but OnFatal tells the error.
	opened atomic.Bool
}

// Failed returns the error that ended the store, or nil. It never blocks.
func (s *Store) Failed() error {
	if p := s.failure.err.Load(); p != nil {
		return *p
	}
	return nil
}

// fail ends the store. Only the first error counts. It may be called with
// Pebble's locks held, so it takes none of ours before OnFatal.
func (s *Store) fail(err error) {
	s.failure.once.Do(func() {
		if pebble.IsCorruptionError(err) && !errors.Is(err, logstore.ErrCorrupt) {
			err = fmt.Errorf("%w: %w", logstore.ErrCorrupt, err)
		}
		if s.failure.opened.Load() {
			err = s.explain(err)
		}
		s.failure.err.Store(&err)
		close(s.failure.happened)
		if s.failure.opened.Load() {
			s.log.Error("log store failed; nothing is acknowledged any more", "error", err.Error())
			if s.opts.OnFatal != nil {
				s.opts.OnFatal(err)
			}
		}
		// Whoever waits wakes up. Not from here: mu may be held by our caller.
		go func() {
			s.mu.Lock()
			s.wake.Broadcast()
			s.mu.Unlock()
		}()
	})
}

// guard runs f, which calls Pebble, and returns its error, or the failure of the
// store if f does not come back because of it.
func (s *Store) guard(f func() error) error {
	done := make(chan error, 1)
	go func() {
		var err error
		defer func() { done <- err }()
		defer s.recovered(&err)
		err = f()
	}()
	select {
	case err := <-done:
		return err
	case <-s.failure.happened:
		return s.Failed()
	}
}

// background ends the store on an error of a flush or compaction. Pebble would
// try again for ever; a disk that fails once is not trusted again. Like Fatalf
// it does not return then.
func (s *Store) background(err error) {
	if errors.Is(err, pebble.ErrCancelledCompaction) || errors.Is(err, pebble.ErrClosed) {
		return
	}
	s.fail(fmt.Errorf("background work of the log failed: %w", err))
	select {}
}

// recovered turns a panic of Pebble, its way to report some write errors, into
// an error and the end of the store.
func (s *Store) recovered(err *error) {
	p := recover()
	if p == nil {
		return
	}
	if e, ok := p.(error); ok {
		*err = fmt.Errorf("writing the log failed: %w", e)
	} else {
		*err = fmt.Errorf("writing the log failed: %v", p)
	}
	s.fail(*err)
}

// pebbleLogger hands Pebble's log on. What it says at Info level is noise.
type pebbleLogger struct{ s *Store }

func (l pebbleLogger) Infof(string, ...any) {}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.s.log.Warn("pebble: " + fmt.Sprintf(format, args...))
}

// Fatalf must not return. OnFatal normally ends the process; if it does not,
// the goroutine stays where it is, and with it whatever it has locked.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	for _, a := range args {
		if e, ok := a.(error); ok {
			err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), e)
		}
	}
	l.s.fail(err)
	select {}
}
