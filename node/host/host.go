package host

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortise-lock/mortise/node/gossip"
	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/node/logstore/disk"
	"github.com/mortise-lock/mortise/node/snapshot"
	"github.com/mortise-lock/mortise/node/transport"
	"github.com/mortise-lock/mortise/node/worker"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/mortise-lock/mortise/shard"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// Config of a node.
type Config struct {
	// Name is unique in the cluster and the same at every start. Required.
	Name         string
	Region, Zone string
	// DataDir is made if missing; one process at a time uses it. Required.
	DataDir string
	// Listen is the internal gRPC listener; port 0 picks a free one. Advertise
	// is what others are told; empty: the address listened on.
	Listen, Advertise string
	Gossip            GossipConfig
	// GatewayAddress and HTTPAddress of this node's own gateway are told to
	// others; empty if it runs none.
	GatewayAddress, HTTPAddress string
	// TokenFloor is the smallest first token of a cluster that is initialised
	// through this node; 0: unix seconds << 20.
	TokenFloor uint64
	// TLS for the listener and for connections to peers; nil: none.
	ServerTLS, ClientTLS *tls.Config
	Version              string
	Logger               *slog.Logger
	Registry             *prometheus.Registry
	// Workers is how many loops run the replicas; unset: half of GOMAXPROCS, since
	// a loop takes a third of what its node spends, and fewer loops make fuller
	// frames and entries.
	Workers int
	// OnFatal is called once when the node can't go on (a failed sync, damaged
	// data): the process must end at once. Required.
	OnFatal func(error)
	// Snapshots overrides when state is written to files.
	Snapshots worker.SnapshotPolicy
	// Store overrides how the log store is opened; its FS also holds the
	// snapshot files. Dir, Logger and the callbacks are the node's own.
	Store disk.Options
}

// Folders of the data directory.
const (
	logFolder      = "log"
	snapshotFolder = "snapshots"
)

// GossipConfig is how nodes find one another.
type GossipConfig struct {
	Listen, Advertise string
	Join              []string
	Key               []byte
}

// Node is a running node. Open, then Shutdown once.
type Node struct {
	cfg     Config
	log     *slog.Logger
	started time.Time

	store     *disk.Store
	snapshots *snapshot.Folder
	// snapshotPace is that of all writing of snapshots.
	snapshotPace *transport.Pacer
	transport    *transport.Transport
	gossip       *gossip.Gossip
	server       *grpc.Server
	lis          net.Listener
	health       *health.Server
	address      string // advertised

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	boot       sync.Mutex // one bootstrap or start at a time
	bootSynced chan int   // initial states that became durable
	inits      sync.Mutex // one init at a time

	running  atomic.Pointer[running]
	placed   atomic.Pointer[placementv1.Map]
	mapMu    sync.Mutex
	mapMoved chan struct{} // closed and replaced when placed changes

	draining atomic.Bool
	failed   sync.Once
	streams  streams
	leaders  leaderTable
	waiting  waiting
	reported atomic.Pointer[statistics]
	peers    peerConns
}

// running is what exists once the node belongs to a cluster.
type running struct {
	clusterID string
	node      worker.NodeID
	loops     []*loop
}

// Open starts a node. It returns when the node listens; replicas may still
// replay their logs. Errors name what is wrong and what to do.
func Open(cfg Config) (*Node, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
	}
	if cfg.Workers <= 0 {
		cfg.Workers = max(1, runtime.GOMAXPROCS(0)/2)
	}
	if cfg.Name == "" || cfg.DataDir == "" || cfg.Listen == "" || cfg.OnFatal == nil {
		return nil, errors.New("host: Config needs Name, DataDir, Listen and OnFatal")
	}
	n := &Node{cfg: cfg, log: cfg.Logger, started: time.Now(), mapMoved: make(chan struct{}), bootSynced: make(chan int, 1024),
		snapshotPace: transport.NewPacer(snapshotWriteRate, snapshotWriteBurst)}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.streams = streams{n: n, open: map[worker.StreamID]*stream{}}
	n.leaders.known = map[shard.ID]worker.LeaderChange{}
	n.peers.n = n
	if err := n.open(); err != nil {
		n.abandon()
		return nil, err
	}
	return n, nil
}

func (n *Node) open() error {
	var err error
	o := n.cfg.Store
	o.Dir, o.Logger, o.OnSynced, o.OnFatal = filepath.Join(n.cfg.DataDir, logFolder), n.log, n.synced, n.fatal
	if n.store, err = disk.Open(o); err != nil {
		return err
	}
	if n.snapshots, err = snapshot.Open(filepath.Join(n.cfg.DataDir, snapshotFolder), o.FS); err != nil {
		return err
	}
	states, err := n.store.Load()
	if err != nil {
		return err
	}
	if n.lis, err = net.Listen("tcp", n.cfg.Listen); err != nil {
		return fmt.Errorf("listen for nodes and gateways on %s: %w", n.cfg.Listen, err)
	}
	n.address = n.cfg.Advertise
	if n.address == "" {
		n.address = n.lis.Addr().String()
	}
	n.registerMetrics()
	self := gossip.Member{Name: n.cfg.Name, Address: n.address, GatewayAddress: n.cfg.GatewayAddress, HTTPAddress: n.cfg.HTTPAddress,
		Region: n.cfg.Region, Zone: n.cfg.Zone}
	id, known := n.store.Identity()
	if known {
		self.ClusterID, self.Node = id.ClusterID, id.NodeID
	}
	if n.gossip, err = gossip.Start(gossip.Config{Self: self, Listen: n.cfg.Gossip.Listen, Advertise: n.cfg.Gossip.Advertise,
		Join: n.cfg.Gossip.Join, Key: n.cfg.Gossip.Key, Logger: n.log}); err != nil {
		return err
	}
	n.serve()
	if known {
		if err := n.checkName(); err != nil {
			return err
		}
		if err := n.start(id, states); err != nil {
			return err
		}
		n.work.Go(n.watchForStrangers)
	} else {
		n.log.Info("this node belongs to no cluster yet; it waits for: mortise server init", "name", n.cfg.Name, "address", n.address)
		n.work.Go(n.watchForNamesake)
	}
	n.work.Go(n.tick)
	n.work.Go(n.followMap)
	n.work.Go(n.keepStatistics)
	return nil
}

// checkName refuses a directory that the map gives another name.
func (n *Node) checkName() error {
	m, err := n.loadMap()
	if err != nil {
		return err
	}
	id, _ := n.store.Identity()
	if self := nodeOf(m, id.NodeID); self != nil && self.Name != n.cfg.Name {
		return fmt.Errorf("data directory %s belongs to node %s of cluster %s, but this one is configured as %s: "+
			"give each node its own data_dir, or set name: %s", n.cfg.DataDir, self.Name, id.ClusterID, n.cfg.Name, self.Name)
	}
	return nil
}

func (n *Node) serve() {
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(16 << 20), grpc.MaxConcurrentStreams(10_000),
		grpc.StaticStreamWindowSize(4 << 20), grpc.StaticConnWindowSize(8 << 20),
		grpc.WriteBufferSize(128 << 10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
	}
	if n.cfg.ServerTLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(n.cfg.ServerTLS)))
	}
	n.server = grpc.NewServer(opts...)
	n.health = health.NewServer()
	n.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	healthpb.RegisterHealthServer(n.server, n.health)
	nodev1.RegisterNodeServiceServer(n.server, nodeService{n: n})
	nodev1.RegisterPeerServiceServer(n.server, peerService{n: n})
	placementv1.RegisterPlacementServiceServer(n.server, admin{n: n})
	reflection.Register(n.server)
	n.work.Go(func() {
		if err := n.server.Serve(n.lis); err != nil && n.ctx.Err() == nil {
			n.fatal(fmt.Errorf("the internal listener failed: %w", err))
		}
	})
}

// start runs the replicas that the directory holds.
func (n *Node) start(id disk.Identity, states []logstore.ReplicaState) error {
	m, err := n.loadMap()
	if err != nil {
		return err
	}
	self := nodeOf(m, id.NodeID)
	if self == nil {
		return fmt.Errorf("data directory %s belongs to node %d of cluster %s, but the cluster's map does not list that node any more: "+
			"start with an empty directory to join as a new node", n.cfg.DataDir, id.NodeID, id.ClusterID)
	}
	replicas, keep, err := n.restoreAll(m, id.NodeID, states)
	if err != nil {
		return err
	}
	if _, err := n.snapshots.Collect(keep); err != nil {
		return err
	}
	r := &running{clusterID: id.ClusterID, node: worker.NodeID(id.NodeID)}
	byLoop := make([][]worker.Replica, n.cfg.Workers)
	for _, rep := range replicas {
		i := int(rep.Shard) % n.cfg.Workers
		byLoop[i] = append(byLoop[i], rep)
		n.leaders.set(worker.LeaderChange{Shard: rep.Shard})
	}
	for _, reps := range byLoop {
		w, err := worker.New(worker.Config{Node: r.node, Replicas: reps, Tick: tickEvery, Snapshots: n.cfg.Snapshots})
		if err != nil {
			return err
		}
		r.loops = append(r.loops, newLoop(n, w))
	}
	n.transport = transport.New(transport.Config{
		ClusterID: id.ClusterID, Node: r.node, TLS: n.cfg.ClientTLS, Logger: n.log, Files: files{n.snapshots, n},
		Deliver: n.deliver, Install: n.install,
		SnapshotSent: func(s worker.SnapshotSent) {
			r.loops[int(s.Shard)%len(r.loops)].post(func(in *worker.Input) { in.SnapshotsSent = append(in.SnapshotsSent, s) })
		},
		Unreachable: func(p worker.NodeID) {
			n.postAll(func(in *worker.Input) { in.Unreachable = append(in.Unreachable, p) })
		},
		PeerDown: func(p worker.NodeID) {
			n.postAll(func(in *worker.Input) { in.PeersDown = append(in.PeersDown, p) })
		},
	})
	n.running.Store(r)
	n.setMap(m)
	for _, l := range r.loops {
		go l.run()
		l.signal()
	}
	n.gossip.SetSelf(func(g *gossip.Member) { g.ClusterID, g.Node, g.MapGeneration = id.ClusterID, id.NodeID, m.Generation })
	n.log.Info("node started", "cluster", id.ClusterID, "node", id.NodeID, "name", n.cfg.Name, "replicas", len(replicas), "address", n.address)
	n.work.Go(n.reportAddress)
	return nil
}

// loops are nil until the node belongs to a cluster.
func (n *Node) loops() []*loop {
	if r := n.running.Load(); r != nil {
		return r.loops
	}
	return nil
}

func (n *Node) loopOf(id shard.ID) int { return int(id) % n.cfg.Workers }

func (n *Node) clusterID() string {
	if r := n.running.Load(); r != nil {
		return r.clusterID
	}
	return ""
}

func (n *Node) postAll(add func(*worker.Input)) {
	for _, l := range n.loops() {
		l.post(add)
	}
}

// Address is what others reach this node by.
func (n *Node) Address() string { return n.address }

func (n *Node) uptimeMS() uint64 { return uint64(time.Since(n.started).Milliseconds()) + 1 }

// synced takes steps that became durable to their workers, in order.
func (n *Node) synced(steps []logstore.Append) {
	loops := n.loops()
	if loops == nil {
		n.bootSynced <- len(steps)
		return
	}
	byLoop := make([][]logstore.Append, len(loops))
	for _, a := range steps {
		i := n.loopOf(a.Shard)
		byLoop[i] = append(byLoop[i], a)
	}
	for i, as := range byLoop {
		if len(as) > 0 {
			loops[i].post(func(in *worker.Input) { in.Synced = append(in.Synced, as...) })
		}
	}
}

// deliver takes inbound raft messages to their workers.
func (n *Node) deliver(ms []worker.RaftMessage) {
	loops := n.loops()
	byLoop := make([][]worker.RaftMessage, len(loops))
	for _, m := range ms {
		i := n.loopOf(m.Shard)
		byLoop[i] = append(byLoop[i], m)
	}
	for i, b := range byLoop {
		if len(b) > 0 {
			loops[i].post(func(in *worker.Input) { in.Messages = append(in.Messages, b...) })
		}
	}
}

// tick wakes every loop each 100 ms, whatever the disk does.
func (n *Node) tick() {
	t := time.NewTicker(tickEvery)
	defer t.Stop()
	last := now()
	var rest time.Duration
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-t.C:
		}
		// The ticker drops what it could not deliver; make up for it.
		at := now()
		rest += time.Duration(at - last)
		last = at
		ticks := int(rest / tickEvery)
		rest -= time.Duration(ticks) * tickEvery
		n.postAll(func(in *worker.Input) { in.Ticks += ticks })
	}
}

// fatal ends the node for good.
func (n *Node) fatal(err error) {
	n.failed.Do(func() {
		n.log.Error("this node can't go on", "error", err)
		n.cfg.OnFatal(err)
	})
}

// drainFor bounds how long Shutdown waits for leaderships to be handed over.
const drainFor = 5 * time.Second

// Shutdown hands every leadership over, then stops. ctx bounds the handing
// over; what follows takes as long as closing files takes.
func (n *Node) Shutdown(ctx context.Context) error {
	n.draining.Store(true)
	n.updateHealth()
	n.log.Info("stopping: handing leaderships over")
	ctx, cancel := context.WithTimeout(ctx, drainFor)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	began := time.Now()
wait:
	for {
		left := 0
		for _, l := range n.loops() {
			l.signal()
			if !l.drained.Load() {
				left++
			}
		}
		if left == 0 {
			n.log.Info("leaderships handed over", "took", time.Since(began).Round(time.Millisecond))
			break
		}
		select {
		case <-ctx.Done():
			n.log.Warn("stopping with leaderships that could not be handed over in time")
			break wait
		case <-poll.C:
		}
	}
	return n.stop()
}

// Kill stops at once, without handing anything over: for tests, as near to a
// killed process as one process gets.
func (n *Node) Kill() error {
	n.draining.Store(true)
	return n.stop()
}

func (n *Node) stop() error {
	n.cancel()
	n.server.Stop()
	for _, l := range n.loops() {
		l.close()
	}
	if n.transport != nil {
		n.transport.Close()
	}
	n.peers.close()
	err := n.gossip.Close()
	n.work.Wait()
	err = errors.Join(err, n.store.Close())
	n.log.Info("node stopped")
	return err
}

// abandon frees what a failed Open took.
func (n *Node) abandon() {
	n.cancel()
	if n.server != nil {
		n.server.Stop()
	} else if n.lis != nil {
		n.lis.Close()
	}
	for _, l := range n.loops() {
		l.close()
	}
	if n.transport != nil {
		n.transport.Close()
	}
	if n.gossip != nil {
		_ = n.gossip.Close()
	}
	n.work.Wait()
	if n.store != nil {
		_ = n.store.Close()
	}
}
