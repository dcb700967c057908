package mortise

import (
	"errors"
	"fmt"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"github.com/mortise-lock/mortise/sdk/core"
	"google.golang.org/grpc/codes"
)

// Errors, all for use with errors.Is.
var (
	// ErrReleased is the cause of a grant's context after Release.
	ErrReleased = errors.New("mortise: released")
	// ErrNotHeld: protection had ended before the release or the check.
	ErrNotHeld = errors.New("mortise: not held")
	// ErrHeld: another holds the lock. See HeldError.
	ErrHeld = errors.New("mortise: held by another")
	// ErrSessionEnded: the session was closed, or refused by the service.
	ErrSessionEnded = errors.New("mortise: session ended")
	// ErrDenied: the service does not permit it.
	ErrDenied = errors.New("mortise: not permitted")
	// ErrQuota: a limit was reached, and asking again is useless for now.
	ErrQuota = errors.New("mortise: over quota")
	// ErrUnavailable: no answer from the cluster.
	ErrUnavailable = errors.New("mortise: no answer from the cluster")
	// ErrUnknown: the outcome is not known yet; the SDK goes on in the
	// background.
	ErrUnknown = errors.New("mortise: outcome unknown")
	// ErrInvalid: a name, option or configuration breaks a rule.
	ErrInvalid = errors.New("mortise: invalid")
)

// HeldError says who holds the lock that was asked for. errors.Is(err,
// ErrHeld) holds for it.
type HeldError struct {
	Name string
	// Holder is the first one known; its Client is empty if none is.
	Holder Holder
	// Queue is how many waiters were in front when that was last told.
	Queue int
	// Own: the holder has this client's own Owner. Locks are not re-entrant:
	// two acquires of one process exclude each other.
	Own bool
}

func (e *HeldError) Error() string {
	s := fmt.Sprintf("mortise: %q is held", e.Name)
	if e.Holder.Client != "" {
		s += fmt.Sprintf(" by %q for %v", e.Holder.Client, e.Holder.Since.Round(time.Millisecond))
	}
	if e.Own {
		s += ", that is by this process itself; locks are not re-entrant"
	}
	return s
}

// Unwrap returns ErrHeld.
func (e *HeldError) Unwrap() error { return ErrHeld }

// LostReason says why a hold ended without a release.
type LostReason int

// Reasons. The first two are the client's own conclusions.
const (
	// LostDeadline: no renewal was acknowledged in time.
	LostDeadline LostReason = iota + 1
	// LostMaxHold: WithMaxHold's time was over.
	LostMaxHold
	// LostClosed: the session or the client was closed.
	LostClosed
	// LostExpired: the service ended the hold since no renewal came in time.
	LostExpired
	// LostForced: an operator released it.
	LostForced
	// LostRevoked: an operator ended the session.
	LostRevoked
	// LostReleasedByToken: somebody who knew the token released it.
	LostReleasedByToken
	// LostSession: the service refused the session.
	LostSession
)

var lostWords = [...]string{"for an unknown reason", "deadline passed without an acknowledged renewal", "maximum hold time passed",
	"session closed", "expired at the service", "released by an operator", "session revoked by an operator",
	"released by another who knew the token", "session refused by the service"}

// String says it in words.
func (r LostReason) String() string {
	if r < 0 || int(r) >= len(lostWords) {
		r = 0
	}
	return lostWords[r]
}

// LostError is the cause of a grant's context when protection ended without a
// Release. Writes after it must be expected to meet another holder's.
type LostError struct {
	Name   string
	Token  Token
	Reason LostReason
	// At is when it was concluded or heard, on the wall clock.
	At time.Time
}

func (e *LostError) Error() string {
	return fmt.Sprintf("mortise: lost %q (token %d): %v", e.Name, e.Token, e.Reason)
}

// Is lets errors.Is(err, ErrNotHeld) hold for a loss.
func (e *LostError) Is(target error) bool { return target == ErrNotHeld }

// serviceError carries a refusal in the service's own words.
type serviceError struct {
	kind    error // one of the Err values; nil if none fits
	code    codes.Code
	message string
	detail  *lockv1.ErrorDetail
}

func (e *serviceError) Error() string {
	s := e.message
	if s == "" {
		s = "refused with code " + e.code.String()
	}
	if r := e.detail.GetReason(); r != "" {
		s += " (" + r + ")"
	}
	return "mortise: " + s
}

func (e *serviceError) Unwrap() error { return e.kind }

// FromServer reports whether the service itself said so; otherwise the client
// concluded it (from its clock, its context or a broken connection).
func FromServer(err error) bool {
	if e, ok := errors.AsType[*LostError](err); ok {
		return e.Reason > LostClosed
	}
	if e, ok := errors.AsType[*serviceError](err); ok {
		return e.code != codes.Unavailable && e.code != codes.DeadlineExceeded || e.detail != nil
	}
	_, ok := errors.AsType[*HeldError](err)
	return ok
}

// Reason returns the stable upper-case word with which the service refused, or
// "".
func Reason(err error) string {
	if e, ok := errors.AsType[*serviceError](err); ok {
		return e.detail.GetReason()
	}
	return ""
}

// failureError translates a refusal.
func failureError(f *lockv1.Failure) error {
	if f == nil {
		return nil
	}
	e := &serviceError{code: codes.Code(f.Code), message: f.Message, detail: f.Detail}
	switch e.code {
	case codes.Unavailable, codes.DeadlineExceeded:
		e.kind = ErrUnavailable
	case codes.ResourceExhausted:
		e.kind = ErrQuota
	case codes.PermissionDenied, codes.Unauthenticated:
		e.kind = ErrDenied
	case codes.InvalidArgument:
		e.kind = ErrInvalid
	case codes.FailedPrecondition:
		switch f.Detail.GetReason() {
		case "TOKEN_NOT_CURRENT", "HOLD_OVER":
			e.kind = ErrNotHeld
		case "SESSION_ENDED", "SESSION_INVALID":
			e.kind = ErrSessionEnded
		}
	}
	return e
}

func lostReason(r core.LostReason) LostReason { return LostReason(r) }
