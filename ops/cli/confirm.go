package cli

import (
	"bufio"
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

var errNotConfirmed = errors.New("nothing was changed")

// confirm shows what is about to happen and asks, unless yes. Without a
// terminal to ask at, it refuses.
func (a *app) confirm(cmd *cobra.Command, yes bool, plan string) error {
	a.sayf("%s", plan)
	if yes {
		return nil
	}
	if _, err := unix.IoctlGetWinsize(int(a.In.Fd()), unix.TIOCGWINSZ); err != nil {
		return usagef("the same with --yes", "%s changes something and there is no terminal to ask at", cmd.CommandPath())
	}
	a.Err.Write([]byte("Go on? [y/N] "))
	line, _ := bufio.NewReader(a.In).ReadString('\n')
	if s := strings.ToLower(strings.TrimSpace(line)); s != "y" && s != "yes" {
		return &Error{Kind: Failed, Err: errNotConfirmed}
	}
	return nil
}
