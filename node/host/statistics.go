package host

import (
	"time"

	"github.com/mortise-lock/mortise/node/worker"
	"github.com/prometheus/client_golang/prometheus"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// statistics is what the loops last said of themselves, for metrics: scrapes
// must not wait for a loop.
type statistics struct {
	replicas, sessions int
	holds, waits       int
	stateBytes         int64
	logBytes           int64
	diskBytes          uint64
	worker.Counters
	stalls     uint64
	lowOnSpace bool
}

// keepStatistics gathers once a second.
func (n *Node) keepStatistics() {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-t.C:
		}
		s := &statistics{diskBytes: n.diskBytes(), lowOnSpace: n.store.LowOnSpace()}
		if was := n.reported.Load(); s.lowOnSpace && (was == nil || !was.lowOnSpace) {
			n.log.Warn("the disk is nearly full: the shards that this node leads refuse new locks until space is freed", "data_dir", n.cfg.DataDir)
		} else if was != nil && was.lowOnSpace && !s.lowOnSpace {
			n.log.Info("the disk has room again: new locks are granted", "data_dir", n.cfg.DataDir)
		}
		for _, l := range n.loops() {
			s.stalls += l.stalls.Load()
			l.call(func(w *worker.Worker) { s.add(w) })
		}
		n.reported.Store(s)
	}
}

func (s *statistics) add(w *worker.Worker) {
	for _, id := range w.Shards() {
		x, _ := w.Status(id)
		s.replicas++
		s.stateBytes += x.MachineBytes
		s.logBytes += x.LogBytes
		if x.Ready {
			s.holds += x.Holds
			s.waits += x.Waits
		}
	}
	s.sessions += w.Sessions()
	c := w.Counters()
	s.Proposals += c.Proposals
	s.Commands += c.Commands
	s.AppliedEntries += c.AppliedEntries
	s.AppliedCommands += c.AppliedCommands
	s.Expired += c.Expired
	s.Renewals += c.Renewals
	s.Reads += c.Reads
	s.Rounds += c.Rounds
	s.Refused += c.Refused
	s.Misdirected += c.Misdirected
	s.OutcomeUnknown += c.OutcomeUnknown
	s.LeaderChanges += c.LeaderChanges
	s.SnapshotsWritten += c.SnapshotsWritten
	s.SnapshotsInstalled += c.SnapshotsInstalled
	s.SnapshotErrors += c.SnapshotErrors
	s.DiskStalls += c.DiskStalls
}

// diskBytes is the size of the log store.
func (n *Node) diskBytes() uint64 { return n.store.Stats().DiskUsage }

// Ready: the node belongs to a cluster and every shard that it has a replica of
// has a leader, here or elsewhere.
func (n *Node) Ready() bool {
	known, led, _ := n.leaders.counts()
	return n.loops() != nil && known > 0 && led == known && !n.draining.Load()
}

func (n *Node) updateHealth() {
	s := healthpb.HealthCheckResponse_NOT_SERVING
	if n.Ready() {
		s = healthpb.HealthCheckResponse_SERVING
	}
	n.health.SetServingStatus("", s)
}

// registerMetrics registers everything that doc.go lists.
func (n *Node) registerMetrics() {
	reg := n.cfg.Registry
	stat := func(f func(*statistics) float64) func() float64 {
		return func() float64 {
			if s := n.reported.Load(); s != nil {
				return f(s)
			}
			return 0
		}
	}
	gauge := func(name, help string, f func() float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "mortise", Subsystem: "node", Name: name, Help: help}, f))
	}
	counter := func(name, help string, f func() float64) {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "mortise", Subsystem: "node", Name: name, Help: help}, f))
	}
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "mortise", Subsystem: "node", Name: "info", Help: "The build; always 1."}, []string{"version"})
	info.WithLabelValues(n.cfg.Version).Set(1)
	reg.MustRegister(info)

	gauge("replicas", "Replicas hosted.", stat(func(s *statistics) float64 { return float64(s.replicas) }))
	gauge("leaders", "Replicas that lead and are ready.", func() float64 { _, _, ready := n.leaders.counts(); return float64(ready) })
	gauge("sessions", "Sessions registered in any shard hosted.", stat(func(s *statistics) float64 { return float64(s.sessions) }))
	gauge("holds", "Holds in shards led.", stat(func(s *statistics) float64 { return float64(s.holds) }))
	gauge("waits", "Waits in shards led.", stat(func(s *statistics) float64 { return float64(s.waits) }))
	gauge("state_bytes", "Memory of all state machines.", stat(func(s *statistics) float64 { return float64(s.stateBytes) }))
	gauge("log_bytes", "Memory of all live logs.", stat(func(s *statistics) float64 { return float64(s.logBytes) }))
	gauge("disk_bytes", "Size of the log store on disk.", stat(func(s *statistics) float64 { return float64(s.diskBytes) }))
	gauge("low_on_space", "1 while new locks are refused because the disk is nearly full.", stat(func(s *statistics) float64 {
		if s.lowOnSpace {
			return 1
		}
		return 0
	}))
	gauge("gateway_streams", "Gateways connected.", func() float64 { return float64(n.streams.count()) })
	gauge("map_generation", "Generation of the placement map in use.", func() float64 { return float64(n.placed.Load().GetGeneration()) })

	counter("proposals_total", "Entries proposed.", stat(func(s *statistics) float64 { return float64(s.Proposals) }))
	counter("commands_total", "Commands in the entries proposed.", stat(func(s *statistics) float64 { return float64(s.Commands) }))
	counter("applied_entries_total", "Entries applied.", stat(func(s *statistics) float64 { return float64(s.AppliedEntries) }))
	counter("applied_commands_total", "Commands applied.", stat(func(s *statistics) float64 { return float64(s.AppliedCommands) }))
	counter("renewals_total", "Renewals acknowledged.", stat(func(s *statistics) float64 { return float64(s.Renewals) }))
	counter("reads_total", "Reads served.", stat(func(s *statistics) float64 { return float64(s.Reads) }))
	counter("read_rounds_total", "Confirmations of leadership begun.", stat(func(s *statistics) float64 { return float64(s.Rounds) }))
	counter("expired_total", "Registrations that missed their deadline.", stat(func(s *statistics) float64 { return float64(s.Expired) }))
	counter("refused_total", "Commands refused because of a limit.", stat(func(s *statistics) float64 { return float64(s.Refused) }))
	counter("outcome_unknown_total", "Commands whose leader lost its office.", stat(func(s *statistics) float64 { return float64(s.OutcomeUnknown) }))
	counter("misdirected_total", "Raft messages dropped as impossible.", stat(func(s *statistics) float64 { return float64(s.Misdirected) }))
	counter("leader_changes_total", "Times a replica here came to lead.", stat(func(s *statistics) float64 { return float64(s.LeaderChanges) }))
	counter("snapshots_written_total", "Snapshots written.", stat(func(s *statistics) float64 { return float64(s.SnapshotsWritten) }))
	counter("snapshots_installed_total", "Snapshots of peers installed.", stat(func(s *statistics) float64 { return float64(s.SnapshotsInstalled) }))
	counter("snapshot_errors_total", "Snapshots that could not be written.", stat(func(s *statistics) float64 { return float64(s.SnapshotErrors) }))
	counter("stalls_total", "Pauses of the whole process noticed.", stat(func(s *statistics) float64 { return float64(s.stalls) }))
	counter("disk_stalls_total", "Leaderships given up for a slow disk.", stat(func(s *statistics) float64 { return float64(s.DiskStalls) }))
	counter("slow_gateways_total", "Gateways disconnected for not reading.", func() float64 { return float64(n.streams.slow.Load()) })

	counter("syncs_total", "Syncs of the log.", func() float64 { return float64(n.store.Stats().Syncs) })
	sync := prometheus.NewDesc("mortise_node_sync_seconds", "Latency of the log's syncs over the last minute.", []string{"quantile"}, nil)
	reg.MustRegister(collector{sync, func(ch chan<- prometheus.Metric) {
		st := n.store.Stats()
		ch <- prometheus.MustNewConstMetric(sync, prometheus.GaugeValue, st.P50.Seconds(), "0.5")
		ch <- prometheus.MustNewConstMetric(sync, prometheus.GaugeValue, st.P99.Seconds(), "0.99")
	}})
	for name, f := range map[string]func() uint64{
		"sent":     func() uint64 { return n.transport.Stats.Sent.Load() },
		"received": func() uint64 { return n.transport.Stats.Received.Load() },
		"dropped":  func() uint64 { return n.transport.Stats.Dropped.Load() },
		"breaks":   func() uint64 { return n.transport.Stats.Breaks.Load() },
		"refused":  func() uint64 { return n.transport.Stats.Refused.Load() },
	} {
		counter("transport_"+name+"_total", "Raft messages or streams to and from peers: "+name+".", func() float64 {
			if n.loops() == nil {
				return 0
			}
			return float64(f())
		})
	}
}

// collector emits metrics that are read when scraped.
type collector struct {
	desc *prometheus.Desc
	emit func(chan<- prometheus.Metric)
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) { c.emit(ch) }
