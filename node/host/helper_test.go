package host

import (
	"testing"

	"github.com/mortise-lock/mortise/placement"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/mortise-lock/mortise/shard"
)

func shardID(id uint32) shard.ID { return shard.ID(id) }

func shardOf(t *testing.T, m *placementv1.Map, name string) uint32 {
	t.Helper()
	r, err := placement.RouterFromMap(m)
	if err != nil {
		t.Fatal(err)
	}
	id, ok := r.Route(name)
	if !ok {
		t.Fatalf("%s has no shard", name)
	}
	return uint32(id)
}
