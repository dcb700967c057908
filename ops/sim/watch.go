package sim

import (
	"fmt"

	"github.com/mortise-lock/mortise/ops/history"
)

// watch judges events as they come, so that a run stops at the first broken
// promise. It is no more than that: package checker judges whole histories.
type watch struct {
	w       *World
	beliefs map[string][]*history.Event // by name: those that are alive
	granted map[nameToken]uint64        // by which call
	applied map[shardIndex]appliedHash
}

type nameToken struct {
	name  string
	token uint64
}

type shardIndex struct {
	shard uint32
	index uint64
}

type appliedHash struct {
	hash uint64
	node int
}

func newWatch(w *World) *watch {
	return &watch{w: w, beliefs: map[string][]*history.Event{}, granted: map[nameToken]uint64{}, applied: map[shardIndex]appliedHash{}}
}

func (k *watch) see(e *history.Event) {
	switch e.Kind {
	case history.BeliefBegins:
		k.begins(e)
	case history.BeliefEnds:
		alive := k.beliefs[e.Name]
		for i, b := range alive {
			if b.Call == e.Call {
				k.beliefs[e.Name] = append(alive[:i:i], alive[i+1:]...)
				return
			}
		}
	case history.Return:
		if e.Op != history.Acquire || e.Outcome != history.OK {
			return
		}
		t := nameToken{e.Name, e.Token}
		if o, ok := k.granted[t]; ok && o != e.Call {
			k.w.violate("P2", fmt.Sprintf("token %d of %s was granted to call %d and to call %d", e.Token, e.Name, o, e.Call))
		}
		k.granted[t] = e.Call
	case history.Write:
		// A holder's write may be refused only if it relies on its hold no more.
		if e.Accepted {
			return
		}
		for _, b := range k.beliefs[e.Name] {
			if b.Token == e.Token && b.Mode == history.Exclusive {
				k.w.violate("P2", fmt.Sprintf("client %d relies on %s with token %d, and the store has seen a greater one", e.Client, e.Name, e.Token))
			}
		}
	case history.Applied:
		i := shardIndex{e.Shard, e.Index}
		a, ok := k.applied[i]
		if ok && a.hash != e.Hash {
			k.w.violate("P9", fmt.Sprintf("shard %d at index %d: nodes %d and %d have different states", e.Shard, e.Index, a.node+1, e.Node+1))
		}
		k.applied[i] = appliedHash{e.Hash, e.Node}
	}
}

func (k *watch) begins(e *history.Event) {
	permits := uint64(e.Permits)
	for _, b := range k.beliefs[e.Name] {
		permits += uint64(b.Permits)
		if e.Mode == history.Exclusive || b.Mode == history.Exclusive || b.Mode != e.Mode {
			k.w.violate("P1", fmt.Sprintf("client %d (%s, token %d) begins to hold %s while client %d (%s, token %d) relies on it",
				e.Client, e.Session, e.Token, e.Name, b.Client, b.Session, b.Token))
		}
	}
	if e.Mode == history.Counted && permits > uint64(e.Limit) {
		k.w.violate("P1", fmt.Sprintf("%d permits of %s are relied on, the limit is %d", permits, e.Name, e.Limit))
	}
	copied := *e
	k.beliefs[e.Name] = append(k.beliefs[e.Name], &copied)
}
