package gateway

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortise-lock/mortise/gateway/core"
	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// service implements LockService over the loop. Also used by the HTTP edge.
type service struct {
	lockv1.UnimplementedLockServiceServer
	g *Gateway
}

// statusOf turns a Failure into a gRPC status that carries its detail.
func statusOf(f *lockv1.Failure) error {
	if f == nil {
		return nil
	}
	st := status.New(codes.Code(f.Code), f.Message)
	if f.Detail != nil {
		if with, err := st.WithDetails(f.Detail); err == nil {
			st = with
		}
	}
	return st.Err()
}

// callTable is who waits for which answer.
type callTable struct {
	mu    sync.Mutex
	calls map[core.CallID]chan core.Answer
}

func (t *callTable) add(id core.CallID) chan core.Answer {
	ch := make(chan core.Answer, 1)
	t.mu.Lock()
	if t.calls == nil {
		t.calls = map[core.CallID]chan core.Answer{}
	}
	t.calls[id] = ch
	t.mu.Unlock()
	return ch
}

func (t *callTable) remove(id core.CallID) {
	t.mu.Lock()
	delete(t.calls, id)
	t.mu.Unlock()
}

func (t *callTable) deliver(a *core.Answer) {
	// Under mu, so that who removes a call afterwards finds its answer; ch has
	// room for it.
	t.mu.Lock()
	defer t.mu.Unlock()
	if ch := t.calls[a.Call]; ch != nil {
		delete(t.calls, a.Call)
		ch <- *a
	}
}

// do runs one unary call through the loop. answered says whether the core gave
// an answer; without one the caller left first.
func (s *service) do(ctx context.Context, method string, req any, ownID bool) (resp any, answered bool, err error) {
	g := s.g
	began := time.Now()
	id := core.CallID(g.lastID.Add(1))
	ch := g.calls.add(id)
	in := core.Input{Kind: core.CallStarted, Call: id, Request: req, OwnID: ownID}
	if d, ok := ctx.Deadline(); ok {
		in.Deadline = max(g.loop.now()+time.Until(d), 1)
	}
	g.loop.post(in)
	select {
	case a := <-ch:
		err = statusOf(a.Failure)
		resp, answered = a.Response, true
	case <-ctx.Done():
		g.calls.remove(id)
		select {
		case a := <-ch: // both at once: the answer exists
			err = statusOf(a.Failure)
			resp, answered = a.Response, true
		default:
			g.loop.post(core.Input{Kind: core.CallGone, Call: id})
			err = status.FromContextError(ctx.Err()).Err()
		}
	case <-g.ctx.Done():
		g.calls.remove(id)
		select {
		case a := <-ch:
			err = statusOf(a.Failure)
			resp, answered = a.Response, true
		default:
			err = status.Error(codes.Unavailable, "this gateway is stopping")
		}
	}
	g.metrics.called(method, status.Code(err), time.Since(began))
	return resp, answered, err
}

func unary[R any](s *service, ctx context.Context, method string, req any) (*R, error) {
	resp, _, err := s.do(ctx, method, req, false)
	if err != nil {
		return nil, err
	}
	r, ok := resp.(*R)
	if !ok || r == nil {
		return nil, status.Errorf(codes.Internal, "%s: the node's answer has another shape", method)
	}
	return r, nil
}

func (s *service) OpenSession(ctx context.Context, r *lockv1.OpenSessionRequest) (*lockv1.OpenSessionResponse, error) {
	return unary[lockv1.OpenSessionResponse](s, ctx, "OpenSession", r)
}

func (s *service) KeepAlive(ctx context.Context, r *lockv1.KeepAliveRequest) (*lockv1.KeepAliveResponse, error) {
	return unary[lockv1.KeepAliveResponse](s, ctx, "KeepAlive", r)
}

func (s *service) CloseSession(ctx context.Context, r *lockv1.CloseSessionRequest) (*lockv1.CloseSessionResponse, error) {
	return unary[lockv1.CloseSessionResponse](s, ctx, "CloseSession", r)
}

func (s *service) Release(ctx context.Context, r *lockv1.ReleaseRequest) (*lockv1.ReleaseResponse, error) {
	return unary[lockv1.ReleaseResponse](s, ctx, "Release", r)
}

func (s *service) Cancel(ctx context.Context, r *lockv1.CancelRequest) (*lockv1.CancelResponse, error) {
	return unary[lockv1.CancelResponse](s, ctx, "Cancel", r)
}

func (s *service) Describe(ctx context.Context, r *lockv1.DescribeRequest) (*lockv1.DescribeResponse, error) {
	return unary[lockv1.DescribeResponse](s, ctx, "Describe", r)
}

func (s *service) List(ctx context.Context, r *lockv1.ListRequest) (*lockv1.ListResponse, error) {
	return unary[lockv1.ListResponse](s, ctx, "List", r)
}

func (s *service) CheckToken(ctx context.Context, r *lockv1.CheckTokenRequest) (*lockv1.CheckTokenResponse, error) {
	return unary[lockv1.CheckTokenResponse](s, ctx, "CheckToken", r)
}

func (s *service) ForceRelease(ctx context.Context, r *lockv1.ForceReleaseRequest) (*lockv1.ForceReleaseResponse, error) {
	return unary[lockv1.ForceReleaseResponse](s, ctx, "ForceRelease", r)
}

func (s *service) ListSessions(ctx context.Context, r *lockv1.ListSessionsRequest) (*lockv1.ListSessionsResponse, error) {
	return unary[lockv1.ListSessionsResponse](s, ctx, "ListSessions", r)
}

func (s *service) RevokeSession(ctx context.Context, r *lockv1.RevokeSessionRequest) (*lockv1.RevokeSessionResponse, error) {
	return unary[lockv1.RevokeSessionResponse](s, ctx, "RevokeSession", r)
}

// Acquire answers the caller; if the caller is gone by then, and named no
// request id, the lock is given back.
func (s *service) Acquire(ctx context.Context, r *lockv1.AcquireRequest) (*lockv1.AcquireResponse, error) {
	var resp *lockv1.AcquireResponse
	var err error
	s.AcquireAndDeliver(ctx, r, func(a *lockv1.AcquireResponse, e error) bool {
		resp, err = a, e
		return ctx.Err() == nil
	})
	return resp, err
}

// AcquireAndDeliver runs an acquire and hands its outcome to deliver, which
// reports whether any byte of it may have reached the caller. If not, and the
// caller named no request id, what was granted is cancelled.
func (s *service) AcquireAndDeliver(ctx context.Context, r *lockv1.AcquireRequest, deliver func(*lockv1.AcquireResponse, error) bool) {
	ownID := r.RequestId == ""
	if ownID {
		var id [16]byte
		cryptoRead(id[:])
		r.RequestId = hex.EncodeToString(id[:])
	}
	arrived := time.Now()
	resp, answered, err := s.do(ctx, "Acquire", r, ownID)
	a, _ := resp.(*lockv1.AcquireResponse)
	if a != nil && a.Granted {
		a.LeaseUntilUnixMs = arrived.UnixMilli() + int64(a.LeaseForMs)
	}
	if a == nil && err == nil {
		err = status.Error(codes.Internal, "the node's answer has another shape")
	}
	if written := deliver(a, err); !written && answered && ownID && a.GetGranted() {
		s.g.loop.post(core.Input{Kind: core.CallUndelivered, Request: r})
	}
}

// ---- session streams -------------------------------------------------------

// clientTable is the outboxes of open streams.
type clientTable struct {
	mu sync.Mutex
	m  map[core.StreamID]*clientOutbox
}

func (t *clientTable) add(id core.StreamID) *clientOutbox {
	o := newClientOutbox()
	t.mu.Lock()
	if t.m == nil {
		t.m = map[core.StreamID]*clientOutbox{}
	}
	t.m[id] = o
	t.mu.Unlock()
	return o
}

func (t *clientTable) remove(id core.StreamID) {
	t.mu.Lock()
	delete(t.m, id)
	t.mu.Unlock()
}

func (t *clientTable) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.m)
}

func (t *clientTable) deliver(g *Gateway, s *core.StreamSend) {
	t.mu.Lock()
	o := t.m[s.Stream]
	t.mu.Unlock()
	if o != nil {
		g.metrics.sent(s.Events)
		o.put(s)
	}
}

// writePatience: a client that takes no byte for so long is disconnected.
const writePatience = 20 * time.Second

// Session carries one session's stream. The handler watches; one goroutine
// reads and one writes. A handler's return makes both end, also when they are
// blocked by a client that neither sends nor reads.
func (s *service) Session(stream lockv1.LockService_SessionServer) error {
	g := s.g
	id := core.StreamID(g.lastID.Add(1))
	out := g.clients.add(id)
	defer g.clients.remove(id)
	g.loop.post(core.Input{Kind: core.StreamOpened, Stream: id})
	defer g.loop.post(core.Input{Kind: core.StreamClosed, Stream: id})
	ended := make(chan error, 2)
	go func() {
		for {
			f, err := stream.Recv()
			if err != nil {
				if errors.Is(err, io.EOF) {
					g.loop.post(core.Input{Kind: core.StreamHalfClosed, Stream: id})
					return
				}
				ended <- err
				return
			}
			g.metrics.received(f.Ops)
			g.loop.post(core.Input{Kind: core.StreamFrame, Stream: id, Frame: f})
		}
	}()
	var sending atomic.Int64 // since when a Send blocks, in ns of the loop's clock; 0: none does
	go func() {
		for {
			f, end, failure := out.take()
			if f != nil {
				sending.Store(int64(g.loop.now()))
				err := stream.Send(f)
				sending.Store(0)
				if err != nil {
					ended <- err
					return
				}
			}
			if end {
				ended <- statusOf(failure)
				return
			}
			if f != nil {
				continue
			}
			select {
			case <-out.wake:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	watch := time.NewTicker(writePatience / 8)
	defer watch.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-g.ctx.Done():
			return status.Error(codes.Unavailable, "this gateway is stopping; resume the session at another one")
		case <-out.slow:
		case <-watch.C:
			if since := sending.Load(); since == 0 || g.loop.now()-core.Time(since) < writePatience {
				continue
			}
		}
		g.metrics.slowReaders.Inc()
		return status.Error(codes.ResourceExhausted, "the client reads its stream too slowly; resume the session on a new one")
	}
}
