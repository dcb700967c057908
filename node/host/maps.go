package host

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/mortise-lock/mortise/node/gossip"
	"github.com/mortise-lock/mortise/node/worker"
	"github.com/mortise-lock/mortise/placement"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func sortReplicas(rs []*placementv1.ReplicaStatus) {
	slices.SortFunc(rs, func(a, b *placementv1.ReplicaStatus) int { return cmp.Compare(a.Shard, b.Shard) })
}

// setMap takes a map into use if it is newer. It does not wait for the disk.
func (n *Node) setMap(m *placementv1.Map) {
	n.mapMu.Lock()
	defer n.mapMu.Unlock()
	if old := n.placed.Load(); old != nil && old.Generation >= m.Generation {
		return
	}
	n.placed.Store(m)
	close(n.mapMoved)
	n.mapMoved = make(chan struct{})
}

// watchMap returns the map in use and a channel that closes when it changes.
func (n *Node) watchMap() (*placementv1.Map, <-chan struct{}) {
	n.mapMu.Lock()
	defer n.mapMu.Unlock()
	return n.placed.Load(), n.mapMoved
}

// followMap tells everything that depends on the map of each new one, keeps it
// on disk, and asks other nodes for newer ones where this node has no replica
// of the meta shard.
func (n *Node) followMap() {
	var stored uint64
	for {
		m, moved := n.watchMap()
		if m != nil {
			n.connectPeers(m)
			n.gossip.SetSelf(func(g *gossip.Member) { g.MapGeneration = m.Generation })
			if m.Generation != stored {
				if err := n.saveMap(m); err != nil {
					n.log.Warn("the placement map could not be kept on disk", "error", err)
				} else {
					stored = m.Generation
				}
			}
			if !n.hosts(m, 0) {
				n.pullMap(m.Generation)
			}
		}
		select {
		case <-n.ctx.Done():
			return
		case <-moved:
		case <-time.After(time.Second):
		}
	}
}

func (n *Node) hosts(m *placementv1.Map, shard uint32) bool {
	r := n.running.Load()
	for _, s := range m.Shards {
		if s.Id == shard {
			return r != nil && slices.ContainsFunc(s.Replicas, func(x *placementv1.Replica) bool { return x.Node == uint64(r.node) })
		}
	}
	return false
}

// pullMap asks the nodes that gossip says have a newer map.
func (n *Node) pullMap(after uint64) {
	for _, g := range n.gossip.Members() {
		if g.ClusterID != n.clusterID() || g.MapGeneration <= after || g.Name == n.cfg.Name {
			continue
		}
		ctx, cancel := context.WithTimeout(n.ctx, 2*time.Second)
		r, err := placementv1.NewPlacementServiceClient(n.peers.get(g.Address)).GetMap(ctx, &placementv1.GetMapRequest{})
		cancel()
		if err == nil && r.Map != nil && r.Map.ClusterId == n.clusterID() && placement.Validate(r.Map) == nil {
			n.setMap(r.Map)
			return
		}
	}
}

// connectPeers tells the transport where every node is: by gossip if it is
// there, since a node that came back elsewhere can't be in the map before its
// shard has a quorum; the hello on each stream makes sure that it is the one.
func (n *Node) connectPeers(m *placementv1.Map) {
	for _, p := range m.Nodes {
		if err := n.transport.SetPeer(worker.NodeID(p.Id), n.addressOf(p)); err != nil && n.ctx.Err() == nil {
			n.log.Warn("peer can't be connected", "peer", p.Name, "address", p.Address, "error", err)
		}
	}
}

func (n *Node) addressOf(p *placementv1.Node) string {
	for _, g := range n.gossip.Members() {
		if g.Node == p.Id && g.ClusterID == n.clusterID() {
			return g.Address
		}
	}
	return p.Address
}

// reportAddress makes the map agree with where this node is now.
func (n *Node) reportAddress() {
	r := n.running.Load()
	q := &nodev1.ReportRequest{ClusterId: r.clusterID, Node: uint64(r.node), Address: n.address,
		GatewayAddress: n.cfg.GatewayAddress, HttpAddress: n.cfg.HTTPAddress}
	for {
		m, moved := n.watchMap()
		self := nodeOf(m, uint64(r.node))
		if self == nil || (self.Address == q.Address && self.GatewayAddress == q.GatewayAddress && self.HttpAddress == q.HttpAddress) {
			select {
			case <-n.ctx.Done():
				return
			case <-moved:
			}
			continue
		}
		ctx, cancel := context.WithTimeout(n.ctx, 2*time.Second)
		_, err := n.report(ctx, q)
		if status.Code(err) == codes.FailedPrecondition {
			if lead := nodeOf(m, uint64(n.leaders.get(0).Leader)); lead != nil {
				_, err = nodev1.NewPeerServiceClient(n.peers.get(n.addressOf(lead))).Report(ctx, q)
			} else {
				for _, o := range m.Nodes { // this node has no replica of the meta shard
					if _, err = nodev1.NewPeerServiceClient(n.peers.get(n.addressOf(o))).Report(ctx, q); err == nil {
						break
					}
				}
			}
		}
		cancel()
		if err == nil {
			n.log.Info("told the cluster this node's addresses", "address", q.Address, "gateway", q.GatewayAddress, "http", q.HttpAddress)
		}
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

// report proposes a node's addresses if this node leads the meta shard.
func (n *Node) report(ctx context.Context, q *nodev1.ReportRequest) (*nodev1.ReportResponse, error) {
	if q.ClusterId != n.clusterID() || q.ClusterId == "" {
		return nil, status.Errorf(codes.PermissionDenied, "this node belongs to cluster %q, not %q", n.clusterID(), q.ClusterId)
	}
	m, err := n.proposeMap(ctx, placement.UpdateNode{Node: q.Node, Address: &q.Address, HTTPAddress: &q.HttpAddress, GatewayAddress: &q.GatewayAddress})
	if err != nil {
		return nil, err
	}
	return &nodev1.ReportResponse{Generation: m.Generation}, nil
}

// proposeMap changes the map through the meta shard's log.
func (n *Node) proposeMap(ctx context.Context, c placement.Command) (*placementv1.Map, error) {
	if !n.leaders.get(0).Ready {
		return nil, status.Error(codes.FailedPrecondition, "this node does not lead the meta shard")
	}
	id, wait := n.waiting.begin()
	n.loops()[n.loopOf(0)].post(func(in *worker.Input) {
		in.MapProposals = append(in.MapProposals, worker.MapProposal{ID: id, Data: placement.EncodeCommand(c)})
	})
	v, err := wait(ctx)
	if err != nil {
		return nil, status.FromContextError(err).Err()
	}
	done := v.(worker.MapProposed)
	switch {
	case done.Err == nil:
		return done.Map, nil
	case errors.Is(done.Err, worker.ErrNotLeader):
		return nil, status.Error(codes.FailedPrecondition, done.Err.Error())
	case errors.Is(done.Err, worker.ErrOutcomeUnknown), errors.Is(done.Err, worker.ErrOverloaded):
		return nil, status.Error(codes.Unavailable, done.Err.Error())
	default:
		return nil, status.Error(codes.InvalidArgument, done.Err.Error())
	}
}
