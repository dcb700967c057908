package transport

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortise-lock/mortise/node/worker"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// Limits of the transport.
const (
	// maxQueue bounds what waits for one stream, in bytes.
	maxQueue = 16 << 20
	// maxFrame is the size at which a frame is closed.
	maxFrame  = 1 << 20
	redialMin = 50 * time.Millisecond
	redialMax = time.Second
)

// Classes of traffic.
const (
	classControl = iota
	classAppend
	classes
)

var classNames = [classes]string{"CONTROL", "APPEND"}

// Files is the folder of snapshot files.
type Files interface {
	// Open returns the content of a file and its size in bytes.
	Open(name string) (io.ReadCloser, int64, error)
	// Create begins a file for the content of a peer's file of that shard and
	// index. It exists only once it was committed.
	Create(name string, s shard.ID, index uint64) (File, error)
}

// File is a snapshot file in the making.
type File interface {
	io.Writer
	// Commit verifies the content and makes it durable under its name.
	Commit() error
	// Abort forgets it. After Commit it does nothing.
	Abort()
}

// Config of a Transport. The callbacks may be called from any goroutine and
// must not block for long.
type Config struct {
	ClusterID string
	Node      worker.NodeID
	TLS       *tls.Config // nil: none
	// Dial replaces the dialling of peers; nil: TCP.
	Dial   func(ctx context.Context, address string) (net.Conn, error)
	Logger *slog.Logger
	Files  Files

	// Deliver takes inbound messages, without MsgSnap.
	Deliver func([]worker.RaftMessage)
	// Install takes an inbound MsgSnap with its durable file; it restores the
	// state and passes both on, or returns an error.
	Install      func(worker.RaftMessage) error
	SnapshotSent func(worker.SnapshotSent)
	Unreachable  func(worker.NodeID)
	PeerDown     func(worker.NodeID)
}

// Stats count since New.
type Stats struct {
	// Sent and Received messages, Frames sent, Dropped for want of room or of a
	// connection, Refused streams (of a foreign cluster, say), Breaks of streams.
	Sent, Received, Frames, Dropped, Refused, Breaks  atomic.Uint64
	SnapshotsSent, SnapshotsReceived, SnapshotsFailed atomic.Uint64
	SnapshotBytesSent, SnapshotBytesReceived          atomic.Uint64
}

// Transport sends to all peers and serves what they send. Safe for concurrent
// use.
type Transport struct {
	cfg    Config
	log    *slog.Logger
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu    sync.Mutex
	peers map[worker.NodeID]*peer

	outgoing, incoming chan struct{} // slots for snapshots
	received           atomic.Uint64 // names files
	Stats              Stats
}

// maxSnapshots run at once in each direction.
const maxSnapshots = 2

// New returns a transport that knows no peer.
func New(cfg Config) *Transport {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	t := &Transport{cfg: cfg, log: cfg.Logger, peers: map[worker.NodeID]*peer{},
		outgoing: make(chan struct{}, maxSnapshots), incoming: make(chan struct{}, maxSnapshots)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// peer is one other node.
type peer struct {
	t       *Transport
	node    worker.NodeID
	address string
	ctx     context.Context
	cancel  context.CancelFunc
	out     [classes]*outbox
	conns   [classes + 1]*grpc.ClientConn // the last one is for snapshots
}

// outbox holds what waits for one stream.
type outbox struct {
	mu    sync.Mutex
	queue []worker.RaftMessage
	bytes int
	up    bool
	wake  chan struct{}
}

// SetPeer makes a node known, or known under a new address.
func (t *Transport) SetPeer(node worker.NodeID, address string) error {
	if node == t.cfg.Node {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		return t.ctx.Err()
	}
	old := t.peers[node]
	if old != nil && old.address == address {
		return nil
	}
	p := &peer{t: t, node: node, address: address}
	for i := range p.conns {
		c, err := t.dial(address)
		if err != nil {
			p.closeConns()
			return err
		}
		p.conns[i] = c
	}
	if old != nil {
		old.close()
	}
	p.ctx, p.cancel = context.WithCancel(t.ctx)
	t.peers[node] = p
	for class := range p.out {
		p.out[class] = &outbox{wake: make(chan struct{}, 1)}
		t.work.Go(func() { p.run(class) })
	}
	return nil
}

func (t *Transport) dial(address string) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if t.cfg.TLS != nil {
		creds = credentials.NewTLS(t.cfg.TLS)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second,
			Backoff: backoff.Config{BaseDelay: redialMin, Multiplier: 1.6, Jitter: 0.2, MaxDelay: redialMax}}),
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

// Close ends every stream and waits for the senders.
func (t *Transport) Close() {
	t.mu.Lock()
	t.cancel()
	for _, p := range t.peers {
		p.close()
	}
	t.mu.Unlock()
	t.work.Wait()
}

// Send queues messages for their peers. It never waits.
func (t *Transport) Send(messages []worker.RaftMessage) {
	for i := range messages {
		m := &messages[i]
		t.mu.Lock()
		p := t.peers[m.Peer]
		t.mu.Unlock()
		if m.Msg.GetType() == raftpb.MsgSnap {
			t.sendSnapshot(p, *m)
			continue
		}
		if p == nil {
			t.Stats.Dropped.Add(1)
			continue
		}
		class := classControl
		if len(m.Msg.GetEntries()) > 0 {
			class = classAppend
		}
		if !p.out[class].put(m) {
			t.Stats.Dropped.Add(1)
			t.cfg.Unreachable(m.Peer)
		}
	}
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

func (o *outbox) setUp(up bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.up = up
	if !up {
		o.queue, o.bytes = nil, 0
	}
}

// run keeps one stream to the peer open.
func (p *peer) run(class int) {
	wait, broke := redialMin, false
	for p.ctx.Err() == nil {
		began := time.Now()
		opened := p.stream(class)
		if p.ctx.Err() != nil {
			return
		}
		p.out[class].setUp(false)
		if opened {
			p.t.Stats.Breaks.Add(1)
			p.t.cfg.Unreachable(p.node)
			wait, broke = redialMin, true
			if time.Since(began) > redialMax {
				continue // at once
			}
		} else if broke {
			broke = false
			p.t.log.Info("peer is down", "peer", uint64(p.node), "address", p.address, "class", classNames[class])
			p.t.cfg.PeerDown(p.node)
		}
		select {
		case <-p.ctx.Done():
		case <-time.After(wait):
		}
		wait = min(wait*2, redialMax)
	}
}

// stream opens a stream and sends until it breaks. opened: it had been
// accepted.
func (p *peer) stream(class int) (opened bool) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	s, err := nodev1.NewPeerServiceClient(p.conns[class]).Raft(ctx)
	if err != nil {
		return false
	}
	hello := &nodev1.RaftHello{ClusterId: p.t.cfg.ClusterID, FromNode: uint64(p.t.cfg.Node), ToNode: uint64(p.node), Class: classNames[class]}
	if s.Send(&nodev1.RaftRequest{Hello: hello}) != nil {
		return false
	}
	if _, err := s.Recv(); err != nil {
		p.t.log.Debug("peer does not take our stream", "peer", uint64(p.node), "class", classNames[class], "error", err)
		return false
	}
	p.t.log.Debug("peer stream is up", "peer", uint64(p.node), "class", classNames[class])
	o := p.out[class]
	o.setUp(true)
	go func() {
		// The peer sends nothing more: an answer is the end of the stream.
		_, _ = s.Recv()
		cancel()
	}()
	var spare []worker.RaftMessage
	var frame []byte
	for {
		select {
		case <-ctx.Done():
			return true
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
				return true
			}
			p.t.Stats.Frames.Add(1)
		}
		clear(batch)
		spare = batch
	}
}
