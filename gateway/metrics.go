package gateway

import (
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

// metrics are listed in doc.go.
type metrics struct {
	calls       *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
	slowReaders prometheus.Counter
	batch       prometheus.Histogram
	ops         [numOps]prometheus.Counter
	events      [numEvents]prometheus.Counter
}

var opNames = [...]string{"unknown", "open", "resume", "renew", "acquire", "cancel", "release", "close", "inventory"}

var eventNames = [...]string{"unknown", "opened", "resumed", "renewed", "granted", "waiting", "ended", "cancelled", "released",
	"lost", "registration_ended", "inventory", "closed", "go_away", "failed"}

const (
	numOps    = len(opNames)
	numEvents = len(eventNames)
)

func newMetrics(g *Gateway, reg *prometheus.Registry) *metrics {
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mortise_gateway_calls_total",
			Help: "Finished unary calls by method and gRPC code."}, []string{"method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "mortise_gateway_call_seconds",
			Help:    "Duration of unary calls, waits included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 12)}, []string{"method"}),
		slowReaders: prometheus.NewCounter(prometheus.CounterOpts{Name: "mortise_gateway_slow_readers_total",
			Help: "Clients disconnected because they did not read their stream."}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "mortise_gateway_loop_batch",
			Help: "Inputs taken in one pass of the loop.", Buckets: prometheus.ExponentialBuckets(1, 4, 8)}),
	}
	ops := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mortise_gateway_stream_ops_total",
		Help: "Operations received on session streams."}, []string{"op"})
	events := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mortise_gateway_stream_events_total",
		Help: "Events sent on session streams."}, []string{"event"})
	for i, n := range opNames {
		m.ops[i] = ops.WithLabelValues(n)
	}
	for i, n := range eventNames {
		m.events[i] = events.WithLabelValues(n)
	}
	reg.MustRegister(m.calls, m.seconds, m.slowReaders, m.batch, ops, events)
	gauge := func(name, help string, f func(*loopState) int) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "mortise_gateway_" + name, Help: help},
			func() float64 { return float64(f(g.state.Load())) }))
	}
	gauge("streams", "Open session streams.", func(s *loopState) int { return s.Streams })
	gauge("calls", "Unary calls in progress.", func(s *loopState) int { return s.Calls })
	gauge("outstanding_requests", "Requests accepted and not over, waits included.", func(s *loopState) int { return s.Outstanding })
	gauge("inflight_requests", "Requests in flight at a node.", func(s *loopState) int { return s.InFlight })
	gauge("unary_sessions", "Sessions of unary calls remembered.", func(s *loopState) int { return s.UnarySessions })
	gauge("nodes_connected", "Nodes whose stream is up.", func(s *loopState) int { return s.Nodes })
	gauge("shards", "Lock shards of the map.", func(s *loopState) int { return s.shards })
	gauge("shards_led", "Lock shards whose leader is reachable from here.", func(s *loopState) int { return s.led })
	gauge("map_generation", "Generation of the placement map in use.", func(*loopState) int { return int(g.generation()) })
	return m
}

func (m *metrics) called(method string, code codes.Code, d time.Duration) {
	m.calls.WithLabelValues(method, code.String()).Inc()
	m.seconds.WithLabelValues(method).Observe(d.Seconds())
}

// received counts a frame's operations by the number of their oneof field.
func (m *metrics) received(ops []*lockv1.SessionOp) {
	for _, o := range ops {
		i := 0
		switch o.GetOp().(type) {
		case *lockv1.SessionOp_Open:
			i = 1
		case *lockv1.SessionOp_Resume:
			i = 2
		case *lockv1.SessionOp_Renew:
			i = 3
		case *lockv1.SessionOp_Acquire:
			i = 4
		case *lockv1.SessionOp_Cancel:
			i = 5
		case *lockv1.SessionOp_Release:
			i = 6
		case *lockv1.SessionOp_Close:
			i = 7
		case *lockv1.SessionOp_Inventory:
			i = 8
		}
		m.ops[i].Inc()
	}
}

func (m *metrics) sent(events []*lockv1.SessionEvent) {
	for _, e := range events {
		i := 0
		switch e.GetEvent().(type) {
		case *lockv1.SessionEvent_Opened:
			i = 1
		case *lockv1.SessionEvent_Resumed:
			i = 2
		case *lockv1.SessionEvent_Renewed:
			i = 3
		case *lockv1.SessionEvent_Granted:
			i = 4
		case *lockv1.SessionEvent_Waiting:
			i = 5
		case *lockv1.SessionEvent_Ended:
			i = 6
		case *lockv1.SessionEvent_Cancelled:
			i = 7
		case *lockv1.SessionEvent_Released:
			i = 8
		case *lockv1.SessionEvent_Lost:
			i = 9
		case *lockv1.SessionEvent_RegistrationEnded:
			i = 10
		case *lockv1.SessionEvent_Inventory:
			i = 11
		case *lockv1.SessionEvent_Closed:
			i = 12
		case *lockv1.SessionEvent_GoAway:
			i = 13
		case *lockv1.SessionEvent_Failed:
			i = 14
		}
		m.events[i].Inc()
	}
}
