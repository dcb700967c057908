package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// exitCodes is the table that the main program follows.
var exitCodes = []struct {
	code    int
	meaning string
}{
	{0, "done"},
	{1, "failed, other reason"},
	{2, "wrong usage"},
	{66, "no such lock, session, shard or node"},
	{69, "the cluster can't be reached or has no quorum"},
	{75, "lock not acquired: busy with --try, or --timeout ran out (another with -E)"},
	{77, "not permitted, or over a limit"},
	{78, "configuration invalid"},
	{80, "lock lost while it was needed; a command that ran was stopped"},
	{125, "mortise failed before it could start the command"},
	{126, "the command can't be executed"},
	{127, "the command was not found"},
}

// exits is the end of a command's help: the exit codes that scripts meet beside
// 0, 1 and 2.
func exits(codes ...int) string {
	var b strings.Builder
	b.WriteString("\nExit codes beside 0, 1 and 2 (mortise help exit-codes):\n")
	for _, x := range exitCodes {
		if slices.Contains(codes, x.code) {
			fmt.Fprintf(&b, "  %-4d %s\n", x.code, x.meaning)
		}
	}
	return b.String()
}

func newExitCodes() *cobra.Command {
	var b strings.Builder
	b.WriteString(example("mortise lock run --try backup -- ./backup.sh; [ $? = 75 ] && echo busy") + "Exit codes of mortise:\n\n")
	for _, x := range exitCodes {
		fmt.Fprintf(&b, "  %-12d %s\n", x.code, x.meaning)
	}
	b.WriteString("  otherwise    the command's own status; 128 + n if signal n killed it, or ended\n               mortise before the command began\n")
	return &cobra.Command{Use: "exit-codes", Short: "The exit codes of all commands", Long: b.String()}
}
