package gateway

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/mortise-lock/mortise/gateway/core"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// maxNodeFrame bounds a frame from a node.
const maxNodeFrame = 64 << 20

// nodeConn keeps one exchange stream to one node open.
type nodeConn struct {
	g      *Gateway
	id     uint64
	addr   string
	cancel context.CancelFunc
	out    *nodeOutbox

	mu          sync.Mutex
	breakStream context.CancelFunc // breaks the present stream
}

// dial opens a client connection to a node's internal listener.
func (g *Gateway) dial(addr string) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if g.cfg.NodeTLS != nil {
		creds = credentials.NewTLS(g.cfg.NodeTLS)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxNodeFrame), grpc.MaxCallSendMsgSize(maxNodeFrame)),
		grpc.WithInitialWindowSize(1 << 20), grpc.WithInitialConnWindowSize(4 << 20),
	}
	if g.cfg.Dial != nil {
		opts = append(opts, grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) { return g.cfg.Dial(ctx, a) }))
		addr = "passthrough:///" + addr
	}
	return grpc.NewClient(addr, opts...)
}

// nodesOf starts and stops connections so that they match the map. Only the
// goroutine that follows the map calls it.
func (g *Gateway) nodesOf(m *placementv1.Map) {
	want := map[uint64]string{}
	for _, n := range m.Nodes {
		want[n.Id] = n.Address
	}
	g.nodeMu.Lock()
	defer g.nodeMu.Unlock()
	for id, nc := range g.nodes {
		if want[id] != nc.addr {
			nc.cancel()
			delete(g.nodes, id)
		}
	}
	for id, addr := range want {
		if g.nodes[id] != nil || g.ctx.Err() != nil {
			continue
		}
		nc := &nodeConn{g: g, id: id, addr: addr, out: newNodeOutbox()}
		var ctx context.Context
		ctx, nc.cancel = context.WithCancel(g.ctx)
		g.nodes[id] = nc
		g.work.Go(func() { nc.run(ctx) })
	}
}

// run keeps a stream open until ctx ends.
func (nc *nodeConn) run(ctx context.Context) {
	log := nc.g.log.With("node", nc.id, "address", nc.addr)
	cc, err := nc.g.dial(nc.addr)
	if err != nil {
		log.Error("bad node address", "err", err)
		return
	}
	defer cc.Close()
	client := nodev1.NewNodeServiceClient(cc)
	wait, told := 50*time.Millisecond, false
	for ctx.Err() == nil {
		began := time.Now()
		up, err := nc.exchange(ctx, client)
		if ctx.Err() != nil {
			return
		}
		if up || !told {
			log.Warn("no stream to node", "err", err, "was_up", up)
			told = true
		}
		if time.Since(began) > time.Second {
			wait = 50 * time.Millisecond
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait/2 + rand.N(wait)):
		}
		wait = min(wait*2, time.Second)
	}
}

var errSilent = errors.New("node was silent for 30 s")

// exchange runs one stream. up tells whether the node ever answered.
func (nc *nodeConn) exchange(ctx context.Context, client nodev1.NodeServiceClient) (up bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	nc.mu.Lock()
	nc.breakStream = func() { cancel(errSilent) }
	nc.mu.Unlock()
	stream, err := client.Exchange(ctx)
	if err != nil {
		return false, err
	}
	for nc.out.take() != nil { // what an earlier stream left
	}
	nc.g.loop.post(core.Input{Kind: core.NodeUp, Node: nc.id})
	defer nc.g.loop.post(core.Input{Kind: core.NodeDown, Node: nc.id})
	writer := make(chan struct{})
	go func() {
		defer close(writer)
		first := true
		for {
			for f := nc.out.take(); f != nil; f = nc.out.take() {
				if first {
					f.ClusterId, first = nc.g.clusterID(), false
				}
				if stream.Send(f) != nil {
					cancel(nil) // Recv tells why
					return
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-nc.out.wake:
			}
		}
	}()
	defer func() { cancel(nil); <-writer }()
	for {
		f, err := stream.Recv()
		if err != nil {
			if c := context.Cause(ctx); c != nil && !errors.Is(c, context.Canceled) {
				err = c
			}
			return up, err
		}
		if !up {
			up = true
			nc.g.log.Info("stream to node is up", "node", nc.id, "address", nc.addr)
		}
		nc.g.loop.post(core.Input{Kind: core.NodeFrame, Node: nc.id, Response: f})
	}
}

// reset breaks the present stream; run opens another.
func (nc *nodeConn) reset() {
	nc.mu.Lock()
	defer nc.mu.Unlock()
	if nc.breakStream != nil {
		nc.breakStream()
	}
}
