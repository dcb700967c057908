package checker

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/mortise-lock/mortise/ops/history"
)

var modelOptions = Options{FreeWithin: 500 * ms}

// TestCorrectHistories: whatever a correct service answers, however calls
// overlap, is a good history.
func TestCorrectHistories(t *testing.T) {
	var sum, st Stats
	o := modelOptions
	o.Stats = &st
	seeds := uint64(80)
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		if v := Check(randomHistory(seed, 5_000*ms), o); len(v) > 0 {
			t.Fatalf("seed %d: a good history is blamed: %v", seed, v[0])
		}
		sum.Orphans += st.Orphans
		sum.Grants += st.Grants
		sum.Describes += st.Describes
		sum.Windows += st.Windows
		sum.Undecided += st.Undecided
	}
	t.Logf("%+v", sum)
	if sum.Orphans == 0 || sum.Describes == 0 || sum.Windows == 0 || sum.Undecided > sum.Windows/100 {
		t.Errorf("the histories are not worth much: %+v", sum)
	}
}

// TestDeterministic: the same history gives the same answer.
func TestDeterministic(t *testing.T) {
	for seed := range uint64(20) {
		events := randomHistory(seed, 5_000*ms)
		mutations[int(seed)%len(mutations)].do(rand.New(rand.NewPCG(seed, 2)), events)
		if a, b := Check(events, modelOptions), Check(events, modelOptions); !reflect.DeepEqual(a, b) {
			t.Fatalf("seed %d: two answers:\n%v\n%v", seed, a, b)
		}
	}
}

// mutation breaks one thing in a good history. It returns nil if there is
// nothing of the kind in it. atLeast is the share, in percent, that the checker
// has to catch; a mutation may leave a history that is good, or not provably
// bad.
type mutation struct {
	name    string
	atLeast int
	do      func(*rand.Rand, []history.Event) []history.Event
}

var mutations = []mutation{
	{"tokens of two grants swapped", 75, swapTokens},
	{"token of an earlier grant given again", 100, repeatToken},
	{"token below an earlier one", 100, lowerToken},
	{"release dropped, its owner goes on", 85, dropRelease},
	{"belief lasts into the next one", 100, stretchBelief},
	{"describe is stale", 85, staleDescribe},
	{"describe misses a holder", 100, missHolder},
	{"describe shows a hold that nobody asked for", 100, inventHolder},
	{"released hold shows again", 95, showReleased},
	{"store accepts a smaller token", 100, flipWrite},
	{"overtaken in the queue", 95, overtake},
}

// TestMutations: single faults in good histories are caught at stated rates.
func TestMutations(t *testing.T) {
	want := 40
	if testing.Short() {
		want = 10
	}
	for i, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			caught, tried := 0, 0
			for seed := uint64(1000 * i); tried < want; seed++ {
				if seed > uint64(1000*i+20*want) {
					t.Fatalf("only %d histories had something to break", tried)
				}
				events := m.do(rand.New(rand.NewPCG(seed, 3)), randomHistory(seed, 3_000*ms))
				if events == nil {
					continue
				}
				tried++
				if len(Check(events, modelOptions)) > 0 {
					caught++
				}
			}
			t.Logf("%d of %d caught", caught, tried)
			if caught*100 < tried*m.atLeast {
				t.Errorf("%d of %d caught, want %d%%", caught, tried, m.atLeast)
			}
		})
	}
}

// TestBuggyServices: what only time shows is caught in all histories of a service
// that has the bug, and in none of one without.
func TestBuggyServices(t *testing.T) {
	for _, b := range []struct {
		name, check string
		set         func(*service)
	}{
		{"none", "", func(*service) {}},
		{"waiters are forgotten", "stuck", func(s *service) { s.forgets = true }},
		{"nothing is given back", "ghost", func(s *service) { s.gripping = true }},
	} {
		t.Run(b.name, func(t *testing.T) {
			for seed := range uint64(20) {
				s := newService(seed)
				s.orderly = true
				b.set(s)
				found := Check(s.run(5_000*ms), modelOptions)
				if len(found) > 0 != (b.check != "") {
					t.Fatalf("seed %d: %d violations: %v", seed, len(found), found)
				}
				if b.check != "" && !slices.ContainsFunc(found, func(v Violation) bool { return v.Check == b.check }) {
					t.Fatalf("seed %d: want %q: %v", seed, b.check, found)
				}
			}
		})
	}
}

// some picks one of the events that fit; -1 if none does.
func some(r *rand.Rand, events []history.Event, ok func(i int, e *history.Event) bool) int {
	var list []int
	for i := range events {
		if ok(i, &events[i]) {
			list = append(list, i)
		}
	}
	if len(list) == 0 {
		return -1
	}
	return list[r.IntN(len(list))]
}

func granted(e *history.Event) bool {
	return e.Kind == history.Return && e.Op == history.Acquire && e.Outcome == history.OK
}

// retoken gives a hold another token wherever its client tells it.
func retoken(events []history.Event, call, from, to uint64, name string) {
	for i := range events {
		e := &events[i]
		if e.Name == name && e.Token == from && (e.Call == call || e.Op == history.Release || e.Kind == history.Write) {
			e.Token = to
		}
	}
}

// pair picks a grant and the one of the same lock that was asked for next after
// it was told.
func pair(r *rand.Rand, events []history.Event) (int, int) {
	i := some(r, events, func(_ int, e *history.Event) bool { return granted(e) })
	if i < 0 {
		return -1, -1
	}
	for j := i + 1; j < len(events); j++ {
		if e := &events[j]; e.Kind == history.Invoke && e.Op == history.Acquire && e.Name == events[i].Name {
			for k := j; k < len(events); k++ {
				if events[k].Call == e.Call && granted(&events[k]) {
					return i, k
				}
			}
		}
	}
	return -1, -1
}

func swapTokens(r *rand.Rand, events []history.Event) []history.Event {
	i := some(r, events, func(_ int, e *history.Event) bool { return granted(e) })
	if i < 0 {
		return nil
	}
	j := some(r, events, func(j int, e *history.Event) bool {
		return j > i && granted(e) && e.Name == events[i].Name && conflict(e.Mode, events[i].Mode)
	})
	if j < 0 {
		return nil
	}
	a, b := events[i], events[j]
	retoken(events, a.Call, a.Token, 1, a.Name)
	retoken(events, b.Call, b.Token, a.Token, a.Name)
	retoken(events, a.Call, 1, b.Token, a.Name)
	return events
}

func repeatToken(r *rand.Rand, events []history.Event) []history.Event {
	i, j := pair(r, events)
	if i < 0 {
		return nil
	}
	retoken(events, events[j].Call, events[j].Token, events[i].Token, events[i].Name)
	return events
}

func lowerToken(r *rand.Rand, events []history.Event) []history.Event {
	i, j := pair(r, events)
	if i < 0 {
		return nil
	}
	retoken(events, events[j].Call, events[j].Token, events[i].Token-1, events[i].Name)
	return events
}

func dropRelease(r *rand.Rand, events []history.Event) []history.Event {
	i := some(r, events, func(i int, e *history.Event) bool {
		return e.Kind == history.Invoke && e.Op == history.Release && e.Mode == history.Exclusive &&
			slices.ContainsFunc(events[i:], func(o history.Event) bool { return granted(&o) && o.Name == e.Name && o.Token > e.Token })
	})
	if i < 0 {
		return nil
	}
	rel := events[i]
	return slices.DeleteFunc(events, func(e history.Event) bool {
		return e.Op == history.Release && e.Call == rel.Call || e.Kind == history.BeliefEnds && e.Name == rel.Name && e.Token == rel.Token
	})
}

func stretchBelief(r *rand.Rand, events []history.Event) []history.Event {
	next := -1
	i := some(r, events, func(i int, e *history.Event) bool {
		return e.Kind == history.BeliefEnds && e.Mode == history.Exclusive &&
			!slices.ContainsFunc(events, func(o history.Event) bool { return o.Kind == history.ClientDied && o.Client == e.Client }) &&
			slices.ContainsFunc(events[i:], func(o history.Event) bool { return o.Kind == history.BeliefBegins && o.Name == e.Name })
	})
	if i < 0 {
		return nil
	}
	e := events[i]
	for j := i + 1; j < len(events) && next < 0; j++ {
		if events[j].Kind == history.BeliefBegins && events[j].Name == e.Name {
			next = j
		}
	}
	// Up to a moment after the other's begin.
	e.At = events[next].At + 1
	for next+1 < len(events) && events[next+1].At < e.At {
		next++
	}
	for k := range events {
		if k > next && events[k].At < e.At {
			return nil
		}
	}
	return slices.Delete(slices.Insert(slices.Clone(events), next+1, e), i, i+1)
}

func shown(e *history.Event) bool { return e.Kind == history.Return && e.Op == history.Describe }

func sameHolders(a, b *history.Event) bool {
	return reflect.DeepEqual(a.Holders, b.Holders)
}

func staleDescribe(r *rand.Rand, events []history.Event) []history.Event {
	old := -1
	i := some(r, events, func(i int, e *history.Event) bool { return shown(e) && len(e.Holders) > 0 && i > len(events)/4 })
	if i < 0 {
		return nil
	}
	for j := range i {
		if e := &events[j]; shown(e) && e.Name == events[i].Name && e.At < events[i].At-200*ms && !sameHolders(e, &events[i]) {
			old = j
		}
	}
	if old < 0 {
		return nil
	}
	events[i].Holders = events[old].Holders
	return events
}

func believed(events []history.Event, token uint64, from, to int) bool {
	find := func(k history.Kind) int {
		return slices.IndexFunc(events, func(o history.Event) bool { return o.Kind == k && o.Token == token })
	}
	b, e := find(history.BeliefBegins), find(history.BeliefEnds)
	return b >= 0 && b < from && (e < 0 || e > to)
}

func missHolder(r *rand.Rand, events []history.Event) []history.Event {
	i := some(r, events, func(i int, e *history.Event) bool {
		// Of a hold that its client believed in all the time.
		return shown(e) && len(e.Holders) > 0 && believed(events, e.Holders[0].Token, slices.IndexFunc(events, func(o history.Event) bool { return o.Call == e.Call }), i)
	})
	if i < 0 {
		return nil
	}
	events[i].Holders = events[i].Holders[1:]
	return events
}

func inventHolder(r *rand.Rand, events []history.Event) []history.Event {
	i := some(r, events, func(_ int, e *history.Event) bool { return shown(e) && len(e.Holders) == 0 })
	if i < 0 {
		return nil
	}
	events[i].Holders = []history.Holder{{Session: "stranger", Token: 1 << 40, Mode: history.Exclusive}}
	return events
}

func showReleased(r *rand.Rand, events []history.Event) []history.Event {
	var rel history.Event
	i := some(r, events, func(i int, e *history.Event) bool { return shown(e) && i > len(events)/2 })
	if i < 0 {
		return nil
	}
	for j := range i {
		if e := &events[j]; e.Kind == history.Return && e.Op == history.Release && e.Name == events[i].Name && e.At < events[i].At-200*ms {
			rel = *e
		}
	}
	if rel.Token == 0 {
		return nil
	}
	events[i].Holders = append([]history.Holder{{Session: rel.Session, Token: rel.Token, Mode: rel.Mode, Permits: rel.Permits}}, events[i].Holders...)
	return events
}

func flipWrite(r *rand.Rand, events []history.Event) []history.Event {
	i := some(r, events, func(_ int, e *history.Event) bool { return e.Kind == history.Write })
	if i < 0 {
		return nil
	}
	events[i].Accepted = !events[i].Accepted
	return events
}

// overtake gives one who waited the token of one who asked later, and the other
// way round.
func overtake(r *rand.Rand, events []history.Event) []history.Event {
	var a, b history.Event
	i := some(r, events, func(_ int, e *history.Event) bool {
		return e.Kind == history.Waiting && slices.ContainsFunc(events, func(o history.Event) bool { return granted(&o) && o.Call == e.Call })
	})
	if i < 0 {
		return nil
	}
	later := map[uint64]bool{}
	for j := range events {
		e := &events[j]
		switch {
		case j > i && e.Kind == history.Invoke && e.Op == history.Acquire && e.Name == events[i].Name:
			later[e.Call] = true
		case granted(e) && e.Call == events[i].Call:
			a = *e
		case granted(e) && later[e.Call] && b.Token == 0:
			b = *e
		}
	}
	if b.Token == 0 {
		return nil
	}
	retoken(events, a.Call, a.Token, 1, a.Name)
	retoken(events, b.Call, b.Token, a.Token, a.Name)
	retoken(events, a.Call, 1, b.Token, a.Name)
	return events
}
