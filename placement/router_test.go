package placement

import (
	"testing"

	"github.com/mortise-lock/mortise/shard"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// TestRouterAgreesWithOwners: every name goes to the one shard whose selectors
// contain it.
func TestRouterAgreesWithOwners(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := append(zonesOf("eu", "a", "b", "c"), zonesOf("usa", "a", "b", "c")...)
		m, err := InitialMap(testCluster, nodes, rapid.IntRange(1, 40).Draw(t, "shards"))
		if err != nil {
			t.Fatal(err)
		}
		r, err := RouterFromMap(m)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			name := rapid.StringN(1, 20, 64).Draw(t, "name")
			got, ok := r.Route(name)
			owners := 0
			for _, s := range m.Shards {
				for _, sel := range Selectors(s) {
					if sel.Contains(name) {
						owners++
						if shard.ID(s.Id) != got {
							t.Fatalf("%q belongs to shard %d and is routed to %d", name, s.Id, got)
						}
					}
				}
			}
			if !ok || owners != 1 {
				t.Fatalf("%q has %d owners, routed %v", name, owners, ok)
			}
		}
	})
}

func TestRouterRefuses(t *testing.T) {
	m := proto.CloneOf(testMachine(t).Map())
	m.Shards[2].Owns = nil
	if _, err := RouterFromMap(m); err == nil {
		t.Error("a hole in the hash range was accepted")
	}
	if _, err := RouterFromMap(nil); err == nil {
		t.Error("no map was accepted")
	}
}
