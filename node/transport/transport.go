package transport

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortise-lock/mortise/node/worker"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
)

// Limits of the transport.
const (
	// maxQueue bounds what waits for one stream, in bytes.
	maxQueue = 16 << 20
	// maxFrame is the size at which a frame is closed.
	maxFrame  = 1 << 20
	redialMin = 50 * time.Millisecond
	redialMax = time.Second
	// connectMax is the longest pause between tries to connect, beneath the tries
	// to open a stream. (ClientConn.ResetConnectBackoff would save it, but reads
	// a map without its lock.)
	connectMax = redialMax / 2
	// refusedMax replaces redialMax when the peer refuses us: only a person can
	// change that. A peer that was put right opens its streams, which ends the wait.
	refusedMax = 10 * time.Second
	// helloPatience bounds the wait for the peer's answer to a hello.
	helloPatience = 5 * time.Second
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
	// Room returns how many bytes snapshots from peers may still take.
	Room() (uint64, error)
	// Create begins a file for the content of a peer's file of that shard and
	// index. It exists only once it was committed. ctx ends with the stream that
	// brings the content.
	Create(ctx context.Context, name string, s shard.ID, index uint64) (File, error)
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
	// Malformed frames.
	Sent, Received, Frames, Dropped, Refused, Breaks  atomic.Uint64
	Malformed                                         atomic.Uint64
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

	mu     sync.Mutex
	peers  map[worker.NodeID]*peer
	inlets map[worker.NodeID]*inlets

	outgoing chan struct{} // slots for snapshots
	incoming incoming
	sendPace *Pacer        // of all snapshots together
	received atomic.Uint64 // names files
	refusals repeats
	Stats    Stats
}

// New returns a transport that knows no peer.
func New(cfg Config) *Transport {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	t := &Transport{cfg: cfg, log: cfg.Logger, peers: map[worker.NodeID]*peer{}, inlets: map[worker.NodeID]*inlets{},
		outgoing: make(chan struct{}, maxSnapshots), sendPace: NewPacer(snapshotRate, snapshotBurst)}
	t.incoming.init()
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// SetPeer makes a node known, or known under a new address.
func (t *Transport) SetPeer(node worker.NodeID, address string) error {
	if node == t.cfg.Node {
		return nil
	}
	moved, err := t.setPeer(node, address)
	if moved {
		t.cfg.Unreachable(node) // what waited for the old address is lost
	}
	return err
}

func (t *Transport) setPeer(node worker.NodeID, address string) (moved bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		return false, t.ctx.Err()
	}
	old := t.peers[node]
	if old != nil && old.address == address {
		return false, nil
	}
	p := &peer{t: t, node: node, address: address, snapshot: make(chan struct{}, 1)}
	for i := range p.conns {
		c, err := t.dial(address)
		if err != nil {
			p.closeConns()
			return false, err
		}
		p.conns[i] = c
	}
	if old != nil {
		old.close()
	}
	p.ctx, p.cancel = context.WithCancel(t.ctx)
	t.peers[node] = p
	for class := range p.out {
		p.out[class] = newOutbox()
		t.work.Go(func() { p.run(class) })
	}
	return old != nil, nil
}

// Close ends every stream and waits for the senders and for the calls being
// served. The server that serves them must have been stopped, which ends the
// calls.
func (t *Transport) Close() {
	t.mu.Lock()
	t.cancel()
	for _, p := range t.peers {
		p.close()
	}
	t.mu.Unlock()
	t.work.Wait()
}

// Send queues messages for their peers. It never waits. Unreachable is called
// at most once per call and peer.
func (t *Transport) Send(messages []worker.RaftMessage) {
	var told []worker.NodeID
	for i := range messages {
		m := &messages[i]
		t.mu.Lock()
		p := t.peers[m.Peer]
		t.mu.Unlock()
		if m.Msg.GetType() == raftpb.MsgSnap {
			t.sendSnapshot(p, *m)
			continue
		}
		// Also those without entries: one that overtook entries would be rejected.
		class := classControl
		if m.Msg.GetType() == raftpb.MsgApp {
			class = classAppend
		}
		if p != nil && p.out[class].put(m) {
			continue
		}
		t.Stats.Dropped.Add(1)
		if !slices.Contains(told, m.Peer) {
			told = append(told, m.Peer)
			t.cfg.Unreachable(m.Peer)
		}
	}
}
