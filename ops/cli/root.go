package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// defaultEndpoint is where a gateway listens when nobody says otherwise.
const defaultEndpoint = "127.0.0.1:7420"

// nearEnough is how many wrong letters a suggestion may have. The library takes
// it from each command on its own, not from the root.
const nearEnough = 2

// Env is what a command line has around it.
type Env struct {
	In       *os.File
	Out      io.Writer
	Err      io.Writer
	Environ  []string
	Signals  <-chan os.Signal
	Self     string // path of this program, for processes that it starts
	Version  string // of the build; empty: as the toolchain recorded it
	openLock func(ctx context.Context, c lockConfig) (lockSource, error)
}

func (e *Env) getenv(name string) string {
	for _, kv := range e.Environ {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// sayf writes a line for people.
func (e *Env) sayf(format string, args ...any) {
	fmt.Fprintf(e.Err, "mortise: "+format+"\n", args...)
}

// app is the state that all commands share.
type app struct {
	*Env
	endpoints []string
	output    string
	timeout   time.Duration
}

// Run carries out one command line. The error is a *Error.
func Run(ctx context.Context, env *Env, args []string) error {
	if env.openLock == nil {
		env.openLock = openSDK
	}
	root := newRoot(env)
	root.SetArgs(args)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	root.SetIn(env.In)
	err := root.ExecuteContext(ctx)
	var own *Error
	if err == nil || errors.As(err, &own) {
		return err
	}
	// What cobra itself refuses is always a mistake of the command line.
	return &Error{Kind: Usage, Err: err, Next: "mortise help"}
}

func newRoot(env *Env) *cobra.Command {
	a := &app{Env: env}
	root := &cobra.Command{
		Use:   "mortise",
		Short: "A distributed lock service",
		Long: example(`
			mortise dev                                  # a whole cluster to try out
			mortise lock run invoice/7 -- ./pay.sh       # run a command while holding a lock
			mortise lock ls`) +
			`Mortise is a distributed lock service. Whoever gets a lock also gets a fencing
token, a number that only rises, by which a store can refuse the writes of a
holder that no longer holds. Commands find the cluster by --endpoints, else by
the variable MORTISE_ENDPOINTS, else at ` + defaultEndpoint + `. Durations are written
with a unit: 500ms, 30s, 1h30m.
`,
		SilenceUsage:               true,
		SilenceErrors:              true,
		SuggestionsMinimumDistance: nearEnough,
		RunE:                       groupOnly,
		Args:                       cobra.ArbitraryArgs,
	}
	f := root.PersistentFlags()
	f.StringSliceVar(&a.endpoints, "endpoints", nil, "gateways, host:port, separated by commas (default $MORTISE_ENDPOINTS or "+defaultEndpoint+")")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.prepare(cmd) }
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &Error{Kind: Usage, Err: err, Next: cmd.CommandPath() + " --help"}
	})
	root.AddGroup(
		&cobra.Group{ID: "use", Title: "Locks:"},
		&cobra.Group{ID: "look", Title: "Looking at a cluster:"},
		&cobra.Group{ID: "run", Title: "Running a cluster:"},
	)
	root.AddCommand(
		newLock(a), newSession(a),
		newCluster(a), newNode(a), newShard(a),
		newDev(a), newServer(a),
		newVersion(a), newExitCodes(),
	)
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	ownWords(root)
	return root
}

// prepare checks what all commands share.
func (a *app) prepare(cmd *cobra.Command) error {
	from := "--endpoints"
	if len(a.endpoints) == 0 {
		a.endpoints, from = splitList(a.getenv("MORTISE_ENDPOINTS")), "MORTISE_ENDPOINTS"
	}
	if len(a.endpoints) == 0 {
		a.endpoints = []string{defaultEndpoint}
	}
	for _, e := range a.endpoints {
		if !isHostPort(e) {
			return usagef(cmd.CommandPath()+" --endpoints "+defaultEndpoint, "%s must be host:port, separated by commas; %q is not", from, e)
		}
	}
	if cmd.Flags().Lookup("output") != nil && a.output != "table" && a.output != "json" {
		return usagef(cmd.CommandPath()+" -o json", "-o must be table or json; %q is neither", a.output)
	}
	if cmd.Flags().Lookup("request-timeout") != nil && a.timeout <= 0 {
		return usagef(cmd.CommandPath()+" --request-timeout 10s", "--request-timeout must be more than 0; %v is not", a.timeout)
	}
	return nil
}

// ownWords makes the help of what cobra brings, and its lines about usage, like
// the rest.
func ownWords(root *cobra.Command) {
	// A command that only holds others can't be run.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Short = "Explain a command"
			c.Long = example("mortise help lock run") + "Explains a command, as --help behind the command does. mortise help exit-codes\nlists what scripts may rely on.\n"
		case "completion":
			c.Short = "Print a script that completes commands in your shell"
			c.Long = example("source <(mortise completion bash)") + "Prints a script by which a shell completes commands and flags. The help of each\nshell's command says where to put it.\n"
			for _, shell := range c.Commands() {
				shell.Short = "Print the script for " + shell.Name()
			}
		}
	}
}

// groupOnly is the body of commands that only hold others.
func groupOnly(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	next := cmd.CommandPath() + " --help"
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		next = cmd.CommandPath() + " " + strings.Join(s, ", or "+cmd.CommandPath()+" ")
	}
	return usagef(next, "%s has no command %q", cmd.CommandPath(), args[0])
}

// group makes a command that only holds others.
func group(use, short, id, examples string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: example(examples) + short + ".\n", GroupID: id, RunE: groupOnly, Args: cobra.ArbitraryArgs,
		SuggestionsMinimumDistance: nearEnough}
	c.AddCommand(children...)
	return c
}

// reading adds the flags of commands that show something.
func (a *app) reading(c *cobra.Command) *cobra.Command {
	c.Flags().StringVarP(&a.output, "output", "o", "table", "table or json")
	return a.asking(c)
}

// asking adds the flags of commands that ask a gateway something.
func (a *app) asking(c *cobra.Command) *cobra.Command {
	c.Flags().DurationVar(&a.timeout, "request-timeout", 10*time.Second, "give up after this time, such as 30s")
	return c
}

// example puts examples first in a help text.
func example(text string) string {
	var b strings.Builder
	b.WriteString("Examples:\n")
	for line := range strings.SplitSeq(strings.Trim(text, "\n"), "\n") {
		b.WriteString("  " + strings.TrimLeft(line, "\t") + "\n")
	}
	return b.String() + "\n"
}

func splitList(text string) []string {
	var out []string
	for s := range strings.SplitSeq(text, ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// exactArgs is cobra's, as a usage error with the next step.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef(cmd.CommandPath()+" --help", "%s takes %s; it got %d arguments", cmd.CommandPath(), what, len(args))
		}
		return nil
	}
}
