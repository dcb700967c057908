package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/mortise-lock/mortise/ops/config"
	"github.com/mortise-lock/mortise/ops/loopback"
	"github.com/mortise-lock/mortise/ops/server"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// devFlags are what mortise dev is told.
type devFlags struct {
	nodes      int
	shards     uint32
	regions    []string
	processes  bool
	data       string
	grpc, http string
	strictOnly []string
}

func newDev(a *app) *cobra.Command {
	f := &devFlags{}
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole cluster on this machine, to try out",
		Long: example(`
			mortise dev                                  # three nodes in one process
			mortise dev --processes --nodes 5 --data d   # five processes, data kept in d`) +
			`Runs a whole cluster on loopback and prints a line with the word ready when it
serves. Without --data everything is gone at the end; --data with a cluster in
it continues that cluster. With --processes each node is a process of its own:
its process id is in DATA/NODE/pid and its command line is printed, so that it
can be killed and started again; dev itself restarts none. The gateway at --grpc
and --http is in dev's own process and stays up throughout. INT, TERM or HUP ends
everything, nodes started again by hand included. If dev itself is killed, the
nodes that it started stop by themselves.
`,
		GroupID: "run",
		Args:    exactArgs(0, "no argument"),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.dev(cmd.Context(), f) },
	}
	fl := c.Flags()
	fl.IntVar(&f.nodes, "nodes", 3, "nodes: 1, or 3 to 64; spread over three zones in turn")
	fl.Uint32Var(&f.shards, "shards", 16, "lock shards, 1 to 4096")
	fl.StringSliceVar(&f.regions, "regions", []string{"main"}, "the region's name; more than one is not supported yet")
	fl.BoolVar(&f.processes, "processes", false, "run each node as a process of its own")
	fl.StringVar(&f.data, "data", "", "the folder to keep everything in; unset: a temporary one, removed at the end")
	fl.StringVar(&f.grpc, "grpc", defaultEndpoint, "where clients reach the cluster by gRPC, host:port")
	fl.StringVar(&f.http, "http", "127.0.0.1:7421", "the same for HTTP/JSON")
	fl.StringSliceVar(&f.strictOnly, "strict-only", nil, "has no effect yet: patterns of names for which tier fast will be refused; there is no fast tier so far, and it is refused for all names")
	return c
}

func (f *devFlags) check() error {
	switch {
	case f.nodes < 1 || f.nodes > 64 || f.nodes == 2:
		// With two, losing either one stops every lock: worse than one.
		return usagef("mortise dev --nodes 3", "--nodes must be 1, or 3 to 64; %d is not", f.nodes)
	case len(f.regions) != 1:
		return usagef("mortise dev --regions eu", "--regions: one region is supported so far, %d are named", len(f.regions))
	case f.shards < 1 || f.shards > 4096:
		return usagef("mortise dev --shards 16", "--shards must be 1 to 4096; %d is not", f.shards)
	case !isHostPort(f.grpc):
		return usagef("mortise dev --grpc "+defaultEndpoint, "--grpc must be host:port; %q is not", f.grpc)
	case !isHostPort(f.http):
		return usagef("mortise dev --http 127.0.0.1:7421", "--http must be host:port; %q is not", f.http)
	}
	return nil
}

// devNode is one node of a dev cluster.
type devNode struct {
	name, folder, file string
	loaded             *config.Loaded
	cmd                *exec.Cmd
	log                *os.File
}

func (a *app) dev(ctx context.Context, f *devFlags) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	if len(f.strictOnly) > 0 {
		a.sayf("--strict-only has no effect yet: there is no fast tier, and every lock is strict")
	}
	ctx, stop := a.untilSignal(ctx, nil)
	defer stop()
	if f.data == "" {
		if f.data, err = os.MkdirTemp("", "mortise-dev-"); err != nil {
			return &Error{Err: err}
		}
		defer os.RemoveAll(f.data)
	} else if f.data, err = filepath.Abs(f.data); err != nil {
		return &Error{Err: err}
	}
	nodes, key, err := f.layOut()
	if err != nil {
		return &Error{Err: err, Next: "mortise dev --data with an empty folder"}
	}
	// The gateway's ports first: the commonest mistake is another dev that runs.
	gw := config.Default()
	gw.Mode, gw.DataDir, gw.ClusterKey = config.ModeGateway, filepath.Join(f.data, "gateway"), key
	gw.Gateway.GRPC, gw.Gateway.HTTP, gw.Log.Level = f.grpc, f.http, "warn"
	for _, n := range nodes {
		gw.Gateway.Seeds = append(gw.Gateway.Seeds, n.loaded.Listen)
	}
	if err := os.MkdirAll(gw.DataDir, 0o700); err != nil {
		return &Error{Err: err}
	}
	gwLoaded, err := f.write(filepath.Join(gw.DataDir, "config.yaml"), gw)
	if err != nil {
		return err
	}
	// Until the cluster is made, and when it ends, gateways have nothing but that
	// to warn of.
	var levels []*slog.LevelVar
	quiet := func(c config.Log) *slog.Logger {
		c.Level = "error"
		log, level := server.LeveledLogger(c, a.Err)
		levels = append(levels, level)
		return log
	}
	front, err := server.Start(gwLoaded, a.build().Version, quiet(gw.Log))
	if err != nil {
		return &Error{Err: err, Next: "mortise dev --grpc 127.0.0.1:PORT --http 127.0.0.1:PORT"}
	}
	defer func() { err = errors.Join(err, front.Stop(context.Background())) }()
	var ended <-chan error
	if f.processes {
		defer func() { stopProcesses(nodes) }()
		ended, err = a.startProcesses(nodes)
	} else {
		var running []*server.Server
		defer func() {
			for _, s := range running {
				err = errors.Join(err, s.Stop(context.Background()))
			}
		}()
		running, ended, err = a.startInside(ctx, nodes, quiet)
	}
	if err != nil {
		return &Error{Err: err}
	}
	begun := time.Now()
	if err := a.devInit(ctx, f, nodes[0], front, ended); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	warn := func(at slog.Level) {
		for _, l := range levels {
			l.Set(at)
		}
	}
	warn(slog.LevelWarn)
	fmt.Fprintf(a.Out, "mortise is ready: gRPC %s, HTTP http://%s, %s, %s, data in %s (%v)\n", f.grpc, f.http,
		plural(len(nodes), "node"), plural(int(f.shards), "shard"), f.data, time.Since(begun).Round(time.Millisecond))
	select {
	case <-ctx.Done():
		warn(slog.LevelError) // of nodes that stop, nobody needs to be warned
		return nil
	case err := <-ended:
		return &Error{Err: err}
	}
}

// layOut reads the cluster in the data folder, or plans a new one.
func (f *devFlags) layOut() (nodes []*devNode, key string, err error) {
	keyFile := filepath.Join(f.data, "key")
	if err := os.MkdirAll(f.data, 0o700); err != nil {
		return nil, "", err
	}
	old, err := filepath.Glob(filepath.Join(f.data, "n*", "config.yaml"))
	if err != nil {
		return nil, "", err
	}
	if len(old) > 0 {
		f.nodes = len(old)
		for i := range f.nodes {
			n := f.node(i)
			if n.loaded, err = config.Load(config.Sources{File: n.file}); err != nil {
				return nil, "", err
			}
			nodes = append(nodes, n)
		}
		b, err := os.ReadFile(keyFile)
		return nodes, strings.TrimSpace(string(b)), err
	}
	var random [32]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, "", err
	}
	key = hex.EncodeToString(random[:])
	if err := os.WriteFile(keyFile, []byte(key+"\n"), 0o600); err != nil {
		return nil, "", err
	}
	at, err := loopback.Addrs(4 * f.nodes)
	if err != nil {
		return nil, "", err
	}
	var gossip []string
	for i := range f.nodes {
		gossip = append(gossip, at[4*i+1])
	}
	for i := range f.nodes {
		n := f.node(i)
		c := config.Default()
		c.Name, c.Region, c.Zone = n.name, f.regions[0], string(rune('a'+i%3))
		c.DataDir, c.PIDFile, c.ClusterKeyFile = filepath.Join(n.folder, "data"), filepath.Join(n.folder, "pid"), keyFile
		c.Listen, c.Gossip.Listen, c.Gateway.GRPC, c.Gateway.HTTP = at[4*i], at[4*i+1], at[4*i+2], at[4*i+3]
		c.Gossip.Join = gossip
		if f.nodes < 3 {
			c.Zone = "" // two zones can't be spread over
		}
		if err := os.MkdirAll(n.folder, 0o700); err != nil {
			return nil, "", err
		}
		if n.loaded, err = f.write(n.file, c); err != nil {
			return nil, "", err
		}
		nodes = append(nodes, n)
	}
	return nodes, key, nil
}

func (f *devFlags) node(i int) *devNode {
	name := fmt.Sprintf("n%d", i+1)
	folder := filepath.Join(f.data, name)
	return &devNode{name: name, folder: folder, file: filepath.Join(folder, "config.yaml")}
}

// write keeps a configuration as a file and reads it back as a server would.
func (f *devFlags) write(file string, c config.Config) (*config.Loaded, error) {
	b, err := config.Write(c)
	if err == nil {
		err = os.WriteFile(file, b, 0o600)
	}
	if err != nil {
		return nil, err
	}
	return config.Load(config.Sources{File: file})
}

// startInside runs all nodes in this process, with loggers made by logger.
func (a *app) startInside(ctx context.Context, nodes []*devNode, logger func(config.Log) *slog.Logger) (running []*server.Server, ended <-chan error, err error) {
	ends := make(chan error, len(nodes))
	for _, n := range nodes {
		s, err := server.Start(n.loaded, a.build().Version, logger(n.loaded.Log).With("node", n.name))
		if err != nil {
			return running, nil, fmt.Errorf("node %s: %w", n.name, err)
		}
		running = append(running, s)
		go func() {
			if err := s.Wait(ctx); err != nil {
				ends <- fmt.Errorf("node %s: %w", n.name, err)
			}
		}()
	}
	return running, ends, nil
}

// startProcesses runs each node as a process, with its log in its folder.
func (a *app) startProcesses(nodes []*devNode) (<-chan error, error) {
	for _, n := range nodes {
		var err error
		if n.log, err = os.OpenFile(filepath.Join(n.folder, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			return nil, err
		}
		n.cmd = exec.Command(a.Self, "server", "run", "--config", n.file)
		n.cmd.Stderr, n.cmd.Stdout = n.log, n.log
		n.cmd.SysProcAttr = childAttributes()
		if err := startChild(n.cmd); err != nil {
			return nil, fmt.Errorf("node %s: %w", n.name, err)
		}
		if err := os.WriteFile(n.loaded.PIDFile, fmt.Appendf(nil, "%d\n", n.cmd.Process.Pid), 0o600); err != nil {
			return nil, err
		}
		fmt.Fprintf(a.Out, "node %s: %s server run --config %s\n", n.name, a.Self, n.file)
	}
	// A node that ends is the user's business: it can be started again.
	return nil, nil
}

// startChild starts a process and waits for it in the background, so that a
// killed one leaves no zombie.
func startChild(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		// The parent-death signal comes when the thread that forked ends, not the
		// process: that thread must last as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how a node ends is the user's business
		}
	}()
	return <-started
}

// stopProcesses stops the nodes, also those that were started again by hand.
func stopProcesses(nodes []*devNode) {
	var left []int
	for _, n := range nodes {
		b, err := os.ReadFile(n.loaded.PIDFile)
		var pid int
		if err != nil {
			continue
		}
		if _, err := fmt.Sscan(string(b), &pid); err != nil || !runs(pid, n.file) {
			continue
		}
		if syscall.Kill(pid, syscall.SIGTERM) == nil {
			left = append(left, pid)
		}
		if n.log != nil {
			defer n.log.Close()
		}
	}
	deadline := time.Now().Add(15 * time.Second)
	for _, pid := range left {
		for syscall.Kill(pid, 0) == nil {
			if time.Now().After(deadline) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// runs tells whether the process is still the one with that configuration: ids
// are reused.
func runs(pid int, file string) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(b, []byte(file))
}

// devInit initialises a new cluster and waits until all shards serve.
func (a *app) devInit(ctx context.Context, f *devFlags, first *devNode, front *server.Server, ended <-chan error) error {
	deadline := time.Now().Add(time.Minute)
	cc, err := dial(first.loaded.Listen)
	if err != nil {
		return &Error{Err: err}
	}
	defer cc.Close()
	nodes := uint32(f.nodes)
	initialised := false
	var last error
	for !initialised || !front.Ready() {
		if !initialised {
			one, cancel := context.WithTimeout(ctx, 10*time.Second)
			_, last = placementv1.NewPlacementServiceClient(cc).Init(one, &placementv1.InitRequest{Nodes: &nodes, Shards: &f.shards})
			cancel()
			initialised = last == nil || alreadyInitialised(last)
			if status.Code(last) == codes.InvalidArgument {
				return &Error{Err: fmt.Errorf("the cluster can't be made: %s", status.Convert(last).Message())}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return &Error{Err: err}
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			if last == nil || alreadyInitialised(last) {
				last = errors.New("not every shard has a leader")
			}
			return &Error{Kind: Unreachable, Err: fmt.Errorf("the cluster did not begin to serve within a minute: %w", last), Next: "the logs in " + f.data}
		}
	}
	return nil
}
