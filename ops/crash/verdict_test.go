package crash

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/mortise-lock/mortise/shard"
)

// verdict compares what is left with what was acknowledged before the crash
// began; what was asked for until it was over may or may not have happened.
type verdict struct {
	*summary
	before, after map[*attempt]attempt
}

func (v *verdict) compare(disks []*vfs.MemFS) error {
	var all []*recovered
	for i, d := range disks {
		n, err := recoverNode(d)
		if err != nil {
			return fmt.Errorf("node %d does not start: %w", i+1, err)
		}
		all = append(all, n)
	}
	for id := range all[0].states {
		if id == 0 {
			continue
		}
		for i := range leaders(all, id) {
			index, _ := all[i].last(id)
			m, err := all[i].replay(id, index)
			if err != nil {
				return err
			}
			if err := v.agree(all, i, id); err != nil {
				return err
			}
			if err := v.state(m); err != nil {
				return fmt.Errorf("shard %d led by node %d: %w", id, i+1, err)
			}
			if err := v.next(m); err != nil {
				return fmt.Errorf("shard %d led by node %d: %w", id, i+1, err)
			}
		}
	}
	if err := v.restart(all); err != nil {
		return fmt.Errorf("after the restart: %w", err)
	}
	return nil
}

// agree: where another node has committed, the leader has the same state.
func (v *verdict) agree(all []*recovered, leader int, id shard.ID) error {
	for j, n := range all {
		commit := n.states[id].HardState.Commit
		if j == leader || commit < all[leader].states[id].Base.Index {
			continue
		}
		a, err := all[leader].replay(id, commit)
		if err != nil {
			return fmt.Errorf("node %d committed %d, which the next leader lacks: %w", j+1, commit, err)
		}
		b, err := n.replay(id, commit)
		if err != nil {
			return err
		}
		if a.Hash() != b.Hash() {
			return fmt.Errorf("shard %d: nodes %d and %d differ at index %d", id, leader+1, j+1, commit)
		}
	}
	return nil
}

// state compares one shard's state with the record.
func (v *verdict) state(m *shard.Machine) error {
	names := map[string][]*attempt{}
	for p, a := range v.after {
		if m.Owns(a.name) {
			names[a.name] = append(names[a.name], p)
		}
	}
	for name, ps := range names {
		if err := v.name(m.Describe(name), ps); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	// Nobody else holds anything.
	for after, more := "", true; more; {
		var locks []shard.LockView
		locks, more = m.List("", after, 1000)
		for _, l := range locks {
			after = l.Name
			if names[l.Name] == nil && len(l.Holders) > 0 {
				return fmt.Errorf("%s is held by %s, who has left it", l.Name, l.Holders[0].Client)
			}
		}
	}
	return nil
}

// next: the next token is larger than all that were acknowledged here. It
// changes the state.
func (v *verdict) next(m *shard.Machine) error {
	var out shard.Outcome
	name := fresh(m)
	b := shard.Batch{Time: m.Time(), Commands: []shard.Command{{Kind: shard.KindRegister, Session: shard.SessionID{1}, Client: "next", TTL: int64(time.Minute)}}}
	if err := m.Apply(m.Applied()+1, m.AppliedTerm(), b.AppendTo(nil), &out); err != nil {
		return err
	}
	b.Commands = []shard.Command{{Kind: shard.KindAcquire, Registration: out.Results[0].Registration, Acquire: shard.AcquireID{Seq: 1}, Name: name, Mode: shard.Exclusive}}
	if err := m.Apply(m.Applied()+1, m.AppliedTerm(), b.AppendTo(nil), &out); err != nil {
		return err
	}
	return v.larger(m, uint64(out.Results[0].Token))
}

// larger: the token is larger than all that were acknowledged in the shard.
func (v *verdict) larger(m *shard.Machine, token uint64) error {
	for p, a := range v.before {
		if a.token != 0 && m.Owns(p.name) {
			v.largest[m.ID()] = max(v.largest[m.ID()], uint64(a.token))
		}
	}
	if token <= v.largest[m.ID()] {
		return fmt.Errorf("the next token is %d, although %d was given out", token, v.largest[m.ID()])
	}
	return nil
}

// fresh is a name that the shard owns and nobody uses.
func fresh(m *shard.Machine) string {
	for i := 0; ; i++ {
		if name := fmt.Sprint("fresh/", i); m.Owns(name) {
			return name
		}
	}
}

// name compares one name's state with the attempts at it.
func (v *verdict) name(l shard.LockView, ps []*attempt) error {
	if len(l.Holders) > 1 {
		return fmt.Errorf("%d hold it alone", len(l.Holders))
	}
	var holder *shard.HolderView
	if len(l.Holders) == 1 {
		holder = &l.Holders[0]
	}
	place := func(client string) int {
		return slices.IndexFunc(l.Queue, func(w shard.WaiterView) bool { return w.Client == client })
	}
	known := holder == nil
	times := map[string]int{} // a client may ask for a name twice
	for _, p := range ps {
		times[p.client]++
	}
	var waiting []attempt
	for _, p := range ps {
		b, a := v.before[p], v.after[p]
		held := holder != nil && holder.Client == a.client && (a.token == 0 || uint64(a.token) == uint64(holder.Token))
		known = known || held && b.state != left
		switch {
		case b.state == granted && a.state == granted:
			v.holds++
			if !held {
				return fmt.Errorf("%s was told that it holds it under token %d; it is %s", a.client, a.token, describe(l))
			}
		case b.state == queued && (a.state == queued || a.state == granted):
			v.waits++
			if !held && place(a.client) < 0 {
				return fmt.Errorf("%s was told that it waits; it is %s", a.client, describe(l))
			}
			if times[a.client] == 1 {
				waiting = append(waiting, a)
			}
		case b.state == left && b.token != 0:
			v.ended++
			if holder != nil && uint64(holder.Token) == uint64(b.token) {
				return fmt.Errorf("the hold of %s under token %d has ended and is there again", b.client, b.token)
			}
		}
	}
	if !known {
		return fmt.Errorf("it is %s, who asked for nothing", describe(l))
	}
	for _, x := range waiting {
		for _, y := range waiting {
			if x.queuedAt >= y.askedAt {
				continue
			}
			// x waited when y asked.
			px, py := place(x.client), place(y.client)
			if px >= 0 && (py < 0 || py < px) {
				return fmt.Errorf("%s waited before %s asked, but comes after it: it is %s", x.client, y.client, describe(l))
			}
		}
	}
	return nil
}

func describe(l shard.LockView) string {
	var b strings.Builder
	if len(l.Holders) == 0 {
		b.WriteString("free")
	}
	for _, h := range l.Holders {
		fmt.Fprintf(&b, "held by %s under token %d", h.Client, h.Token)
	}
	for _, w := range l.Queue {
		fmt.Fprintf(&b, ", then %s", w.Client)
	}
	return b.String()
}
