package mortise

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"github.com/mortise-lock/mortise/sdk/core"
	"google.golang.org/grpc/status"
)

// maxFrameOps keeps a frame well under the service's bounds of 1,024
// operations and 1 MiB.
const maxFrameOps = 1000

// stream is one attempt to have a stream, and then the stream: a goroutine that
// dials and receives, and one that sends. What gathers while a frame is being
// sent goes out as the next frame.
type stream struct {
	s      *Session
	id     core.StreamID
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // capacity 1

	// Under Session.mu.
	pending []*lockv1.SessionOp

	echoMu sync.Mutex
	echo   uint64 // newest server time heard
}

// dial starts an attempt; under Session.mu.
func (s *Session) dial(d core.Dial) {
	ctx, cancel := context.WithCancel(context.Background())
	st := &stream{s: s, id: d.Stream, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1)}
	s.open[d.Stream] = st
	s.wg.Go(func() { st.run(d) })
}

// drop ends it; under Session.mu.
func (st *stream) drop() { st.cancel() }

// push queues operations; under Session.mu.
func (st *stream) push(ops []*lockv1.SessionOp) {
	if len(ops) == 0 {
		return
	}
	st.pending = append(st.pending, ops...)
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// run dials and receives until the stream ends.
func (st *stream) run(d core.Dial) {
	defer st.cancel()
	err := st.receive(d)
	f := failureOf(err)
	st.s.mu.Lock()
	st.s.last = fmt.Errorf("%s: %w", st.s.c.cfg.Endpoints[d.Endpoint], err)
	st.s.mu.Unlock()
	st.s.do(func(c *core.Session, now core.Time, out *core.Output) {
		c.Broken(now, st.id, f, out)
		delete(st.s.open, st.id)
		if st.s.stream == st {
			st.s.stream = nil
		}
	})
	st.s.c.log.Debug("stream ended", "endpoint", st.s.c.cfg.Endpoints[d.Endpoint], "reason", err)
}

func (st *stream) receive(d core.Dial) error {
	cn, err := st.s.c.pool.get(d.Endpoint, d.Fresh)
	if err != nil {
		return err
	}
	defer st.s.c.pool.put(cn)
	rpc, err := lockv1.NewLockServiceClient(cn.cc).Session(st.ctx)
	if err != nil {
		return err
	}
	st.s.do(func(c *core.Session, now core.Time, out *core.Output) { c.Connected(now, st.id, out) })
	var sender sync.WaitGroup
	sender.Go(func() { st.send(rpc) })
	defer sender.Wait()
	defer st.cancel()
	if _, err := rpc.Header(); err == nil {
		st.s.do(func(c *core.Session, now core.Time, out *core.Output) { c.Heard(now, st.id, out) })
	}
	for {
		f, err := rpc.Recv()
		if err != nil {
			return err
		}
		st.echoMu.Lock()
		st.echo = max(st.echo, f.ServerTimeMs)
		st.echoMu.Unlock()
		st.s.do(func(c *core.Session, now core.Time, out *core.Output) { c.Frame(now, st.id, f, out) })
	}
}

// send sends what is pending, as few frames as possible.
func (st *stream) send(rpc lockv1.LockService_SessionClient) {
	var ops []*lockv1.SessionOp
	for {
		select {
		case <-st.wake:
		case <-st.ctx.Done():
			return
		}
		runtime.Gosched() // let those who are about to ask join this frame
		st.s.mu.Lock()
		ops, st.pending = st.pending, ops[:0]
		done := st.s.core.DoneBelow()
		st.s.mu.Unlock()
		for i := 0; i < len(ops); i += maxFrameOps {
			st.echoMu.Lock()
			echo := st.echo
			st.echoMu.Unlock()
			if rpc.Send(&lockv1.SessionRequest{EchoMs: echo, DoneBelow: done, Ops: ops[i:min(i+maxFrameOps, len(ops))]}) != nil {
				return // Recv tells why
			}
		}
		clear(ops)
	}
}

// failureOf reads the refusal out of a stream's end. Nil: an orderly end.
func failureOf(err error) *lockv1.Failure {
	st := status.Convert(err)
	f := &lockv1.Failure{Code: int32(st.Code()), Message: st.Message()}
	if err != nil && err.Error() == "EOF" {
		return nil
	}
	for _, d := range st.Details() {
		if d, ok := d.(*lockv1.ErrorDetail); ok {
			f.Detail = d
		}
	}
	return f
}
