package core

import (
	"fmt"

	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/mortise-lock/mortise/shard"
)

// RouterOf makes the router of a placement map. It fails when the map's pins
// and shards don't give every name exactly one shard.
func RouterOf(m *placementv1.Map) (Router, error) {
	var pins []shard.Pin
	for _, p := range m.GetPins() {
		pins = append(pins, shard.Pin{Prefix: p.Prefix, Region: p.Region})
	}
	var routes []shard.Route
	for _, s := range m.GetShards() {
		for _, o := range s.Owns {
			routes = append(routes, shard.Route{Region: s.Region, Shard: shard.ID(s.Id), Selector: shard.Selector{
				Prefix: o.Prefix, Excluded: o.Excluded, HashFirst: o.HashFirst, HashLast: o.HashLast}})
		}
	}
	r, err := shard.NewRouter(m.GetGeneration(), pins, routes)
	if err != nil {
		return nil, fmt.Errorf("map generation %d: %w", m.GetGeneration(), err)
	}
	return r, nil
}
