// Command mortise is the whole of Mortise in one binary: nodes, gateways, and
// the command line that people and scripts use.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/mortise-lock/mortise/ops/cli"
)

// codes are the exit codes of mortise help exit-codes. Only this file ends the
// process with one of them.
var codes = map[cli.Kind]int{
	cli.Failed: 1, cli.Usage: 2, cli.NotFound: 66, cli.Unreachable: 69, cli.NotAcquired: 75, cli.Denied: 77,
	cli.BadConfig: 78, cli.LockLost: 80, cli.NotStarted: 125, cli.CantExecute: 126, cli.NoCommand: 127,
}

// version is set by the linker.
var version string

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH)
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	env := &cli.Env{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ(), Signals: signals, Self: self, Version: version}
	os.Exit(code(cli.Run(context.Background(), env, os.Args[1:])))
}

func code(err error) int {
	if err == nil {
		return 0
	}
	var e *cli.Error
	if !errors.As(err, &e) {
		fmt.Fprintln(os.Stderr, "mortise:", err)
		return 1
	}
	if e.Err != nil {
		fmt.Fprintln(os.Stderr, "mortise:", e.Error())
	}
	switch {
	case e.Code != 0, e.Kind == cli.CommandStatus:
		return e.Code
	default:
		return codes[e.Kind]
	}
}
