package host

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/node/logstore/disk"
	"github.com/mortise-lock/mortise/placement"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Records of the log store.
const (
	metaMap  = "map"       // the newest map seen
	metaInit = "init-plan" // an init begun here: see initPlan
)

func nodeOf(m *placementv1.Map, id uint64) *placementv1.Node {
	for _, n := range m.GetNodes() {
		if n.Id == id {
			return n
		}
	}
	return nil
}

// bootstrap makes an empty directory that of a node of a new cluster, and
// starts it. The identity is written last: a crash before leaves an empty
// node, whose half-written states the next try replaces. It has voted for
// nobody, because no replica ran.
func (n *Node) bootstrap(q *nodev1.BootstrapRequest) error {
	n.boot.Lock()
	defer n.boot.Unlock()
	m := q.Map
	if err := placement.Validate(m); err != nil {
		return status.Errorf(codes.InvalidArgument, "the plan is not valid: %v", err)
	}
	self := nodeOf(m, q.Node)
	if self == nil || self.Name != n.cfg.Name {
		return status.Errorf(codes.InvalidArgument, "node %d of the plan is %s, this one is %s", q.Node, self.GetName(), n.cfg.Name)
	}
	want := disk.Identity{ClusterID: m.ClusterId, NodeID: q.Node}
	if have, ok := n.store.Identity(); ok {
		if have.ClusterID == want.ClusterID && have.NodeID == want.NodeID {
			return nil
		}
		return status.Errorf(codes.FailedPrecondition, "node %s belongs to cluster %s already (as node %d): stop it and give it an empty data directory to make it part of another one",
			n.cfg.Name, have.ClusterID, have.NodeID)
	}
	var states []logstore.ReplicaState
	var steps []logstore.Append
	for _, s := range m.Shards {
		for _, r := range s.Replicas {
			if r.Node != q.Node {
				continue
			}
			st, err := n.initialState(m, s, r.Id, q.TokenFloor)
			if err != nil {
				return status.Errorf(codes.Internal, "node %s can't write its first snapshots: %v", n.cfg.Name, err)
			}
			states = append(states, st)
			steps = append(steps, logstore.Append{Shard: st.Shard, Replica: st.Replica, Base: new(st.Base), HardState: new(st.HardState),
				ResetLog: true, NeedSync: true})
		}
	}
	if err := n.writeFirst(steps, m); err != nil {
		return status.Errorf(codes.Internal, "node %s can't write its first state: %v", n.cfg.Name, err)
	}
	if err := n.store.PutIdentity(want); err != nil {
		return status.Errorf(codes.Internal, "node %s can't write its identity: %v", n.cfg.Name, err)
	}
	n.log.Info("bootstrapped", "cluster", m.ClusterId, "node", q.Node, "replicas", len(states))
	return n.start(want, states)
}

func (n *Node) writeFirst(steps []logstore.Append, m *placementv1.Map) error {
	n.store.Submit(steps)
	for left := len(steps); left > 0; {
		select {
		case k := <-n.bootSynced:
			left -= k
		case <-n.ctx.Done():
			return n.ctx.Err()
		case <-time.After(30 * time.Second):
			return fmt.Errorf("the disk did not sync within 30 s")
		}
	}
	return n.saveMap(m)
}

func (n *Node) saveMap(m *placementv1.Map) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return n.store.PutMeta(metaMap, b)
}

func (n *Node) loadMap() (*placementv1.Map, error) {
	b, err := n.store.Meta(metaMap)
	if err != nil {
		return nil, err
	}
	m := new(placementv1.Map)
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("%w: the stored map does not decode: %w", logstore.ErrCorrupt, err)
	}
	if err := placement.Validate(m); err != nil {
		return nil, fmt.Errorf("%w: the stored map is not valid: %w", logstore.ErrCorrupt, err)
	}
	return m, nil
}

// namesakeGrace is how long an empty node waits for its own bootstrap before a
// map with its name means that it has lost its disk.
const namesakeGrace = 10 * time.Second

// watchForNamesake stops an empty node whose name the map of its cluster
// knows: its replicas' votes are lost, so it must not come back as them.
func (n *Node) watchForNamesake() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var since time.Time
	told := false
	for n.loops() == nil {
		select {
		case <-n.ctx.Done():
			return
		case <-tick.C:
		}
		m := n.foreignMap()
		if m == nil {
			since = time.Time{}
			continue
		}
		known := false
		for _, o := range m.Nodes {
			known = known || o.Name == n.cfg.Name
		}
		switch {
		case !known && !told:
			told = true
			n.log.Warn("the cluster exists already and does not list this node; it stays idle", "cluster", m.ClusterId, "name", n.cfg.Name)
		case !known:
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > namesakeGrace && n.loops() == nil:
			n.fatal(fmt.Errorf("data directory %s is empty, but cluster %s knows a node named %s: a node that lost its disk must not come back under its old name, "+
				"because it has forgotten its votes; restore the directory, or start under another name to be a new node "+
				"(if mortise server init did not finish, run it again against the node where it was begun, then start this one)",
				n.cfg.DataDir, m.ClusterId, n.cfg.Name))
			return
		}
	}
}

// watchForStrangers stops a node that was just started and told to join nodes
// of another cluster. Those don't mind: only what this node's own
// configuration names counts.
func (n *Node) watchForStrangers() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for time.Since(n.started) < strangerWatch {
		select {
		case <-n.ctx.Done():
			return
		case <-tick.C:
		}
		for _, g := range n.gossip.Members() {
			if g.ClusterID == "" || g.ClusterID == n.clusterID() || !slices.Contains(n.cfg.Gossip.Join, g.Gossip) {
				continue
			}
			n.fatal(fmt.Errorf("data directory %s belongs to cluster %s, but gossip.join names %s (node %s) of another cluster, %s: "+
				"put gossip.join right, or give an empty data directory", n.cfg.DataDir, n.clusterID(), g.Gossip, g.Name, g.ClusterID))
			return
		}
	}
}

// strangerWatch is how long after its start a node looks for such a mistake.
const strangerWatch = 15 * time.Second

// foreignMap asks the nodes seen by gossip for the map of their cluster.
func (n *Node) foreignMap() *placementv1.Map {
	for _, g := range n.gossip.Members() {
		if g.ClusterID == "" || g.Name == n.cfg.Name {
			continue
		}
		ctx, cancel := context.WithTimeout(n.ctx, time.Second)
		r, err := placementv1.NewPlacementServiceClient(n.peers.get(g.Address)).GetMap(ctx, &placementv1.GetMapRequest{})
		cancel()
		if err == nil && r.Map != nil {
			return r.Map
		}
	}
	return nil
}
