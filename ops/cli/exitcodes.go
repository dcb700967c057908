package cli

import "github.com/spf13/cobra"

// exitCodes is the table that the main program follows.
const exitCodes = `  mortise lock run --try backup -- ./backup.sh; [ $? = 75 ] && echo busy

Exit codes of mortise:

  0            done
  1            failed, other reason
  2            wrong usage
  66           no such lock, session, shard or node
  69           the cluster can't be reached or has no quorum
  75           lock not acquired: busy with --try, or --timeout ran out (another with -E)
  77           not permitted, or over a limit
  78           configuration invalid
  80           lock lost while the command ran; the command was stopped
  125          mortise failed before it could start the command
  126          the command can't be executed
  127          the command was not found
  otherwise    the command's own status; 128 + n if signal n killed it, or ended
               mortise before the command began
`

func newExitCodes() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "The exit codes of all commands",
		Long:  exitCodes,
	}
}
