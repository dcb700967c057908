package mortise

import (
	"fmt"
	"time"

	"github.com/mortise-lock/mortise/sdk/core"
)

// AcquireOption changes one acquire.
type AcquireOption interface{ applyAcquire(*acquireSettings) }

type acquireSettings struct {
	lockDelay time.Duration
	maxHold   time.Duration
	onQueued  func(Queued)
	onSuspect func(Suspect)
	errs      []error
}

type acquireOption func(*acquireSettings)

func (f acquireOption) applyAcquire(s *acquireSettings) { f(s) }

// WithLockDelay keeps the lock unavailable for d after it was lost (not after a
// release), for resources that cannot check tokens. Up to 60 s, in steps of a
// millisecond.
func WithLockDelay(d time.Duration) AcquireOption {
	return acquireOption(func(s *acquireSettings) {
		if d < 0 || d > core.MaxLockDelay {
			s.errs = append(s.errs, fmt.Errorf("%w: lock delay must be 0 to %v (is %v)", ErrInvalid, core.MaxLockDelay, d))
		}
		s.lockDelay = d
	})
}

// WithMaxHold gives the lock up after d, even if renewals succeed. The grant
// is then lost with LostMaxHold.
func WithMaxHold(d time.Duration) AcquireOption {
	return acquireOption(func(s *acquireSettings) {
		if d <= 0 {
			s.errs = append(s.errs, fmt.Errorf("%w: maximum hold must be above 0 (is %v)", ErrInvalid, d))
		}
		s.maxHold = d
	})
}

// Queued tells that an acquire waits.
type Queued struct {
	Name string
	// Position counts the waiters in front; 0 is next.
	Position int
	// Holder is the first one known; its Client is empty if none is.
	Holder Holder
}

// WithOnQueued calls fn, on the goroutine that waits in Lock, whenever its
// place in the queue is told.
func WithOnQueued(fn func(Queued)) AcquireOption {
	return acquireOption(func(s *acquireSettings) { s.onQueued = fn })
}

// Suspect tells that renewals of a grant are late. It is a hint: the grant is
// protected until Deadline.
type Suspect struct {
	Name     string
	Token    Token
	Deadline time.Time
}

// WithOnSuspect calls fn, on a goroutine of its own, when half a TTL has passed
// without an acknowledged renewal.
func WithOnSuspect(fn func(Suspect)) AcquireOption {
	return acquireOption(func(s *acquireSettings) { s.onSuspect = fn })
}
