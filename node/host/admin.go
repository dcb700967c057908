package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/mortise-lock/mortise/node/worker"
	"github.com/mortise-lock/mortise/placement"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/mortise-lock/mortise/shard"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// admin serves PlacementService.
type admin struct {
	placementv1.UnimplementedPlacementServiceServer
	n *Node
}

// GetMap implements PlacementService.
func (a admin) GetMap(context.Context, *placementv1.GetMapRequest) (*placementv1.GetMapResponse, error) {
	m, _ := a.n.watchMap()
	if m == nil {
		return nil, errNoCluster
	}
	return &placementv1.GetMapResponse{Map: m}, nil
}

// WatchMap implements PlacementService.
func (a admin) WatchMap(q *placementv1.WatchMapRequest, s grpc.ServerStreamingServer[placementv1.WatchMapResponse]) error {
	after := q.AfterGeneration
	for {
		m, moved := a.n.watchMap()
		if m == nil {
			return errNoCluster
		}
		if m.Generation > after {
			after = m.Generation
			if err := s.Send(&placementv1.WatchMapResponse{Map: m}); err != nil {
				return err
			}
		}
		select {
		case <-s.Context().Done():
			return status.FromContextError(s.Context().Err()).Err()
		case <-a.n.ctx.Done():
			return status.Error(codes.Unavailable, "this node is stopping")
		case <-moved:
		}
	}
}

// ClusterStatus implements PlacementService: it asks every node of the map.
func (a admin) ClusterStatus(ctx context.Context, _ *placementv1.ClusterStatusRequest) (*placementv1.ClusterStatusResponse, error) {
	m, _ := a.n.watchMap()
	if m == nil {
		return nil, errNoCluster
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	all := make([]*placementv1.NodeStatus, len(m.Nodes))
	var asked sync.WaitGroup
	for i, p := range m.Nodes {
		asked.Go(func() {
			if worker.NodeID(p.Id) == a.n.running.Load().node {
				all[i] = a.n.status(false)
				return
			}
			r, err := nodev1.NewPeerServiceClient(a.n.peers.get(a.n.addressOf(p))).Status(ctx, &nodev1.StatusRequest{})
			switch {
			case err != nil:
				all[i] = &placementv1.NodeStatus{Node: p.Id, Error: status.Convert(err).Message()}
			case r.ClusterId != m.ClusterId || r.Status.GetNode() != p.Id:
				all[i] = &placementv1.NodeStatus{Node: p.Id, Error: "another node answers at its address"}
			default:
				all[i] = r.Status
			}
		})
	}
	asked.Wait()
	return &placementv1.ClusterStatusResponse{Map: m, Nodes: all}, nil
}

// hopKey marks calls that a node passed on, so that they are not passed on
// again.
const hopKey = "mortise-passed-on"

// TransferLeader implements PlacementService.
func (a admin) TransferLeader(ctx context.Context, q *placementv1.TransferLeaderRequest) (*placementv1.TransferLeaderResponse, error) {
	m, _ := a.n.watchMap()
	if m == nil {
		return nil, errNoCluster
	}
	var s *placementv1.Shard
	for _, x := range m.Shards {
		if x.Id == q.Shard {
			s = x
		}
	}
	if s == nil {
		return nil, status.Errorf(codes.NotFound, "shard: there is no shard %d; shards are 0 to %d", q.Shard, len(m.Shards)-1)
	}
	voter := false
	var voters []string
	for _, r := range s.Replicas {
		voter = voter || (r.Node == q.ToNode && !r.Learner)
		voters = append(voters, fmt.Sprint(r.Node))
	}
	if !voter {
		return nil, status.Errorf(codes.InvalidArgument, "to_node: node %d has no voter of shard %d; nodes %s have", q.ToNode, q.Shard, strings.Join(voters, ", "))
	}
	lead := a.n.leaders.get(shard.ID(q.Shard))
	if lead.Leader == a.n.running.Load().node {
		return a.n.transfer(ctx, q)
	}
	if md, _ := metadata.FromIncomingContext(ctx); len(md.Get(hopKey)) > 0 {
		return nil, status.Errorf(codes.Unavailable, "shard %d has no settled leader just now; try again", q.Shard)
	}
	to := nodeOf(m, uint64(lead.Leader))
	if to == nil {
		// This node has no replica of the shard, or knows no leader: ask those that have one.
		for _, r := range s.Replicas {
			if worker.NodeID(r.Node) != a.n.running.Load().node {
				to = nodeOf(m, r.Node)
				break
			}
		}
	}
	if to == nil {
		return nil, status.Errorf(codes.Unavailable, "shard %d has no leader just now; try again", q.Shard)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, hopKey, "1")
	return placementv1.NewPlacementServiceClient(a.n.peers.get(a.n.addressOf(to))).TransferLeader(ctx, q)
}

func (n *Node) transfer(ctx context.Context, q *placementv1.TransferLeaderRequest) (*placementv1.TransferLeaderResponse, error) {
	id, wait := n.waiting.begin()
	n.loops()[n.loopOf(shard.ID(q.Shard))].post(func(in *worker.Input) {
		in.Transfers = append(in.Transfers, worker.Transfer{ID: id, Shard: shard.ID(q.Shard), To: worker.NodeID(q.ToNode)})
	})
	v, err := wait(ctx)
	if err != nil {
		return nil, status.FromContextError(err).Err()
	}
	done := v.(worker.TransferDone)
	switch {
	case done.Err == nil:
		return &placementv1.TransferLeaderResponse{LeaderNode: uint64(done.Leader)}, nil
	case errors.Is(done.Err, worker.ErrTransferTarget):
		return nil, status.Errorf(codes.FailedPrecondition, "to_node: %v", done.Err)
	default:
		return nil, status.Errorf(codes.Unavailable, "shard %d: %v; try again", q.Shard, done.Err)
	}
}

// Init implements PlacementService. The plan is stored before anybody hears of
// it, and each node that took its part is noted: a repetition goes on with the
// same plan, and never hands its part again to a node that had taken it and
// has lost its disk since.
func (a admin) Init(ctx context.Context, q *placementv1.InitRequest) (*placementv1.InitResponse, error) {
	n := a.n
	n.inits.Lock()
	defer n.inits.Unlock()
	plan, err := n.loadPlan()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if plan == nil {
		if m, _ := n.watchMap(); m != nil {
			return nil, status.Errorf(codes.AlreadyExists, "cluster %s is initialised already, with %d nodes and %d shards", m.ClusterId, len(m.Nodes), len(m.Shards)-1)
		}
		if plan, err = n.planInit(q); err != nil {
			return nil, err
		}
		if err := n.savePlan(plan); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		n.log.Info("initialising a cluster", "cluster", plan.Map.ClusterId, "nodes", len(plan.Map.Nodes), "shards", len(plan.Map.Shards)-1)
	} else if len(plan.left()) == 0 {
		return nil, status.Errorf(codes.AlreadyExists, "cluster %s is initialised already, with %d nodes and %d shards",
			plan.Map.ClusterId, len(plan.Map.Nodes), len(plan.Map.Shards)-1)
	}
	var failures []string
	for _, p := range plan.left() {
		req := &nodev1.BootstrapRequest{Map: plan.Map, Node: p.Id, TokenFloor: plan.floor}
		var err error
		if p.Name == n.cfg.Name {
			err = n.bootstrap(req)
		} else {
			_, err = nodev1.NewPeerServiceClient(n.peers.get(p.Address)).Bootstrap(ctx, req)
		}
		if err == nil {
			plan.taken[p.Id] = true
			err = n.savePlan(plan)
		}
		if err != nil {
			failures = append(failures, fmt.Sprintf("node %s (%s): %s", p.Name, p.Address, status.Convert(err).Message()))
		}
	}
	if len(failures) > 0 {
		return nil, status.Errorf(codes.Unavailable, "%d of %d nodes did not take their part; put them right and run the same init again: %s",
			len(failures), len(plan.Map.Nodes), strings.Join(failures, "; "))
	}
	return &placementv1.InitResponse{Map: plan.Map}, nil
}

// initPlan is an init that was begun here.
type initPlan struct {
	*placementv1.Map
	floor uint64
	taken map[uint64]bool
}

// left lists the nodes that have not taken their part, in order of id.
func (p *initPlan) left() []*placementv1.Node {
	var left []*placementv1.Node
	for _, n := range p.Nodes {
		if !p.taken[n.Id] {
			left = append(left, n)
		}
	}
	return left
}

func (n *Node) savePlan(p *initPlan) error {
	b, err := proto.Marshal(&nodev1.InitPlan{Map: p.Map, TokenFloor: p.floor, Taken: takenList(p)})
	if err != nil {
		return err
	}
	return n.store.PutMeta(metaInit, b)
}

func takenList(p *initPlan) (ids []uint64) {
	for _, n := range p.Nodes {
		if p.taken[n.Id] {
			ids = append(ids, n.Id)
		}
	}
	return ids
}

func (n *Node) loadPlan() (*initPlan, error) {
	b, err := n.store.Meta(metaInit)
	if b == nil || err != nil {
		return nil, err
	}
	var s nodev1.InitPlan
	if err := proto.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("the stored plan of an init does not decode: %w", err)
	}
	p := &initPlan{Map: s.Map, floor: s.TokenFloor, taken: map[uint64]bool{}}
	for _, id := range s.Taken {
		p.taken[id] = true
	}
	return p, nil
}

// planInit plans a cluster over the nodes that joined.
func (n *Node) planInit(q *placementv1.InitRequest) (*initPlan, error) {
	want, shards := uint32(3), uint32(placement.DefaultShards)
	if q.Nodes != nil {
		want = *q.Nodes
	}
	if q.Shards != nil {
		shards = *q.Shards
	}
	if want == 0 {
		return nil, status.Error(codes.InvalidArgument, "nodes must be 1 or more")
	}
	var infos []placement.NodeInfo
	var names []string
	for _, g := range n.gossip.Members() {
		if g.ClusterID != "" {
			return nil, status.Errorf(codes.FailedPrecondition, "node %s (%s) belongs to cluster %s already; an init that did not finish must be run again at the node where it was begun, "+
				"and a node of another cluster must be stopped first", g.Name, g.Address, g.ClusterID)
		}
		infos = append(infos, placement.NodeInfo{Name: g.Name, Address: g.Address, HTTPAddress: g.HTTPAddress, GatewayAddress: g.GatewayAddress, Region: g.Region, Zone: g.Zone})
		names = append(names, g.Name)
	}
	if len(infos) < int(want) {
		return nil, status.Errorf(codes.FailedPrecondition, "%d nodes have joined (%s), %d are needed; start the others, check their gossip.join, and run it again",
			len(infos), strings.Join(names, ", "), want)
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	m, err := placement.InitialMap(hex.EncodeToString(id[:]), infos, int(shards))
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	floor := n.cfg.TokenFloor
	if q.TokenFloor != nil {
		floor = *q.TokenFloor
	}
	if floor == 0 {
		floor = uint64(time.Now().Unix()) << 20
	}
	if floor >= 1<<52 {
		return nil, status.Errorf(codes.InvalidArgument, "token_floor must be below 2^52; %d is not", floor)
	}
	return &initPlan{Map: m, floor: floor, taken: map[uint64]bool{}}, nil
}
