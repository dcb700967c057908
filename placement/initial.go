package placement

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
)

// DefaultShards is how many lock shards a region gets when nobody says.
const DefaultShards = 16

// NodeInfo is one node that joined before the cluster exists.
type NodeInfo struct {
	// ID is the node's own id, 1 or more. Unset on all of them: ids are given
	// from 1 in order of name.
	ID uint64
	// Name is unique in the cluster.
	Name string
	// Address is host:port of the internal listener; HTTPAddress and
	// GatewayAddress those of its own gateway, empty if it runs none.
	Address        string
	HTTPAddress    string
	GatewayAddress string
	Region         string
	// Zone is empty on every node of a region, or on none.
	Zone string
}

// InitialMap plans a new cluster: the meta shard, and shards lock shards per
// region over that region's nodes. The same arguments give the same map, in
// whatever order the nodes come.
//
// Replicas per shard: five where five nodes can be chosen such that no zone
// has more than two of them, else three such that no zone has more than one,
// else, on a single node, one. A region with two nodes is refused: two
// replicas are lost to service with either node, so they are worse than one.
// So are two zones: no odd number of replicas over two zones survives the loss
// of either. Where all nodes of a region name the same zone, or none, zones
// are taken as unknown and replicas spread over nodes only.
//
// Each shard's first replica is its prospective leader (PreferredLeader):
// those are spread so that no two nodes of a region differ by more than one
// where the replicas allow it.
//
// Names: the shards of the home region of the empty prefix (the region of the
// first node by name) own equal parts of the hash range; shards of
// other regions own nothing until a pin moves names there.
func InitialMap(clusterID string, nodes []NodeInfo, shards int) (*placementv1.Map, error) {
	if shards < 1 || shards > MaxShardsPerRegion {
		return nil, &RuleError{"shards", fmt.Sprintf("must be 1 to %d per region, not %d", MaxShardsPerRegion, shards)}
	}
	sorted, err := orderNodes(nodes)
	if err != nil {
		return nil, err
	}
	m := &placementv1.Map{ClusterId: clusterID, Generation: 1}
	p := planner{m: m, replicas: map[uint64]int{}, zoneReplicas: map[string]int{}}
	var regions []string
	byRegion := make(map[string][]NodeInfo)
	for _, n := range sorted {
		m.Nodes = append(m.Nodes, &placementv1.Node{
			Id: n.ID, Name: n.Name, Address: n.Address, HttpAddress: n.HTTPAddress, GatewayAddress: n.GatewayAddress, Region: n.Region, Zone: n.Zone,
		})
		m.NextNodeId = max(m.NextNodeId, n.ID+1)
		if byRegion[n.Region] == nil {
			regions = append(regions, n.Region)
		}
		byRegion[n.Region] = append(byRegion[n.Region], n)
	}
	slices.SortFunc(m.Nodes, func(a, b *placementv1.Node) int { return cmp.Compare(a.Id, b.Id) })
	home := sorted[0].Region
	slices.Sort(regions)

	// The meta shard's replicas spread over regions first, so its factor is
	// found over all nodes.
	factor, capacity, err := metaFactor(sorted)
	if err != nil {
		return nil, err
	}
	p.addShard(home, nil, p.choose(sorted, factor, capacity))
	for _, region := range regions {
		members := byRegion[region]
		factor, capacity, err := replicationFactor(region, members)
		if err != nil {
			return nil, err
		}
		for i := range shards {
			var owns []*placementv1.Selector
			if region == home {
				first, last := hashRange(i, shards)
				owns = []*placementv1.Selector{{HashFirst: first, HashLast: last}}
			}
			p.addShard(region, owns, p.choose(members, factor, capacity))
		}
	}
	m.Pins = []*placementv1.Pin{{Region: home}}
	m.NextShardId = uint32(len(m.Shards))
	m.NextReplicaId = p.lastReplica + 1
	balanceLeaders(m)
	if err := Validate(m); err != nil {
		return nil, err
	}
	return m, nil
}

// PreferredLeader returns the node that should lead the shard at first: that
// of its first voter. 0 if it has none.
func PreferredLeader(s *placementv1.Shard) uint64 {
	for _, r := range s.GetReplicas() {
		if !r.Learner {
			return r.Node
		}
	}
	return 0
}

// orderNodes checks the nodes and returns them in order of name, with ids.
func orderNodes(nodes []NodeInfo) ([]NodeInfo, error) {
	if len(nodes) == 0 {
		return nil, &RuleError{"nodes", "must be at least one"}
	}
	if len(nodes) > MaxNodes {
		return nil, &RuleError{"nodes", fmt.Sprintf("must be at most %d, not %d", MaxNodes, len(nodes))}
	}
	sorted := slices.Clone(nodes)
	slices.SortFunc(sorted, func(a, b NodeInfo) int { return strings.Compare(a.Name, b.Name) })
	named, ids := 0, make(map[uint64]string)
	for i, n := range sorted {
		if err := checkNode(n.Name, n.Address, n.HTTPAddress, n.GatewayAddress, n.Region, n.Zone); err != nil {
			return nil, err
		}
		if i > 0 && n.Name == sorted[i-1].Name {
			return nil, &RuleError{"nodes", fmt.Sprintf("must have unique names; two are called %q", n.Name)}
		}
		if n.ID != 0 {
			named++
			if n.ID == math.MaxUint64 || ids[n.ID] != "" {
				return nil, &RuleError{"nodes", fmt.Sprintf("must have unique ids; %s and %s both have %d", ids[n.ID], n.Name, n.ID)}
			}
			ids[n.ID] = n.Name
		}
	}
	if named != 0 && named != len(sorted) {
		return nil, &RuleError{"nodes", "must have an id each, or none must have one"}
	}
	if named == 0 {
		for i := range sorted {
			sorted[i].ID = uint64(i + 1)
		}
	}
	return sorted, nil
}

// hashRange is the i-th of n equal parts of the hash space.
func hashRange(i, n int) (first, last uint64) {
	bound := func(i int) uint64 {
		q, _ := bits.Div64(uint64(i), 0, uint64(n))
		return q
	}
	if i == n-1 {
		return bound(i), math.MaxUint64
	}
	return bound(i), bound(i+1) - 1
}
