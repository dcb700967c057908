package host

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/mortise-lock/mortise/node/worker"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// peerConns are connections for calls to other nodes, apart from the
// transport's streams. They connect on first use.
type peerConns struct {
	n     *Node
	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

// get returns a connection to an address; calls over a bad address fail.
func (p *peerConns) get(address string) grpc.ClientConnInterface {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.conns[address]; c != nil {
		return c
	}
	creds := insecure.NewCredentials()
	if p.n.cfg.ClientTLS != nil {
		creds = credentials.NewTLS(p.n.cfg.ClientTLS)
	}
	c, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds), grpc.WithDisableServiceConfig())
	if err != nil {
		return failing{err}
	}
	if p.conns == nil {
		p.conns = map[string]*grpc.ClientConn{}
	}
	p.conns[address] = c
	return c
}

func (p *peerConns) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// failing is a connection that can't be made.
type failing struct{ err error }

func (f failing) Invoke(context.Context, string, any, any, ...grpc.CallOption) error { return f.err }

func (f failing) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, f.err
}

type nodeService struct {
	nodev1.UnimplementedNodeServiceServer
	n *Node
}

// Exchange implements NodeService.
func (s nodeService) Exchange(g grpc.BidiStreamingServer[nodev1.ExchangeRequest, nodev1.ExchangeResponse]) error {
	return s.n.exchange(g)
}

type peerService struct {
	nodev1.UnimplementedPeerServiceServer
	n *Node
}

var errNoCluster = status.Error(codes.Unavailable, "this node belongs to no cluster yet: run mortise server init")

// Raft implements PeerService.
func (s peerService) Raft(g grpc.BidiStreamingServer[nodev1.RaftRequest, nodev1.RaftResponse]) error {
	if s.n.loops() == nil {
		return errNoCluster
	}
	return s.n.transport.ServeRaft(g)
}

// Snapshot implements PeerService.
func (s peerService) Snapshot(g grpc.ClientStreamingServer[nodev1.SnapshotRequest, nodev1.SnapshotResponse]) error {
	if s.n.loops() == nil {
		return errNoCluster
	}
	return s.n.transport.ServeSnapshot(g)
}

// Bootstrap implements PeerService.
func (s peerService) Bootstrap(ctx context.Context, q *nodev1.BootstrapRequest) (*nodev1.BootstrapResponse, error) {
	if err := s.n.bootstrap(q); err != nil {
		return nil, err
	}
	return &nodev1.BootstrapResponse{}, nil
}

// Status implements PeerService.
func (s peerService) Status(ctx context.Context, q *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	return &nodev1.StatusResponse{ClusterId: s.n.clusterID(), Status: s.n.status(q.StateHashes)}, nil
}

// Report implements PeerService.
func (s peerService) Report(ctx context.Context, q *nodev1.ReportRequest) (*nodev1.ReportResponse, error) {
	return s.n.report(ctx, q)
}

// status is what this node says of itself.
func (n *Node) status(hashes bool) *placementv1.NodeStatus {
	st := n.store.Stats()
	s := &placementv1.NodeStatus{Reachable: true, Version: n.cfg.Version, UptimeMs: n.uptimeMS(), Pid: uint64(os.Getpid()),
		DiskBytes: n.diskBytes(), FsyncP50Us: uint64(st.P50 / time.Microsecond), FsyncP99Us: uint64(st.P99 / time.Microsecond),
		LowOnSpace: n.store.LowOnSpace()}
	r := n.running.Load()
	if r == nil {
		return s
	}
	s.Node = uint64(r.node)
	for _, l := range r.loops {
		l.call(func(w *worker.Worker) {
			for _, id := range w.Shards() {
				x, ok := w.Status(id)
				if !ok {
					continue
				}
				rep := &placementv1.ReplicaStatus{Shard: uint32(id), Replica: x.Replica, Role: x.Role, Term: x.Term, LeaderNode: uint64(x.Leader),
					CommitIndex: x.Commit, AppliedIndex: x.Applied, Holds: uint64(x.Holds), Waits: uint64(x.Waits), Registrations: uint64(x.Sessions),
					FirstIndex: x.FirstIndex, LastIndex: x.LastIndex}
				if hashes {
					rep.AppliedIndex, rep.StateHash, _ = w.Hash(id)
				}
				s.Replicas = append(s.Replicas, rep)
			}
		})
	}
	sortReplicas(s.Replicas)
	return s
}
