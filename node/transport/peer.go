package transport

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mortise-lock/mortise/node/worker"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// peer is one other node.
type peer struct {
	t       *Transport
	node    worker.NodeID
	address string
	ctx     context.Context
	cancel  context.CancelFunc
	out     [classes]*outbox
	conns   [classes + 1]*grpc.ClientConn // the last one is for snapshots
	// snapshot is the one slot for snapshots to this peer, so that a peer that
	// does not read can't occupy all of the transport's.
	snapshot chan struct{}
	failures failures
}

// outbox holds what waits for one stream.
type outbox struct {
	mu    sync.Mutex
	queue []worker.RaftMessage
	bytes int
	up    bool
	wake  chan struct{}
	// retry ends the wait before the next try to open the stream.
	retry chan struct{}
}

func newOutbox() *outbox {
	return &outbox{wake: make(chan struct{}, 1), retry: make(chan struct{}, 1)}
}

func (t *Transport) dial(address string) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if t.cfg.TLS != nil {
		creds = credentials.NewTLS(t.cfg.TLS)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second,
			Backoff: backoff.Config{BaseDelay: redialMin, Multiplier: 1.6, Jitter: 0.2, MaxDelay: connectMax}}),
		// A link that swallows packets is noticed within 13 s; raft notices sooner
		// and does not depend on it.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		// Fixed windows: measuring them costs pings.
		grpc.WithStaticStreamWindowSize(4 << 20), grpc.WithStaticConnWindowSize(8 << 20),
		grpc.WithWriteBufferSize(128 << 10),
		grpc.WithDisableServiceConfig(),
	}
	if t.cfg.Dial != nil {
		opts = append(opts, grpc.WithContextDialer(t.cfg.Dial))
	}
	return grpc.NewClient("passthrough:///"+address, opts...)
}

func (p *peer) closeConns() {
	for _, c := range p.conns {
		if c != nil {
			_ = c.Close()
		}
	}
}

func (p *peer) close() {
	p.cancel()
	p.closeConns()
}

// put queues a message. Without a stream only little is kept, so that what is
// sent after a reconnection is not old.
func (o *outbox) put(m *worker.RaftMessage) bool {
	n := cost(m.Msg)
	o.mu.Lock()
	defer o.mu.Unlock()
	if limit := maxQueue; o.bytes+n > limit || (!o.up && o.bytes+n > limit/64) {
		return false
	}
	o.queue = append(o.queue, *m)
	o.bytes += n
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return true
}

func (o *outbox) take(spare []worker.RaftMessage) []worker.RaftMessage {
	o.mu.Lock()
	defer o.mu.Unlock()
	q := o.queue
	o.queue, o.bytes = spare[:0], 0
	return q
}

// setUp tells whether there is a stream. Without one what waits is dropped;
// lost is how much.
func (o *outbox) setUp(up bool) (lost int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.up = up
	if !up {
		lost = len(o.queue)
		o.queue, o.bytes = nil, 0
	}
	return lost
}

// retry ends the waits of the streams to a node that are not up.
func (t *Transport) retry(node worker.NodeID) {
	t.mu.Lock()
	p := t.peers[node]
	t.mu.Unlock()
	if p == nil {
		return
	}
	for _, o := range p.out {
		o.mu.Lock()
		up := o.up
		o.mu.Unlock()
		if up {
			continue
		}
		select {
		case o.retry <- struct{}{}:
		default:
		}
	}
}

// run keeps one stream to the peer open.
func (p *peer) run(class int) {
	t, o := p.t, p.out[class]
	wait, broke := redialMin, false
	for p.ctx.Err() == nil {
		began := time.Now()
		opened, err := p.stream(class)
		if p.ctx.Err() != nil {
			return
		}
		lost := o.setUp(false)
		t.Stats.Dropped.Add(uint64(lost))
		if opened || lost > 0 {
			t.cfg.Unreachable(p.node)
		}
		limit := redialMax
		switch {
		case opened:
			t.Stats.Breaks.Add(1)
			broke = true
			if time.Since(began) > redialMax {
				wait = redialMin
				continue // at once
			}
			// One that breaks again and again is like one that can't be opened.
		case broke:
			broke = false
			t.log.Info("peer is down", "peer", uint64(p.node), "address", p.address, "class", classNames[class], "error", err)
			t.cfg.PeerDown(p.node)
		}
		if refused(err) {
			limit = refusedMax
			if t.refusals.first(p.address + err.Error()) {
				t.log.Warn("a peer refuses our streams", "peer", uint64(p.node), "address", p.address, "error", status.Convert(err).Message())
			}
		}
		wait = min(wait, limit)
		retry := time.NewTimer(wait)
		wait = min(wait*2, limit)
		select {
		case <-p.ctx.Done():
		case <-o.retry:
			wait = redialMin // the connection may need connectMax to follow
		case <-retry.C:
		}
		retry.Stop()
	}
}

var errNoAnswer = errors.New("the peer did not answer the hello")

// stream opens a stream and sends until it breaks. opened: it had been
// accepted. err is why it ended, as far as that is known.
func (p *peer) stream(class int) (opened bool, err error) {
	ctx, cancel := context.WithCancelCause(p.ctx)
	defer cancel(nil)
	patience := time.AfterFunc(helloPatience, func() { cancel(errNoAnswer) })
	defer patience.Stop()
	s, err := nodev1.NewPeerServiceClient(p.conns[class]).Raft(outgoingContext(ctx))
	if err != nil {
		return false, err
	}
	hello := &nodev1.RaftHello{ClusterId: p.t.cfg.ClusterID, FromNode: uint64(p.t.cfg.Node), ToNode: uint64(p.node), Class: classNames[class]}
	// When Send fails, Recv says why.
	_ = s.Send(&nodev1.RaftRequest{Hello: hello})
	if _, err = s.Recv(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		p.t.log.Debug("peer does not take our stream", "peer", uint64(p.node), "class", classNames[class], "error", err)
		return false, err
	}
	if !patience.Stop() {
		return false, errNoAnswer
	}
	p.t.log.Debug("peer stream is up", "peer", uint64(p.node), "class", classNames[class])
	o := p.out[class]
	o.setUp(true)
	go func() {
		// The peer sends nothing more: an answer is the end of the stream.
		_, err := s.Recv()
		if err == nil {
			err = status.Error(codes.Internal, "the peer answered a second time")
		}
		cancel(err)
	}()
	var spare []worker.RaftMessage
	var frame []byte
	for {
		select {
		case <-ctx.Done():
			return true, context.Cause(ctx)
		case <-o.wake:
		}
		batch := o.take(spare)
		for i := 0; i < len(batch); {
			frame = frame[:0]
			for i < len(batch) && len(frame) < maxFrame {
				frame = appendMessage(frame, &batch[i])
				p.t.Stats.Sent.Add(1)
				i++
			}
			// gRPC has marshalled the frame when Send returns.
			if s.Send(&nodev1.RaftRequest{Messages: frame}) != nil {
				<-ctx.Done() // Recv knows why
				return true, context.Cause(ctx)
			}
			p.t.Stats.Frames.Add(1)
		}
		clear(batch)
		spare = batch
	}
}
