package placement

import (
	"fmt"

	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/mortise-lock/mortise/shard"
)

// RouterFromMap makes the router that the map describes. It checks the whole
// map first: what comes over the wire is not trusted to be one of ours.
func RouterFromMap(m *placementv1.Map) (*shard.Router, error) {
	if err := Validate(m); err != nil {
		return nil, fmt.Errorf("placement map: %w", err)
	}
	pins := make([]shard.Pin, len(m.Pins))
	for i, p := range m.Pins {
		pins[i] = shard.Pin{Prefix: p.Prefix, Region: p.Region}
	}
	var routes []shard.Route
	for _, s := range m.Shards {
		for _, sel := range Selectors(s) {
			routes = append(routes, shard.Route{Region: s.Region, Selector: sel, Shard: shard.ID(s.Id)})
		}
	}
	r, err := shard.NewRouter(m.Generation, pins, routes)
	if err != nil {
		return nil, fmt.Errorf("placement map generation %d: %w", m.Generation, err)
	}
	return r, nil
}

// Selectors are what the shard owns, in the terms of package shard.
func Selectors(s *placementv1.Shard) []shard.Selector {
	out := make([]shard.Selector, len(s.GetOwns()))
	for i, o := range s.GetOwns() {
		out[i] = shard.Selector{Prefix: o.Prefix, Excluded: o.Excluded, HashFirst: o.HashFirst, HashLast: o.HashLast}
	}
	return out
}
