// Package server makes a running process out of a configuration: a node with
// its gateway, or a gateway alone. It holds no decisions of its own.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"syscall"
	"time"

	"github.com/mortise-lock/mortise/gateway"
	"github.com/mortise-lock/mortise/gateway/core"
	"github.com/mortise-lock/mortise/node/host"
	"github.com/mortise-lock/mortise/node/logstore/disk"
	"github.com/mortise-lock/mortise/ops/config"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Server is a started process's worth of service.
type Server struct {
	log     *slog.Logger
	node    *host.Node // nil for a gateway alone
	gateway *gateway.Gateway
	metrics *http.Server
	fatal   chan error
	served  chan error // ends of listeners
	running int
	// registry has everything that /metrics shows.
	registry *prometheus.Registry
}

// Start starts everything that the configuration names. When it returns
// without an error all listeners are open.
func Start(c *config.Loaded, version string, log *slog.Logger) (*Server, error) {
	reg := prometheus.NewRegistry()
	s := &Server{log: log, fatal: make(chan error, 1), served: make(chan error, 3), registry: reg}
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	patience := time.Now().Add(busyPatience)
	awaitPorts(c, patience)
	if err := s.start(c, version, reg, patience); err != nil {
		s.abandon()
		return nil, err
	}
	return s, nil
}

// A process that was killed holds its files and ports until the kernel has
// taken it apart, a moment after it counts as dead. Whoever starts the next one
// at once must not fail for it.
const (
	busyPatience = 2 * time.Second
	busyPause    = 50 * time.Millisecond
)

// awaitPorts waits until the ports of the configuration are free, before
// anything is opened. One that stays taken is reported by its listener.
func awaitPorts(c *config.Loaded, patience time.Time) {
	var addresses []string
	if c.Mode == config.ModeNode {
		addresses = append(addresses, c.Listen, c.Gossip.Listen)
	}
	if c.Gateway.Enabled {
		addresses = append(addresses, c.Gateway.GRPC, c.Gateway.HTTP)
	}
	for _, a := range append(addresses, c.MetricsListen) {
		for a != "" {
			l, err := net.Listen("tcp", a)
			if err == nil {
				l.Close()
			}
			if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(patience) {
				break
			}
			time.Sleep(busyPause)
		}
	}
}

// openNode opens the node, whose directory may be held for a moment longer.
func openNode(h host.Config, patience time.Time) (*host.Node, error) {
	for {
		n, err := host.Open(h)
		if !errors.Is(err, disk.ErrInUse) || time.Now().After(patience) {
			return n, err
		}
		time.Sleep(busyPause)
	}
}

func (s *Server) start(c *config.Loaded, version string, reg *prometheus.Registry, patience time.Time) error {
	g := gateway.Config{ClusterKey: c.Key, Seeds: c.Gateway.Seeds, Listen: c.Gateway.GRPC, HTTPListen: c.Gateway.HTTP,
		Logger: s.log.With("part", "gateway"), Registry: reg,
		Limits: core.Limits{Streams: c.Limits.Streams, StreamOps: c.Limits.StreamOps, Calls: c.Limits.Calls, UnarySessions: c.Limits.UnarySessions}}
	if c.DataDir != "" {
		g.MapPath = filepath.Join(c.DataDir, "gateway-map")
	}
	if c.Mode == config.ModeNode {
		h := host.Config{Name: c.Name, Region: c.Region, Zone: c.Zone, DataDir: c.DataDir, Listen: c.Listen, Advertise: c.Advertise,
			Gossip:     host.GossipConfig{Listen: c.Gossip.Listen, Advertise: c.Gossip.Advertise, Join: c.Gossip.Join, Key: c.Key},
			TokenFloor: c.TokenFloor, Version: version, Logger: s.log.With("part", "node"), Registry: reg,
			OnFatal: func(err error) {
				select {
				case s.fatal <- err:
				default:
				}
			}}
		if c.Gateway.Enabled {
			h.GatewayAddress, h.HTTPAddress = c.Gateway.GRPC, c.Gateway.HTTP
		}
		var err error
		if s.node, err = openNode(h, patience); err != nil {
			return err
		}
		g.Seeds = []string{s.node.Address()}
	}
	if c.Gateway.Enabled {
		var err error
		if s.gateway, err = gateway.New(g); err != nil {
			return err
		}
		s.serve(func() error { return s.gateway.Serve(context.Background()) })
	}
	if c.MetricsListen != "" {
		return s.serveMetrics(c.MetricsListen, reg)
	}
	return nil
}

func (s *Server) serve(f func() error) {
	s.running++
	go func() { s.served <- f() }()
}

// serveMetrics serves /metrics, /livez and /readyz alone.
func (s *Server) serveMetrics(address string, reg *prometheus.Registry) error {
	lis, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen for metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.Ready() {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, "not ready: no cluster yet, or shards without a leader")
			return
		}
		fmt.Fprintln(w, "ok")
	})
	s.metrics = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	s.serve(func() error {
		if err := s.metrics.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	return nil
}

// Ready: everything that runs here can serve.
func (s *Server) Ready() bool {
	return (s.node == nil || s.node.Ready()) && (s.gateway == nil || s.gateway.Ready())
}

// Address is the internal address of the node; empty without one.
func (s *Server) Address() string {
	if s.node == nil {
		return ""
	}
	return s.node.Address()
}

// Wait returns when ctx ends (nil) or when the process can't go on.
func (s *Server) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.fatal:
		return err
	case err := <-s.served:
		s.running--
		if err == nil {
			err = errors.New("a listener ended")
		}
		return err
	}
}

// gatewayGrace is how long clients get to go elsewhere before their streams
// are cut.
const gatewayGrace = 2 * time.Second

// Stop ends everything in order: clients are asked to go elsewhere, then
// leaderships are handed over, then files are closed.
func (s *Server) Stop(ctx context.Context) error {
	var errs []error
	if s.gateway != nil {
		grace, cancel := context.WithTimeout(ctx, gatewayGrace)
		// Clients that stay are cut: their sessions resume elsewhere.
		_ = s.gateway.Shutdown(grace)
		cancel()
	}
	if s.node != nil {
		errs = append(errs, s.node.Shutdown(ctx))
	}
	if s.metrics != nil {
		errs = append(errs, s.metrics.Close())
	}
	for ; s.running > 0; s.running-- {
		errs = append(errs, <-s.served)
	}
	return errors.Join(errs...)
}

// abandon frees what a failed Start took.
func (s *Server) abandon() {
	if s.gateway != nil && s.running > 0 {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.gateway.Shutdown(ctx)
	}
	if s.node != nil {
		_ = s.node.Kill()
	}
}
