package placement

import (
	"cmp"
	"fmt"
	"slices"

	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
)

// spreadRule bounds the replicas of one shard per zone and per region.
type spreadRule struct {
	perZone, perRegion int
}

// replicationFactor finds the replicas per shard of one region and the most
// that one zone may have.
func replicationFactor(region string, nodes []NodeInfo) (int, spreadRule, error) {
	zones := make(map[string]int)
	for _, n := range nodes {
		zones[n.Zone]++
	}
	if zones[""] > 0 && len(zones) > 1 {
		return 0, spreadRule{}, &RuleError{"zone", fmt.Sprintf("must be set on every node of region %q or on none", region)}
	}
	if len(nodes) == 1 {
		return 1, spreadRule{1, 1}, nil
	}
	if len(nodes) == 2 {
		return 0, spreadRule{}, &RuleError{"nodes", fmt.Sprintf(
			"must be 1, or 3 and more, in region %q: with 2, losing either one stops every lock, which is worse than 1", region)}
	}
	for _, factor := range []int{5, 3} {
		if len(nodes) < factor {
			continue
		}
		if len(zones) == 1 {
			return factor, spreadRule{factor, factor}, nil
		}
		// A zone may have at most what a majority can do without.
		perZone, fit := (factor-1)/2, 0
		for _, n := range zones {
			fit += min(n, perZone)
		}
		if fit >= factor {
			return factor, spreadRule{perZone, factor}, nil
		}
	}
	return 0, spreadRule{}, &RuleError{"zone", fmt.Sprintf(
		"must name at least three zones in region %q, or the same one on all nodes: with %d zones, losing one of them can stop every lock",
		region, len(zones))}
}

// metaFactor does the same for the meta shard over all regions. With one
// region it is that region's rule. With several, the number of replicas is
// what the nodes allow, and regions are kept as even as they can be: two
// regions can't both be expendable.
func metaFactor(nodes []NodeInfo) (int, spreadRule, error) {
	regions := make(map[string]int)
	for _, n := range nodes {
		regions[n.Region]++
	}
	if len(regions) == 1 {
		return replicationFactor(nodes[0].Region, nodes)
	}
	factor := 1
	if len(nodes) >= 3 {
		factor = 3
	}
	if len(nodes) >= 5 {
		factor = 5
	}
	for ; factor > 1; factor -= 2 {
		rule := spreadRule{perZone: max(1, (factor-1)/2), perRegion: factor}
		if len(regions) > 2 {
			rule.perRegion = (factor - 1) / 2
		}
		if fits(nodes, factor, rule) {
			return factor, rule, nil
		}
	}
	// Too uneven for the rule: spread as far as it goes.
	factor = min(3, len(nodes)|1)
	if factor > len(nodes) {
		factor = 1
	}
	return factor, spreadRule{factor, factor}, nil
}

// fits says whether factor nodes can be chosen under the rule.
func fits(nodes []NodeInfo, factor int, rule spreadRule) bool {
	zones, regions := make(map[string]int), make(map[string]int)
	fit := 0
	for _, n := range nodes {
		if z := zoneKey(n); zones[z] < rule.perZone && regions[n.Region] < rule.perRegion {
			zones[z]++
			regions[n.Region]++
			fit++
		}
	}
	return fit >= factor
}

// zoneKey tells zones of the same name in different regions apart.
func zoneKey(n NodeInfo) string { return n.Region + "/" + n.Zone }

// planner counts what was placed so far.
type planner struct {
	m            *placementv1.Map
	lastReplica  uint64
	replicas     map[uint64]int
	zoneReplicas map[string]int
}

// choose picks the nodes of one shard, one after the other: the region and
// then the zone with the fewest replicas of this shard, then the node with the
// fewest of all shards, then the zone with the fewest, then the smallest id.
// Zones nest in regions, so taking one by one within the bounds never runs
// into a dead end that another order would have avoided.
func (p *planner) choose(nodes []NodeInfo, factor int, rule spreadRule) []NodeInfo {
	var chosen []NodeInfo
	zones, regions := make(map[string]int), make(map[string]int)
	left := slices.Clone(nodes)
	for len(chosen) < factor {
		best := -1
		for i, n := range left {
			if zones[zoneKey(n)] >= rule.perZone || regions[n.Region] >= rule.perRegion {
				continue
			}
			if best < 0 || p.better(n, left[best], zones, regions) {
				best = i
			}
		}
		n := left[best]
		left = slices.Delete(left, best, best+1)
		zones[zoneKey(n)]++
		regions[n.Region]++
		p.replicas[n.ID]++
		p.zoneReplicas[zoneKey(n)]++
		chosen = append(chosen, n)
	}
	return chosen
}

func (p *planner) better(a, b NodeInfo, zones, regions map[string]int) bool {
	za, zb := zoneKey(a), zoneKey(b)
	return cmp.Or(
		cmp.Compare(regions[a.Region], regions[b.Region]),
		cmp.Compare(zones[za], zones[zb]),
		cmp.Compare(p.replicas[a.ID], p.replicas[b.ID]),
		cmp.Compare(p.zoneReplicas[za], p.zoneReplicas[zb]),
		cmp.Compare(a.ID, b.ID),
	) < 0
}

func (p *planner) addShard(region string, owns []*placementv1.Selector, on []NodeInfo) {
	s := &placementv1.Shard{Id: uint32(len(p.m.Shards)), Region: region, Owns: owns, Generation: 1}
	for _, n := range on {
		p.lastReplica++
		s.Replicas = append(s.Replicas, &placementv1.Replica{Id: p.lastReplica, Node: n.ID})
	}
	p.m.Shards = append(p.m.Shards, s)
}

// balanceLeaders orders each shard's replicas so that the first ones, the
// prospective leaders, are spread evenly. It starts from a greedy choice and
// then shifts leaderships along shortest paths from the fullest node to one
// that has at least two fewer, until there is none: what is left is as even as
// the replicas allow.
func balanceLeaders(m *placementv1.Map) {
	leads := make(map[uint64]int)
	for _, s := range m.Shards {
		best := 0
		for i, r := range s.Replicas {
			if leads[r.Node] < leads[s.Replicas[best].Node] {
				best = i
			}
		}
		lead(s, best, leads)
	}
	for shiftLeader(m, leads) {
	}
	for _, s := range m.Shards {
		slices.SortFunc(s.Replicas[1:], func(a, b *placementv1.Replica) int { return cmp.Compare(a.Id, b.Id) })
	}
}

// lead makes replica i the first one and counts it.
func lead(s *placementv1.Shard, i int, leads map[uint64]int) {
	s.Replicas[0], s.Replicas[i] = s.Replicas[i], s.Replicas[0]
	leads[s.Replicas[0].Node]++
}

// shiftLeader makes one improvement, or says that there is none.
func shiftLeader(m *placementv1.Map, leads map[uint64]int) bool {
	led := make(map[uint64][]*placementv1.Shard)
	for _, s := range m.Shards {
		led[s.Replicas[0].Node] = append(led[s.Replicas[0].Node], s)
	}
	from := slices.Clone(m.Nodes)
	slices.SortStableFunc(from, func(a, b *placementv1.Node) int { return cmp.Compare(leads[b.Id], leads[a.Id]) })
	for _, start := range from {
		// via[n] is the shard whose leadership would move to n, and where from.
		type step struct {
			shard *placementv1.Shard
			from  uint64
		}
		via := map[uint64]step{start.Id: {}}
		queue := []uint64{start.Id}
		for len(queue) > 0 {
			n := queue[0]
			queue = queue[1:]
			if leads[n]+2 <= leads[start.Id] {
				leads[n]++
				leads[start.Id]--
				for n != start.Id {
					st := via[n]
					i := slices.IndexFunc(st.shard.Replicas, func(r *placementv1.Replica) bool { return r.Node == n })
					st.shard.Replicas[0], st.shard.Replicas[i] = st.shard.Replicas[i], st.shard.Replicas[0]
					n = st.from
				}
				return true
			}
			for _, s := range led[n] {
				for _, r := range s.Replicas[1:] {
					if _, seen := via[r.Node]; !seen {
						via[r.Node] = step{s, n}
						queue = append(queue, r.Node)
					}
				}
			}
		}
	}
	return false
}
