package checker

import (
	"cmp"
	"maps"
	"slices"

	"github.com/mortise-lock/mortise/ops/history"
)

func sortBy[T any, K cmp.Ordered](s []T, key func(T) K) {
	slices.SortStableFunc(s, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
}

// cluster checks what nodes show: equal states, nothing left over, and shards
// that serve.
func (x *index) cluster() {
	type place struct {
		shard uint32
		index uint64
	}
	hashes := map[place]int{}
	shards := map[uint32]bool{}
	for i := range x.ev {
		e := &x.ev[i]
		switch e.Kind {
		case history.Applied:
			if e.Shard != 0 {
				shards[e.Shard] = true
			}
			p := place{e.Shard, e.Index}
			if j, ok := hashes[p]; !ok {
				hashes[p] = i
			} else if x.ev[j].Hash != e.Hash {
				x.report("P9", "same-hash", i, []int{j, i}, "shard %d at index %d: the state has hash %x on node %d (at %s) and %x on node %d (at %v); replicas that applied the same entries must be equal",
					e.Shard, e.Index, x.ev[j].Hash, x.ev[j].Node, x.at(j), e.Hash, e.Node, when(e.At))
			}
		case history.Baseline:
			if e.Count != 0 {
				x.report("P6", "baseline", i, []int{i}, "at %v, after all clients have gone, %d %s are left; there must be none", when(e.At), e.Count, e.Note)
			}
		}
	}
	if x.opts.ServeWithin <= 0 || len(x.ev) == 0 {
		return
	}
	must := x.opts.Shards
	if must == nil {
		must = slices.Sorted(maps.Keys(shards))
	}
	for i := range x.ev {
		if x.ev[i].Kind == history.Healed {
			x.serve(i, must)
		}
	}
}

// serve looks at what follows a Healed up to the bound. Another fault within
// the bound, or the end of the history, leaves it open.
func (x *index) serve(healed int, must []uint32) {
	limit := x.ev[healed].At + x.opts.ServeWithin
	served := map[uint32]bool{}
	i := healed + 1
	for ; i < len(x.ev) && x.ev[i].At <= limit; i++ {
		switch x.ev[i].Kind {
		case history.Served:
			served[x.ev[i].Shard] = true
		case history.Fault:
			return
		}
	}
	if i == len(x.ev) && x.ev[i-1].At < limit {
		return
	}
	for _, s := range must {
		if !served[s] {
			x.report("serve", "serve", min(i, len(x.ev)-1), []int{healed}, "shard %d granted nothing within %v after everything was healed at %s; it must serve again by then", s, when(x.opts.ServeWithin), x.at(healed))
		}
	}
}
