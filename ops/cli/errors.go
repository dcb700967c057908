package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Kind says what kind of failure an error is. The main program has one exit
// code per kind.
type Kind int

// Kinds of failure.
const (
	// Failed: any other reason.
	Failed Kind = iota
	// Usage: the command line is wrong.
	Usage
	// NotFound: no such lock, session, shard or node.
	NotFound
	// Unreachable: the cluster can't be reached or has no quorum.
	Unreachable
	// NotAcquired: the lock is busy, or the wait ran out. Code may say which
	// exit code the user wants for it.
	NotAcquired
	// Denied: not permitted, or over a limit.
	Denied
	// BadConfig: the configuration is invalid.
	BadConfig
	// LockLost: the lock was lost while it was needed.
	LockLost
	// NotStarted: mortise failed before it could start the command.
	NotStarted
	// CantExecute, NoCommand: the command can't be executed, or was not found.
	CantExecute
	NoCommand
	// CommandStatus: the command's own status, in Code; nothing is printed.
	CommandStatus
	// Interrupted: a signal ended the command before it had begun; Code is 128
	// plus its number.
	Interrupted
)

// Error is what commands return.
type Error struct {
	Kind Kind
	// Code is set for CommandStatus and Interrupted, and for NotAcquired if the
	// user chose one.
	Code int
	Err  error
	// Next is the command or the step to try next.
	Next string
}

func (e *Error) Error() string {
	text := ""
	if e.Err != nil {
		text = e.Err.Error()
	}
	if e.Next != "" {
		text += "\n  try: " + e.Next
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

func usagef(next, format string, args ...any) error {
	return &Error{Kind: Usage, Err: fmt.Errorf(format, args...), Next: next}
}

// fromRPC turns the answer of a gateway into an error of ours. doing says what
// was tried.
func fromRPC(err error, doing string, endpoints []string) error {
	if err == nil {
		return nil
	}
	var own *Error
	if errors.As(err, &own) {
		return err
	}
	at := strings.Join(endpoints, ",")
	s, isStatus := status.FromError(err)
	if !isStatus {
		if errors.Is(err, context.DeadlineExceeded) {
			s = status.New(codes.DeadlineExceeded, "no answer in time")
		} else {
			return &Error{Kind: Failed, Err: fmt.Errorf("%s: %w", doing, err)}
		}
	}
	e := &Error{Kind: Failed, Err: fmt.Errorf("%s: %s", doing, s.Message()), Next: "mortise cluster status --endpoints " + at}
	switch s.Code() {
	case codes.Unavailable, codes.DeadlineExceeded:
		e.Kind = Unreachable
		e.Err = fmt.Errorf("%s: no answer from %s: %s", doing, at, s.Message())
		if strings.HasPrefix(doing, "cluster status") {
			e.Next = "mortise cluster status --endpoints with another gateway, or start one: mortise dev"
		}
	case codes.NotFound:
		e.Kind = NotFound
	case codes.PermissionDenied, codes.Unauthenticated, codes.ResourceExhausted:
		e.Kind = Denied
	case codes.InvalidArgument:
		e.Kind = Usage
		e.Next = "mortise help"
	case codes.Canceled:
		e.Kind = Interrupted
		e.Code = 130
	}
	for _, d := range s.Details() {
		if d, ok := d.(*lockv1.ErrorDetail); ok && d.Reason == "TOKEN_NOT_CURRENT" {
			e.Next = "mortise lock show NAME"
		}
	}
	return e
}
