package placement

import (
	"fmt"
	"net"
	"strconv"
	"unicode/utf8"

	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
)

// Limits of a map.
const (
	// MaxLabelBytes bounds names of nodes, regions and zones.
	MaxLabelBytes = 64
	// MaxAddressBytes bounds an address: a DNS name of 253 bytes and a port.
	MaxAddressBytes = 260
	// MaxNodes and MaxShards bound a cluster.
	MaxNodes  = 4096
	MaxShards = 1 << 16
	// MaxShardsPerRegion bounds what InitialMap makes in one region.
	MaxShardsPerRegion = 4096
)

// RuleError names the field at fault and the rule that it breaks.
type RuleError struct {
	Field string
	Rule  string
}

func (e *RuleError) Error() string { return e.Field + " " + e.Rule }

// checkLabel: 1 to MaxLabelBytes bytes of letters, digits and "._-".
func checkLabel(field, s string, emptyOK bool) error {
	if s == "" && emptyOK {
		return nil
	}
	if s == "" || len(s) > MaxLabelBytes {
		return &RuleError{field, fmt.Sprintf("must have 1 to %d bytes, it has %d", MaxLabelBytes, len(s))}
	}
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
		default:
			return &RuleError{field, fmt.Sprintf("may have letters, digits, '.', '_' and '-' only; it has %q", r)}
		}
	}
	return nil
}

// checkAddress: host:port with a host and a port from 1 to 65535. An
// unspecified host such as 0.0.0.0 reaches nobody and is refused.
func checkAddress(field, s string, emptyOK bool) error {
	if s == "" && emptyOK {
		return nil
	}
	if len(s) > MaxAddressBytes || !utf8.ValidString(s) {
		return &RuleError{field, fmt.Sprintf("must be host:port of at most %d bytes", MaxAddressBytes)}
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return &RuleError{field, fmt.Sprintf("must be host:port, such as 10.0.0.1:7422; it is %q", s)}
	}
	if p, err := strconv.ParseUint(port, 10, 16); err != nil || p == 0 {
		return &RuleError{field, fmt.Sprintf("must have a port from 1 to 65535; it is %q", s)}
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return &RuleError{field, fmt.Sprintf("must be an address that others can reach; %s is every address of its own host", host)}
	}
	return nil
}

// Validate checks invariants P1 to P8 of doc.go and the form of every field.
// The error is a *RuleError.
func Validate(m *placementv1.Map) error {
	bad := func(field, format string, args ...any) error { return &RuleError{field, fmt.Sprintf(format, args...)} }
	if m == nil {
		return bad("map", "must be there")
	}
	if len(m.ClusterId) != 32 || !isHex(m.ClusterId) {
		return bad("cluster_id", "must be 32 lower-case hexadecimal digits, it is %q", m.ClusterId)
	}
	if m.Generation == 0 {
		return bad("generation", "must be at least 1")
	}
	if len(m.Nodes) == 0 || len(m.Nodes) > MaxNodes {
		return bad("nodes", "must be 1 to %d, they are %d", MaxNodes, len(m.Nodes))
	}
	nodes := make(map[uint64]*placementv1.Node, len(m.Nodes))
	names, addresses := make(map[string]bool, len(m.Nodes)), make(map[string]bool, len(m.Nodes))
	regions := make(map[string]bool)
	last := uint64(0)
	for _, n := range m.Nodes {
		if n == nil || n.Id <= last || n.Id >= m.NextNodeId {
			return bad("nodes", "must have rising ids from 1 to below next_node_id %d", m.NextNodeId)
		}
		last = n.Id
		if err := checkNode(n.Name, n.Address, n.HttpAddress, n.GatewayAddress, n.Region, n.Zone); err != nil {
			return err
		}
		if names[n.Name] || addresses[n.Address] {
			return bad("nodes", "must have unique names and addresses; %s at %s does not", n.Name, n.Address)
		}
		names[n.Name], addresses[n.Address], regions[n.Region] = true, true, true
		nodes[n.Id] = n
	}
	if err := validateShards(m, nodes, regions); err != nil {
		return err
	}
	if len(m.Pins) == 0 || m.Pins[0].GetPrefix() != "" {
		return bad("pins", "must begin with the empty prefix")
	}
	for i, p := range m.Pins {
		if i > 0 && p.GetPrefix() <= m.Pins[i-1].GetPrefix() {
			return bad("pins", "must be in strictly rising order of prefix")
		}
		if !regions[p.GetRegion()] {
			return bad("pins", "must name a region that has nodes; %q has none", p.GetRegion())
		}
	}
	return nil
}

func validateShards(m *placementv1.Map, nodes map[uint64]*placementv1.Node, regions map[string]bool) error {
	bad := func(field, format string, args ...any) error { return &RuleError{field, fmt.Sprintf(format, args...)} }
	if len(m.Shards) == 0 || len(m.Shards) > MaxShards || m.Shards[0].GetId() != 0 {
		return bad("shards", "must be 1 to %d and begin with the meta shard, 0", MaxShards)
	}
	if len(m.Shards[0].Owns) != 0 {
		return bad("shards", "the meta shard must own no names")
	}
	replicas := make(map[uint64]bool)
	for i, s := range m.Shards {
		if (i > 0 && s.GetId() <= m.Shards[i-1].Id) || s.GetId() >= m.NextShardId {
			return bad("shards", "must have rising ids below next_shard_id %d", m.NextShardId)
		}
		if s.Id != 0 && !regions[s.Region] {
			return bad("shards", "must live in a region that has nodes; shard %d lives in %q", s.Id, s.Region)
		}
		if len(s.Replicas) == 0 {
			return bad("shards", "must have replicas; shard %d has none", s.Id)
		}
		on := make(map[uint64]bool, len(s.Replicas))
		for _, r := range s.Replicas {
			switch n := nodes[r.GetNode()]; {
			case r.GetId() == 0 || r.GetId() >= m.NextReplicaId || replicas[r.GetId()]:
				return bad("replicas", "must have unique ids from 1 to below next_replica_id %d; %d of shard %d has not", m.NextReplicaId, r.GetId(), s.Id)
			case n == nil:
				return bad("replicas", "must be on a node of the cluster; %d of shard %d is not", r.Id, s.Id)
			case on[r.Node]:
				return bad("replicas", "of one shard must be on different nodes; shard %d has two on node %d", s.Id, r.Node)
			case s.Id != 0 && n.Region != s.Region:
				return bad("replicas", "must live in their shard's region; %d of shard %d does not", r.Id, s.Id)
			}
			replicas[r.Id], on[r.Node] = true, true
		}
		for _, sel := range s.Owns {
			if sel.GetHashFirst() > sel.GetHashLast() {
				return bad("owns", "must have hash_first at most hash_last; shard %d has not", s.Id)
			}
		}
	}
	return nil
}

func checkNode(name, address, httpAddress, gatewayAddress, region, zone string) error {
	for _, err := range []error{
		checkLabel("name", name, false),
		checkAddress("address", address, false),
		checkAddress("http_address", httpAddress, true),
		checkAddress("gateway_address", gatewayAddress, true),
		checkLabel("region", region, false),
		checkLabel("zone", zone, true),
	} {
		if err != nil {
			return fmt.Errorf("node %q: %w", name, err)
		}
	}
	return nil
}

func isHex(s string) bool {
	for _, r := range s {
		if (r < '0' || r > '9') && (r < 'a' || r > 'f') {
			return false
		}
	}
	return true
}
