package crash

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/mortise-lock/mortise/shard"
)

var (
	clones = flag.Int("clones", 25, "how many crashes TestPowerLoss looks at")
	seed   = flag.Uint64("seed", 0, "of the choice of what survives; 0: a new one")
)

// TestPowerLoss: whatever the crash of all nodes at once leaves, every hold,
// every place in a queue and every token that a client was told of is there,
// and nothing is granted twice.
func TestPowerLoss(t *testing.T) {
	c := start(t, nil)
	s := crash(t, c, *clones)
	for _, f := range s.found {
		t.Error(f)
	}
	t.Logf("%d crashes under load: %d grants acknowledged; compared %d holds, %d places in queues, %d ended holds; "+
		"%d of %d log entries on disk were lost with what was not synced",
		s.crashes, s.grants, s.holds, s.waits, s.ended, s.live-s.survived, s.live)
	if s.holds == 0 || s.waits == 0 || s.ended == 0 {
		t.Error("some kind of acknowledgement was never looked for")
	}
}

// TestLostSyncsAreFound: the same test finds disks that lie about their syncs.
func TestLostSyncsAreFound(t *testing.T) {
	for name, part := range map[string]string{"WAL": ".log", "snapshots": "/snapshots/"} {
		t.Run(name, func(t *testing.T) {
			l := &lies{about: func(path string) bool { return strings.Contains(path, part) }}
			c := start(t, l)
			l.begun.Store(true)
			if s := crash(t, c, 100); len(s.found) == 0 {
				t.Errorf("%d crashes of nodes whose %s was never synced lost nothing that anybody noticed", s.crashes, name)
			} else {
				t.Logf("found: %s", s.found[0])
			}
		})
	}
}

// summary of the crashes looked at.
type summary struct {
	crashes, grants, holds, waits, ended int
	live, survived                       int // log entries
	found                                []string
}

func crash(t *testing.T, c *cluster, times int) *summary {
	t.Helper()
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("seed %d", *seed)
	rng := rand.New(rand.NewPCG(*seed, 1))
	ctx, stop := context.WithCancel(context.Background())
	r := &record{}
	clients := load(ctx, t, c, r, 8)
	defer func() {
		stop()
		clients.Wait()
	}()
	s := &summary{}
	for ; s.crashes < times && len(s.found) == 0 && !t.Failed(); s.crashes++ {
		wait(time.Duration(rng.IntN(60)) * time.Millisecond)
		percent := rng.IntN(101)
		if rng.IntN(3) == 0 {
			percent = 0
		}
		before := r.copy()
		c.power.Lock()
		var disks, whole []*vfs.MemFS
		for _, d := range c.disks {
			disks = append(disks, d.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}))
			if s.crashes < 20 { // how much there was to lose
				whole = append(whole, d.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng}))
			}
		}
		c.power.Unlock()
		after := r.copy()
		r.prune(before)
		v := &verdict{summary: s, before: before, after: after}
		if err := v.compare(disks); err != nil {
			s.found = append(s.found, fmt.Sprintf("crash %d, %d%% of what was not synced survived: %v", s.crashes, percent, err))
		}
		for _, d := range whole {
			if n, err := recoverNode(d); err == nil {
				s.live += n.entries
			}
		}
		if s.crashes < 20 {
			s.survived += v.entries
		}
	}
	r.mu.Lock()
	s.grants = r.grants
	r.mu.Unlock()
	return s
}

func wait(d time.Duration) { <-time.After(d) }

// verdict compares what is left with what was acknowledged before the crash
// began; what was asked for until it was over may or may not have happened.
type verdict struct {
	*summary
	before, after map[*attempt]attempt
	entries       int
}

func (v *verdict) compare(disks []*vfs.MemFS) error {
	var all []*recovered
	for i, d := range disks {
		n, err := recoverNode(d)
		if err != nil {
			return fmt.Errorf("node %d does not start: %w", i+1, err)
		}
		v.entries += n.entries
		all = append(all, n)
	}
	meta, err := all[0].meta()
	if err != nil {
		return err
	}
	for _, sh := range meta.Map().Shards {
		if sh.Id == 0 {
			continue
		}
		id := shard.ID(sh.Id)
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
		}
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
	// The next token is larger than all that were acknowledged here.
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
	next := out.Results[0].Token
	for p, a := range v.before {
		if a.token != 0 && m.Owns(p.name) && uint64(a.token) >= uint64(next) {
			return fmt.Errorf("the next token is %d, although %d was given out for %s", next, a.token, p.name)
		}
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
