package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
)

// asProgram makes the test binary behave as the program does, in tests that
// need processes.
const asProgram = "MORTISE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	env := &Env{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ(), Signals: signals, Self: os.Args[0]}
	err := Run(context.Background(), env, os.Args[1:])
	if err == nil {
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, err)
	var e *Error
	if errors.As(err, &e) && e.Code != 0 {
		os.Exit(e.Code)
	}
	os.Exit(1)
}
