package fakeservice

import (
	"context"
	"sync"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Service is one model behind any number of gateways. Safe for concurrent use.
type Service struct {
	mu     sync.Mutex
	model  *Model
	start  time.Time
	nextID uint64
	out    map[uint64]chan *lockv1.SessionEvent
	stop   chan struct{}
}

// NewService makes a service and begins to expire sessions every 10 ms.
func NewService(shards uint32) *Service {
	s := &Service{start: time.Now(), out: map[uint64]chan *lockv1.SessionEvent{}, stop: make(chan struct{})}
	s.model = New(shards, func(stream uint64, events ...*lockv1.SessionEvent) {
		if c := s.out[stream]; c != nil {
			for _, e := range events {
				select {
				case c <- e:
				default: // a client that does not read
				}
			}
		}
	})
	go func() {
		t := time.NewTicker(10 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				s.With(func(m *Model, now Time) { m.Tick(now) })
			case <-s.stop:
				return
			}
		}
	}()
	return s
}

// With runs f on the model.
func (s *Service) With(f func(m *Model, now Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.model, time.Since(s.start))
}

// Stop ends its goroutine.
func (s *Service) Stop() { close(s.stop) }

// Gateway is one gRPC face of a service.
type Gateway struct {
	lockv1.UnimplementedLockServiceServer
	Service *Service

	mu sync.Mutex
	// swallow: frames in either direction vanish; nobody is told.
	swallow bool
	streams int
	conns   int
}

// Swallow makes frames vanish, or stops that.
func (g *Gateway) Swallow(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.swallow = on
}

func (g *Gateway) swallows() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.swallow
}

// Streams returns how many session streams are open, and were ever.
func (g *Gateway) Streams() (now, ever int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.streams, g.conns
}

// Register puts the gateway on a gRPC server.
func (g *Gateway) Register(s *grpc.Server) { lockv1.RegisterLockServiceServer(s, g) }

// Session serves a stream.
func (g *Gateway) Session(rpc grpc.BidiStreamingServer[lockv1.SessionRequest, lockv1.SessionResponse]) error {
	s := g.Service
	g.mu.Lock()
	g.streams++
	g.conns++
	g.mu.Unlock()
	out := make(chan *lockv1.SessionEvent, 100_000)
	s.mu.Lock()
	s.nextID++
	id := s.nextID
	s.out[id] = out
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.out, id)
		s.model.Hangup(id)
		s.mu.Unlock()
		g.mu.Lock()
		g.streams--
		g.mu.Unlock()
	}()
	if !g.swallows() {
		if err := rpc.SendHeader(metadata.MD{}); err != nil {
			return err
		}
	}
	ended := make(chan error, 1)
	go func() {
		for {
			f, err := rpc.Recv()
			if err != nil {
				ended <- err
				return
			}
			if !g.swallows() {
				s.With(func(m *Model, now Time) { m.Frame(id, f, now) })
			}
		}
	}()
	for {
		select {
		case e := <-out:
			f := &lockv1.SessionResponse{ServerTimeMs: uint64(time.Since(s.start) / time.Millisecond), Events: []*lockv1.SessionEvent{e}}
			for len(out) > 0 && len(f.Events) < 1000 {
				f.Events = append(f.Events, <-out)
			}
			if g.swallows() {
				continue
			}
			if err := rpc.Send(f); err != nil {
				return err
			}
			if e.GetClosed() != nil || e.GetFailed() != nil {
				return nil
			}
		case <-ended:
			return nil
		case <-rpc.Context().Done():
			return rpc.Context().Err()
		}
	}
}

// Describe tells who holds a lock.
func (g *Gateway) Describe(_ context.Context, r *lockv1.DescribeRequest) (d *lockv1.DescribeResponse, _ error) {
	g.Service.With(func(m *Model, _ Time) { d = m.Describe(r.Name) })
	return d, nil
}

// CheckToken tells whether a token is current.
func (g *Gateway) CheckToken(_ context.Context, r *lockv1.CheckTokenRequest) (c *lockv1.CheckTokenResponse, _ error) {
	g.Service.With(func(m *Model, _ Time) { c = &lockv1.CheckTokenResponse{Current: m.Current(r.Name, r.Token)} })
	return c, nil
}
