package checker

import (
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/anishathalye/porcupine"
	"github.com/mortise-lock/mortise/ops/history"
)

// Windows: a lock's history is searched in pieces. A piece is cut where nothing
// is under way once it has softItems, or by force at the hard limits; then
// what lasts is in both pieces, so that a cut never invents a violation.
const (
	softItems = 24
	hardHolds = 64 // bits of state.held
	hardSeen  = 48
)

// item is a hold, from its grant to its end, or a describe.
type item struct {
	from, to int
	hold     int // none: a describe
	seen     int
}

// search looks for an order of grants, ends and describes. Without describes
// and permits the bounds of held say it all.
func (x *index) search(l *lock, holds []hold, seen []sighting) {
	counted := false
	for i := range holds {
		counted = counted || holds[i].mode == history.Counted
	}
	if len(seen) == 0 && !counted {
		return
	}
	items := make([]item, 0, len(holds)+len(seen))
	for i := range holds {
		items = append(items, item{holds[i].gLo, holds[i].eHi, i, none})
	}
	for i := range seen {
		items = append(items, item{seen[i].invoke, seen[i].ret, none, i})
	}
	sortBy(items, func(i item) int { return i.from })
	var w window
	for _, it := range items {
		quiet := it.from > w.to
		if len(w.holds)+len(w.seen) > 0 && (quiet && len(w.holds)+len(w.seen) >= softItems || len(w.holds) == hardHolds || len(w.seen) == hardSeen) {
			if !x.searchWindow(l, holds, seen, &w) {
				return
			}
			if w.cut(it.from, holds); len(w.holds) == hardHolds {
				// Too many at once: the search knows nothing of the oldest half.
				w.holds = w.holds[hardHolds/2:]
			}
		}
		w.add(it)
	}
	x.searchWindow(l, holds, seen, &w)
}

type window struct {
	to    int
	holds []int
	seen  []int
}

func (w *window) add(it item) {
	w.to = max(w.to, it.to)
	if it.hold != none {
		w.holds = append(w.holds, it.hold)
	} else {
		w.seen = append(w.seen, it.seen)
	}
}

// cut empties a window but for the holds that last.
func (w *window) cut(from int, holds []hold) {
	w.holds = slices.DeleteFunc(w.holds, func(i int) bool { return holds[i].eHi < from })
	w.seen, w.to = nil, from
	for _, i := range w.holds {
		w.to = max(w.to, holds[i].eHi)
	}
}

// state of a lock in the search: the holds of the window that are live, and
// how many were granted.
type state struct {
	held    uint64
	granted int
}

// step is an operation of the search.
type step struct {
	what  stepKind
	hold  int    // rank in the window
	shows uint64 // of a describe
}

type stepKind uint8

const (
	stepGrant stepKind = iota
	stepEnd
	stepDescribe
)

// searchWindow has porcupine look for an order of one window. It reports and
// returns false if there is none.
func (x *index) searchWindow(l *lock, holds []hold, seen []sighting, w *window) bool {
	if len(w.seen) == 0 && len(w.holds) < 2 {
		return true
	}
	// By token, which is the order of grants.
	ranked := slices.Sorted(slices.Values(w.holds))
	rank := make(map[int]int, len(ranked))
	for r, i := range ranked {
		rank[i] = r
	}
	end := int64(len(x.ev)) + 1
	ops := make([]porcupine.Operation, 0, 2*len(ranked)+len(w.seen))
	who := make([]int, 0, cap(ops)) // hold, or -1-sighting
	for r, i := range ranked {
		h := &holds[i]
		ops = append(ops, porcupine.Operation{Input: step{stepGrant, r, 0}, Call: int64(h.gLo), Return: int64(h.gHi)})
		who = append(who, i)
		if h.eLo < len(x.ev) {
			ret := int64(h.eHi)
			if h.eHi >= len(x.ev) {
				ret = end
			}
			ops = append(ops, porcupine.Operation{Input: step{stepEnd, r, 0}, Call: int64(h.eLo), Return: ret})
			who = append(who, i)
		}
	}
	for _, s := range w.seen {
		st := step{what: stepDescribe}
		for _, i := range seen[s].shows {
			if r, ok := rank[i]; ok {
				st.shows |= 1 << r
			}
		}
		ops = append(ops, porcupine.Operation{Input: st, Call: int64(seen[s].invoke), Return: int64(seen[s].ret)})
		who = append(who, -1-s)
	}
	steps := 0
	m := x.model(holds, ranked, &steps)
	x.opts.Stats.Windows++
	ok := porcupine.CheckOperations(m, ops)
	x.opts.Stats.Steps += steps
	if steps > x.opts.MaxSteps {
		x.opts.Stats.Undecided++
		return true
	}
	if ok {
		return true
	}
	x.noOrder(l, holds, seen, ops, who, m, &steps)
	return false
}

// model is the lock as porcupine sees it. Beyond the bound it says yes to
// everything, which ends the search.
func (x *index) model(holds []hold, ranked []int, steps *int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return state{} },
		Step: func(s, in, _ any) (bool, any) {
			st, op := s.(state), in.(step)
			if *steps++; *steps > x.opts.MaxSteps {
				return true, state{granted: -*steps} // never seen before, so that the search does not turn back
			}
			bit := uint64(1) << op.hold
			switch op.what {
			case stepGrant:
				if st.granted != op.hold || !fits(holds, ranked, st.held, op.hold) {
					return false, st
				}
				return true, state{st.held | bit, st.granted + 1}
			case stepEnd:
				return st.held&bit != 0, state{st.held &^ bit, st.granted}
			}
			return st.held == op.shows, st
		},
		Hash: func(s any) uint64 {
			st := s.(state)
			return (st.held ^ uint64(st.granted)<<57) * 0x9e3779b97f4a7c15
		},
	}
}

// fits: a hold may be granted beside those that are held.
func fits(holds []hold, ranked []int, held uint64, r int) bool {
	h := &holds[ranked[r]]
	permits := uint64(h.permits)
	for ; held != 0; held &= held - 1 {
		o := &holds[ranked[bits.TrailingZeros64(held)]]
		if conflict(o.mode, h.mode) {
			return false
		}
		permits += uint64(o.permits)
	}
	return h.mode != history.Counted || h.limit == 0 || permits <= uint64(h.limit)
}

// noOrder tells which event no order has room for: of the longest orders that
// porcupine found, the first operation that none of them takes in.
func (x *index) noOrder(l *lock, holds []hold, seen []sighting, ops []porcupine.Operation, who []int, m porcupine.Model, steps *int) {
	*steps = 0
	_, info := porcupine.CheckOperationsVerbose(m, ops, 0)
	in := make([]bool, len(ops))
	best := 0
	for _, p := range info.PartialLinearizations() {
		for _, ids := range p {
			best = max(best, len(ids))
		}
		for _, ids := range p {
			if len(ids) == best {
				for _, id := range ids {
					in[id] = true
				}
			}
		}
	}
	culprit := none
	for i, op := range ops {
		if !in[i] && (culprit == none || op.Return < ops[culprit].Return) {
			culprit = i
		}
	}
	if culprit == none {
		culprit = len(ops) - 1
	}
	var around []string
	events := []int{int(ops[culprit].Call), int(ops[culprit].Return)}
	for i, op := range ops {
		st := op.Input.(step)
		if i == culprit || st.what == stepDescribe || op.Call > ops[culprit].Return || op.Return < ops[culprit].Call && len(around) > 0 {
			continue
		}
		if h := &holds[who[i]]; st.what == stepGrant && len(around) < 6 {
			around = append(around, h.story(x))
			events = append(events, h.gLo, h.gHi)
		}
	}
	what, promise := "", "P3"
	if who[culprit] < 0 {
		what = x.tell(seen[-1-who[culprit]].ret)
	} else {
		what = holds[who[culprit]].story(x)
		promise = "P1"
	}
	x.report(promise, "order", int(min(ops[culprit].Return, int64(len(x.ev)-1))), events,
		"lock %q: no order of what happened explains this: %s; beside it: %s", l.name, what, strings.Join(around, "; "))
}

func (h *hold) story(x *index) string {
	s := h.who() + " had token " + strconv.FormatUint(h.token, 10) + " (" + kindOfHold(h.mode, h.permits, h.limit) + "), granted between " + x.at(h.gLo) + " and " + x.at(h.gHi)
	if h.eLo >= len(x.ev) {
		return s + ", held to the end"
	}
	return s + ", ended between " + x.at(h.eLo) + " and " + x.at(h.eHi)
}
