package placement

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files of this package")

const testCluster = "00112233445566778899aabbccddeeff"

// zonesOf makes nodes n1, n2, … of one region, one per zone named.
func zonesOf(region string, zones ...string) []NodeInfo {
	var nodes []NodeInfo
	for i, z := range zones {
		nodes = append(nodes, NodeInfo{
			Name:    fmt.Sprintf("%s-n%d", region, i+1),
			Address: fmt.Sprintf("10.0.%d.%d:7422", len(region), i+1), HTTPAddress: fmt.Sprintf("10.0.%d.%d:7421", len(region), i+1),
			GatewayAddress: fmt.Sprintf("10.0.%d.%d:7420", len(region), i+1),
			Region:         region, Zone: z,
		})
	}
	return nodes
}

// TestInitialMapGolden compares whole maps, drawn as text, with those that
// were reviewed. go test ./placement -rewrite writes them anew.
func TestInitialMapGolden(t *testing.T) {
	for _, c := range []struct {
		name   string
		nodes  []NodeInfo
		shards int
	}{
		{"1-node", zonesOf("eu", "a"), 4},
		{"3-nodes-3-zones", zonesOf("eu", "a", "b", "c"), 16},
		{"3-nodes-no-zones", zonesOf("eu", "", "", ""), 4},
		{"4-nodes-3-zones", zonesOf("eu", "a", "b", "c", "a"), 8},
		{"5-nodes-2-2-1", zonesOf("eu", "a", "b", "c", "a", "b"), 16},
		{"5-nodes-3-1-1", zonesOf("eu", "a", "b", "c", "a", "a"), 6},
		{"9-nodes-3-zones", zonesOf("eu", "a", "b", "c", "a", "b", "c", "a", "b", "c"), 12},
		{"2-regions", append(zonesOf("eu", "a", "b", "c"), zonesOf("usa", "a", "b", "c")...), 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := InitialMap(testCluster, c.nodes, c.shards)
			if err != nil {
				t.Fatal(err)
			}
			got, file := draw(m), filepath.Join("testdata", "initial", c.name+".txt")
			if *rewrite {
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("map differs from %s:\n%s", file, got)
			}
		})
	}
}

// draw writes a map as text: all of it, the prospective leader starred.
func draw(m *placementv1.Map) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "cluster %s generation %d next node %d shard %d replica %d\n", m.ClusterId, m.Generation, m.NextNodeId, m.NextShardId, m.NextReplicaId)
	replicas, leads := make(map[uint64]int), make(map[uint64]int)
	for _, s := range m.Shards {
		leads[PreferredLeader(s)]++
		for _, r := range s.Replicas {
			replicas[r.Node]++
		}
	}
	for _, n := range m.Nodes {
		fmt.Fprintf(&b, "node %d %s %s http %s gateway %s region %s zone %q: replicas %d leads %d\n", n.Id, n.Name, n.Address, n.HttpAddress, n.GatewayAddress, n.Region, n.Zone, replicas[n.Id], leads[n.Id])
	}
	for _, s := range m.Shards {
		fmt.Fprintf(&b, "shard %d region %s generation %d owns", s.Id, s.Region, s.Generation)
		for _, sel := range s.Owns {
			fmt.Fprintf(&b, " %q %016x-%016x", sel.Prefix, sel.HashFirst, sel.HashLast)
		}
		b.WriteString(" replicas")
		for i, r := range s.Replicas {
			star := ""
			if i == 0 {
				star = "*"
			}
			fmt.Fprintf(&b, " %d@%d%s", r.Id, r.Node, star)
		}
		b.WriteByte('\n')
	}
	for _, p := range m.Pins {
		fmt.Fprintf(&b, "pin %q %s\n", p.Prefix, p.Region)
	}
	return b.String()
}

func TestInitialMapRefuses(t *testing.T) {
	edit := func(f func(*NodeInfo)) []NodeInfo {
		n := zonesOf("eu", "a", "b", "c")
		f(&n[1])
		return n
	}
	for _, c := range []struct {
		name   string
		nodes  []NodeInfo
		shards int
		want   string
	}{
		{"none", nil, 16, "nodes must be at least one"},
		{"two nodes", zonesOf("eu", "a", "b"), 16, "nodes must be 1, or 3 and more"},
		{"two zones", zonesOf("eu", "a", "b", "a"), 16, "at least three zones"},
		{"some zones unset", zonesOf("eu", "a", "b", ""), 16, "on every node"},
		{"no shards", zonesOf("eu", "a", "b", "c"), 0, "shards must be 1 to 4096"},
		{"too many shards", zonesOf("eu", "a", "b", "c"), 4097, "shards must be 1 to 4096"},
		{"same name", edit(func(n *NodeInfo) { n.Name = "eu-n1" }), 1, `two are called "eu-n1"`},
		{"same address", edit(func(n *NodeInfo) { n.Address = "10.0.2.1:7422" }), 1, "unique names and addresses"},
		{"unreachable address", edit(func(n *NodeInfo) { n.Address = "0.0.0.0:7422" }), 1, "address must be an address that others can reach"},
		{"no port", edit(func(n *NodeInfo) { n.Address = "10.0.0.1" }), 1, "address must be host:port"},
		{"no region", edit(func(n *NodeInfo) { n.Region = "" }), 1, "region must have 1 to 64 bytes"},
		{"odd name", edit(func(n *NodeInfo) { n.Name = "a b" }), 1, `it has ' '`},
		{"some ids", edit(func(n *NodeInfo) { n.ID = 7 }), 1, "must have an id each"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := InitialMap(testCluster, c.nodes, c.shards)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got map %v, error %v; want an error with %q", m, err, c.want)
			}
		})
	}
	if _, err := InitialMap("nope", zonesOf("eu", "a"), 1); err == nil {
		t.Error("a malformed cluster id was accepted")
	}
}

// TestInitialMapProperties: for any legal cluster the map is valid, covers the
// hash space once, spreads as promised and is as even as its shape allows.
func TestInitialMapProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perZone := rapid.IntRange(1, 5).Draw(t, "nodes per zone")
		zones := rapid.IntRange(3, 6).Draw(t, "zones")
		extra := rapid.IntRange(0, 2).Draw(t, "extra nodes in zone a")
		shards := rapid.IntRange(1, 64).Draw(t, "shards")
		var names []string
		for range perZone {
			for z := range zones {
				names = append(names, string(rune('a'+z)))
			}
		}
		for range extra {
			names = append(names, "a")
		}
		nodes := zonesOf("eu", names...)
		m, err := InitialMap(testCluster, nodes, shards)
		if err != nil {
			t.Fatal(err)
		}
		shuffled := rapid.Permutation(nodes).Draw(t, "order")
		again, err := InitialMap(testCluster, shuffled, shards)
		if err != nil || !proto.Equal(m, again) {
			t.Fatalf("another order of the same nodes gives another map (%v)", err)
		}
		checkSpread(t, m)
		checkCoverage(t, m)
		replicas, leads := make(map[uint64]int), make(map[uint64]int)
		for _, s := range m.Shards {
			leads[PreferredLeader(s)]++
			for _, r := range s.Replicas {
				replicas[r.Node]++
			}
		}
		if extra == 0 {
			if d := gap(m, replicas); d > 2 {
				t.Fatalf("replicas per node differ by %d: %v", d, replicas)
			}
			if d := gap(m, leads); d > 1 {
				t.Fatalf("prospective leaders per node differ by %d: %v", d, leads)
			}
		}
	})
}

func gap(m *placementv1.Map, count map[uint64]int) int {
	lo, hi := math.MaxInt, 0
	for _, n := range m.Nodes {
		lo, hi = min(lo, count[n.Id]), max(hi, count[n.Id])
	}
	return hi - lo
}

// checkSpread: no zone holds so many replicas of a shard that the others are
// no majority.
func checkSpread(t *rapid.T, m *placementv1.Map) {
	zone := make(map[uint64]string)
	for _, n := range m.Nodes {
		zone[n.Id] = n.Zone
	}
	for _, s := range m.Shards {
		in := make(map[string]int)
		for _, r := range s.Replicas {
			in[zone[r.Node]]++
		}
		for z, n := range in {
			if len(s.Replicas)-n <= len(s.Replicas)/2 {
				t.Fatalf("shard %d: %d of %d replicas in zone %s", s.Id, n, len(s.Replicas), z)
			}
		}
	}
}

// checkCoverage: the lock shards' hash ranges follow each other from 0 to the
// top, and differ in size by at most one.
func checkCoverage(t *rapid.T, m *placementv1.Map) {
	next, smallest, largest := uint64(0), uint64(math.MaxUint64), uint64(0)
	for i, s := range m.Shards[1:] {
		o := s.Owns[0]
		if o.HashFirst != next {
			t.Fatalf("shard %d begins at %x, want %x", s.Id, o.HashFirst, next)
		}
		next = o.HashLast + 1
		smallest, largest = min(smallest, o.HashLast-o.HashFirst), max(largest, o.HashLast-o.HashFirst)
		if i == len(m.Shards)-2 && o.HashLast != math.MaxUint64 {
			t.Fatalf("the last shard ends at %x", o.HashLast)
		}
	}
	if largest-smallest > 1 {
		t.Fatalf("ranges differ in size: %x to %x", smallest, largest)
	}
}
