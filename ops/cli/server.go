package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/mortise-lock/mortise/ops/config"
	"github.com/mortise-lock/mortise/ops/server"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func newServer(a *app) *cobra.Command {
	return group("server", "Run nodes and gateways of a real cluster", "run", `
		mortise server check-config --config n1.yaml
		mortise server run --config n1.yaml          # on each host
		mortise server init --endpoints n1:7420      # once`,
		newServerRun(a), newServerInit(a), newServerCheck(a), newServerPrint(a))
}

// sources adds the flags that a configuration comes from.
func (a *app) sources(c *cobra.Command) *config.Sources {
	s := &config.Sources{Env: a.Environ}
	c.Flags().StringVar(&s.File, "config", "", "the configuration file (YAML)")
	c.Flags().StringArrayVar(&s.Set, "set", nil, "a setting over the file and the environment, key=value; repeatable")
	c.Flags().BoolFunc("insecure", "allow listeners beyond loopback without TLS", func(string) error {
		s.Set = append(s.Set, "insecure=true")
		return nil
	})
	return s
}

func (a *app) load(cmd *cobra.Command, s *config.Sources) (*config.Loaded, error) {
	l, err := config.Load(*s)
	if err != nil {
		var all *config.Error
		if errors.As(err, &all) && len(all.Problems) > 1 {
			err = fmt.Errorf("%d problems:\n%w", len(all.Problems), err)
		}
		return nil, &Error{Kind: BadConfig, Err: err, Next: "mortise server check-config --config FILE"}
	}
	return l, nil
}

func newServerRun(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "run --config FILE",
		Short: "Run a node or a gateway until a signal",
		Long: example("mortise server run --config /etc/mortise/n1.yaml") + `Runs a node (with its gateway) or a gateway alone, as the configuration says.
TERM or INT stops it: clients are sent elsewhere, leaderships handed over, files
closed. A second one ends it at once, which loses nothing either. HUP makes it
read the file again: what can change while it runs is applied (docs/config.md
says which settings), and a log line names each setting that changed and each
that needs a restart. A file with problems changes nothing; they are logged.
` + exits(78),
		Args: exactArgs(0, "no argument"),
	}
	s := a.sources(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		l, err := a.load(cmd, s)
		if err != nil {
			return err
		}
		return a.runServer(cmd.Context(), *s, l)
	}
	return c
}

func (a *app) runServer(ctx context.Context, s config.Sources, l *config.Loaded) error {
	log, level := server.LeveledLogger(l.Log, a.Err)
	reloads := server.NewReloads(s, l, log, level)
	// Beside the signals: a file that can't be read for long must not keep TERM
	// waiting. Signals that come meanwhile are one reload more.
	hups := make(chan struct{}, 1)
	over := make(chan struct{})
	defer close(over)
	go func() {
		for {
			select {
			case <-hups:
				reloads.Reload()
			case <-over:
				return
			}
		}
	}()
	ctx, stop := a.untilSignal(ctx, func() {
		select {
		case hups <- struct{}{}:
		default:
		}
	})
	defer stop()
	srv, err := server.Start(l, a.build().Version, log)
	if err != nil {
		return &Error{Kind: Failed, Err: err}
	}
	if f := l.PIDFile; f != "" {
		if err := os.WriteFile(f, fmt.Appendf(nil, "%d\n", os.Getpid()), 0o600); err != nil {
			log.Warn("the process id could not be written", "file", f, "error", err)
		}
	}
	if err := srv.Wait(ctx); err != nil {
		// Nothing is handed over: what failed may be the very disk that is needed for it.
		return &Error{Kind: Failed, Err: err}
	}
	if err := srv.Stop(context.Background()); err != nil {
		return &Error{Kind: Failed, Err: fmt.Errorf("stopping: %w", err)}
	}
	return nil
}

// untilSignal returns a context that ends with the first INT, TERM or HUP. The
// second one ends the process. With hup, HUP calls that and ends nothing.
func (a *app) untilSignal(ctx context.Context, hup func()) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		first := true
		for s := range a.Signals {
			n, ok := s.(syscall.Signal)
			if !ok || (n != syscall.SIGINT && n != syscall.SIGTERM && n != syscall.SIGHUP) {
				continue
			}
			if n == syscall.SIGHUP && hup != nil {
				hup()
				continue
			}
			if !first {
				os.Exit(128 + int(n))
			}
			first = false
			cancel()
		}
	}()
	return ctx, cancel
}

func newServerInit(a *app) *cobra.Command {
	var nodes, shards uint32
	var floor uint64
	var yes bool
	c := &cobra.Command{
		Use:   "init",
		Short: "Make a cluster of the nodes that have joined, once",
		Long: example("mortise server init --endpoints n1:7420 --nodes 3") + `Chooses a cluster id, plans the meta shard and the lock shards over the nodes
that have joined by gossip (five replicas where there are five nodes, else
three, spread over zones), and tells each node its part. If some node could not
take its part, put it right and run the same again at the same endpoint.
` + exits(69),
		Args: exactArgs(0, "no argument"),
	}
	f := c.Flags()
	f.Uint32Var(&nodes, "nodes", 3, "nodes that must have joined")
	f.Uint32Var(&shards, "shards", 16, "lock shards per region, 1 to 4096")
	f.Uint64Var(&floor, "token-floor", 0, "smallest first token; 0: unix seconds << 20")
	f.BoolVar(&yes, "yes", false, "do not ask")
	f.DurationVar(&a.timeout, "request-timeout", time.Minute, "give up after this time")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.confirm(cmd, yes, fmt.Sprintf("making a cluster of at least %s with %s per region through %s",
			plural(int(nodes), "node"), plural(int(shards), "shard"), strings.Join(a.endpoints, ","))); err != nil {
			return err
		}
		req := &placementv1.InitRequest{Nodes: &nodes, Shards: &shards}
		if floor != 0 {
			req.TokenFloor = &floor
		}
		// One endpoint alone: two inits at two nodes would be two clusters.
		a.endpoints = a.endpoints[:1]
		r, err := call(cmd.Context(), a, "init", func(ctx context.Context, cc *grpc.ClientConn) (*placementv1.InitResponse, error) {
			return placementv1.NewPlacementServiceClient(cc).Init(ctx, req)
		})
		if err != nil {
			return err
		}
		a.sayf("cluster %s has %s and %s", r.Map.ClusterId, plural(len(r.Map.Nodes), "node"), plural(len(r.Map.Shards)-1, "lock shard"))
		return nil
	}
	return c
}

func newServerCheck(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "check-config --config FILE",
		Short: "Report everything that is wrong with a configuration",
		Long:  example("mortise server check-config --config n1.yaml") + "Reports all problems at once, with file and line, and changes nothing.\n" + exits(78),
		Args:  exactArgs(0, "no argument"),
	}
	s := a.sources(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if _, err := a.load(cmd, s); err != nil {
			return err
		}
		_, err := fmt.Fprintln(a.Out, "ok")
		return err
	}
	return c
}

func newServerPrint(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "print-config --config FILE",
		Short: "Show the configuration in force and where each value was written",
		Long:  example("mortise server print-config --config n1.yaml") + "Shows the configuration that a server with the same file, environment and flags\nwould have. Flags win over the environment, the environment wins over the file.\n" + exits(78),
		Args:  exactArgs(0, "no argument"),
	}
	s := a.sources(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		l, err := a.load(cmd, s)
		if err != nil {
			return err
		}
		b, err := l.Print()
		if err == nil {
			_, err = a.Out.Write(b)
		}
		return err
	}
	return c
}

// alreadyInitialised tells that an init found its work done.
func alreadyInitialised(err error) bool { return status.Code(err) == codes.AlreadyExists }
