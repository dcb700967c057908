package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortise-lock/mortise/gateway/core"
	"github.com/mortise-lock/mortise/gateway/httpjson"
	"github.com/mortise-lock/mortise/gateway/sessionid"
	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// Config of a gateway.
type Config struct {
	// ClusterKey signs session strings; the same at every gateway of a
	// cluster. Required.
	ClusterKey []byte
	// Seeds are internal addresses (host:port) of nodes, to learn the map
	// from. At least one, unless MapPath holds a map.
	Seeds []string
	// ClusterID, if set, is the only cluster whose map is accepted.
	ClusterID string
	// Listen is the address for gRPC, HTTPListen for HTTP/JSON; "" leaves one
	// out. Port 0 picks a free one; Addr and HTTPAddr tell.
	Listen     string
	HTTPListen string
	// TLS for the two listeners; nil: none.
	TLS *tls.Config
	// NodeTLS for the connections to nodes; nil: none.
	NodeTLS *tls.Config
	// MapPath, if set, is a file that keeps the last map.
	MapPath string
	// Dial replaces the dialling of nodes, for nodes in this process.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Logger and Registry; nil: none.
	Logger   *slog.Logger
	Registry *prometheus.Registry
	Limits   core.Limits
}

// Validate reports everything that is wrong with the configuration.
func (c *Config) Validate() error {
	var errs []error
	if len(c.ClusterKey) < 16 {
		errs = append(errs, fmt.Errorf("cluster key must have at least 16 bytes (has %d)", len(c.ClusterKey)))
	}
	if len(c.Seeds) == 0 && c.MapPath == "" {
		errs = append(errs, errors.New("seeds must name at least one node's internal address"))
	}
	for _, s := range c.Seeds {
		if _, _, err := net.SplitHostPort(s); err != nil {
			errs = append(errs, fmt.Errorf("seed %q must be host:port: %w", s, err))
		}
	}
	return errors.Join(errs...)
}

// maxClientFrame bounds a message from a client.
const maxClientFrame = 1 << 20

// Gateway serves clients. New, then Serve once.
type Gateway struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	core    *core.Core // the loop's own
	loop    *loop
	server  *grpc.Server
	health  *health.Server
	lis     net.Listener
	httpLis net.Listener
	http    *http.Server

	ctx    context.Context // ends the background work
	cancel context.CancelFunc
	work   sync.WaitGroup

	lastID  atomic.Uint64 // of streams and calls
	ready   atomic.Bool
	state   atomic.Pointer[loopState]
	maps    mapKeeper
	nodeMu  sync.Mutex
	nodes   map[uint64]*nodeConn
	conns   connCache
	clients clientTable
	calls   callTable
}

// New checks the configuration, opens the listeners and serves nothing yet.
func New(cfg Config) (*Gateway, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
	}
	g := &Gateway{cfg: cfg, log: cfg.Logger, nodes: map[uint64]*nodeConn{}}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.core = core.New(core.Config{
		Sessions: sessionid.New(cfg.ClusterKey),
		Random:   secureRandom(),
		WallMS:   func() int64 { return time.Now().UnixMilli() },
		Limits:   cfg.Limits,
	})
	g.loop = newLoop(g)
	g.maps.changed = make(chan struct{})
	g.conns.g = g
	g.state.Store(&loopState{})
	g.metrics = newMetrics(g, cfg.Registry)
	var err error
	if cfg.Listen != "" {
		if g.lis, err = net.Listen("tcp", cfg.Listen); err != nil {
			return nil, fmt.Errorf("gateway: listen for gRPC: %w", err)
		}
	}
	if cfg.HTTPListen != "" {
		if g.httpLis, err = net.Listen("tcp", cfg.HTTPListen); err != nil {
			if g.lis != nil {
				g.lis.Close()
			}
			return nil, fmt.Errorf("gateway: listen for HTTP: %w", err)
		}
	}
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxClientFrame),
		// A client whose host is gone is noticed by its silence, so that a waiting
		// unary call keeps no dead session alive for long.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.MaxConcurrentStreams(100_000),
		grpc.InitialWindowSize(1 << 20), grpc.InitialConnWindowSize(4 << 20),
	}
	if cfg.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(cfg.TLS)))
	}
	g.server = grpc.NewServer(opts...)
	g.health = health.NewServer()
	g.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	healthpb.RegisterHealthServer(g.server, g.health)
	lockv1.RegisterLockServiceServer(g.server, &service{g: g})
	placementv1.RegisterPlacementServiceServer(g.server, &placementProxy{g: g})
	reflection.Register(g.server)
	g.http = &http.Server{Handler: g.HTTPHandler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second,
		WriteTimeout: 2 * time.Minute, IdleTimeout: 2 * time.Minute, // the longest wait is 30 s
		MaxHeaderBytes: 64 << 10, TLSConfig: cfg.TLS}
	return g, nil
}

// Addr is the gRPC listener's address, nil without one.
func (g *Gateway) Addr() net.Addr {
	if g.lis == nil {
		return nil
	}
	return g.lis.Addr()
}

// HTTPAddr is the HTTP listener's address, nil without one.
func (g *Gateway) HTTPAddr() net.Addr {
	if g.httpLis == nil {
		return nil
	}
	return g.httpLis.Addr()
}

// Ready: a map is known and every shard's leader can be reached.
func (g *Gateway) Ready() bool { return g.ready.Load() }

// HTTPHandler is the HTTP/JSON API with /livez, /readyz and /metrics.
func (g *Gateway) HTTPHandler() http.Handler {
	return httpjson.New(httpjson.Config{
		Service: &service{g: g},
		Metrics: promhttp.HandlerFor(g.cfg.Registry, promhttp.HandlerOpts{}),
		Ready: func() (bool, string) {
			st := g.state.Load()
			return g.Ready(), fmt.Sprintf("%d of %d shards have a leader that this gateway reaches; map generation %d",
				st.led, st.shards, g.generation())
		},
	})
}

// Serve serves until ctx ends or Shutdown is called, then stops everything.
func (g *Gateway) Serve(ctx context.Context) error {
	stop := make(chan struct{})
	loopDone := make(chan struct{})
	go func() { defer close(loopDone); g.loop.run(stop) }()
	g.work.Go(g.followMap)
	errs := make(chan error, 2)
	if g.lis != nil {
		go func() { errs <- g.server.Serve(g.lis) }()
	}
	if g.httpLis != nil {
		go func() {
			var err error
			if g.cfg.TLS != nil {
				err = g.http.ServeTLS(g.httpLis, "", "")
			} else {
				err = g.http.Serve(g.httpLis)
			}
			if !errors.Is(err, http.ErrServerClosed) {
				errs <- err
			}
		}()
	}
	var err error
	select {
	case <-ctx.Done():
	case <-g.ctx.Done():
	case err = <-errs:
		if errors.Is(err, grpc.ErrServerStopped) {
			err = nil
		}
	}
	g.cancel()
	g.server.Stop()
	g.http.Close()
	g.work.Wait()
	g.conns.close()
	close(stop)
	<-loopDone
	return err
}

// Shutdown asks clients to go elsewhere, waits until they did or ctx ends, and
// makes Serve return.
func (g *Gateway) Shutdown(ctx context.Context) error {
	g.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	g.ready.Store(false)
	g.loop.post(core.Input{Kind: core.Shutdown})
	var err error
	// One pause at least: cancels are on their way to nodes.
	for first := true; (first || g.clients.count() > 0) && err == nil; first = false {
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-g.ctx.Done():
			err = g.ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	if err == nil {
		err = g.http.Shutdown(ctx)
	}
	g.cancel()
	return err
}

// loopState is what the loop publishes about the core.
type loopState struct {
	core.Stats
	shards, led int
	routes      uint64
	at          time.Time
}

// carryOut does what the core decided. Only the loop calls it.
func (g *Gateway) carryOut(out *core.Output) {
	if len(out.Nodes) > 0 || len(out.DropNodes) > 0 {
		g.nodeMu.Lock()
		for i := range out.Nodes {
			if nc := g.nodes[out.Nodes[i].Node]; nc != nil {
				nc.out.put(&out.Nodes[i])
			}
		}
		for _, id := range out.DropNodes {
			if nc := g.nodes[id]; nc != nil {
				nc.reset()
			}
		}
		g.nodeMu.Unlock()
	}
	for i := range out.Streams {
		g.clients.deliver(g, &out.Streams[i])
	}
	for i := range out.Answers {
		g.calls.deliver(&out.Answers[i])
	}
	for _, n := range out.Notes {
		if n.Audit {
			g.log.Warn(n.Message, append([]any{"audit", true}, n.Attrs...)...)
		} else {
			g.log.Info(n.Message, n.Attrs...)
		}
	}
	if out.WantMap {
		g.maps.refresh()
	}
	if st := g.state.Load(); st.routes != g.core.Routes() || time.Since(st.at) > 200*time.Millisecond {
		g.publish()
	}
}

// publish makes the core's sizes and readiness visible to others.
func (g *Gateway) publish() {
	ok, shards, led := g.core.Ready()
	g.state.Store(&loopState{Stats: g.core.Stats(), shards: shards, led: led, routes: g.core.Routes(), at: time.Now()})
	if g.ctx.Err() == nil && g.ready.Swap(ok) != ok {
		s := healthpb.HealthCheckResponse_NOT_SERVING
		if ok {
			s = healthpb.HealthCheckResponse_SERVING
		}
		g.health.SetServingStatus("", s)
		g.health.SetServingStatus(lockv1.LockService_ServiceDesc.ServiceName, s)
		g.log.Info("gateway readiness changed", "ready", ok, "shards", shards, "led", led, "map_generation", g.generation())
	}
}

// secureRandom returns 64-bit values that nobody outside can guess.
func secureRandom() func() uint64 {
	var seed [32]byte
	cryptoRead(seed[:])
	r := rand.NewChaCha8(seed) // used by the loop only
	return r.Uint64
}
