package checker

import (
	"sort"

	"github.com/mortise-lock/mortise/ops/history"
)

// hold is one grant. Bounds are indexes of the events that prove them: it was
// granted after gLo and before gHi, and ended after eLo and before eHi;
// len(events) stands for "never, as far as the history goes".
type hold struct {
	token              uint64
	acq                *acquire // nil: an orphan, known from describes
	session            string
	mode               history.Mode
	permits, limit     uint32
	gLo, gHi, eLo, eHi int
}

// sighting is a describe with the holds that it shows.
type sighting struct {
	describe
	shows []int // indexes of holds
}

// held narrows down when each hold of a lock began and ended, from what proves
// it: the grant's call, the holder's belief, releases, describes, the order of
// tokens, and that holds which exclude each other follow one another. Bounds
// that cross are a violation. Where they don't, a search looks for one order of
// everything (order.go).
func (x *index) held(l *lock) {
	holds, seen := x.holdsOf(l)
	for range 4 {
		if !tighten(holds) {
			break
		}
	}
	x.missing(holds, seen)
	for range 4 {
		if !tighten(holds) {
			break
		}
	}
	if x.crossed(l, holds) || x.overLimit(l, holds) {
		return
	}
	x.search(l, holds, seen)
}

// holdsOf lists a lock's holds by token, with the bounds that their own events
// prove, and its describes.
func (x *index) holdsOf(l *lock) ([]hold, []sighting) {
	end := len(x.ev)
	var holds []hold
	for _, a := range l.granted {
		h := hold{token: a.token, acq: a, session: a.session, mode: a.mode, permits: a.permits, limit: a.limit,
			gLo: a.invoke, gHi: a.ret, eLo: a.invoke, eHi: end}
		if b := a.belief; b != nil {
			h.eLo = max(a.invoke, x.honoured(l, b))
		}
		for _, e := range []int{a.released, a.cancelled} {
			if e != none {
				h.eHi = min(h.eHi, e)
			}
		}
		holds = append(holds, h)
	}
	sortBy(holds, func(h hold) uint64 { return h.token })
	rank := make(map[uint64]int, len(holds))
	for i := range holds {
		rank[holds[i].token] = i
	}
	orphans := x.orphansOf(l, rank)
	if len(orphans) > 0 {
		holds = append(holds, orphans...)
		sortBy(holds, func(h hold) uint64 { return h.token })
		for i := range holds {
			rank[holds[i].token] = i
		}
	}
	seen := make([]sighting, 0, len(l.describes))
	for _, d := range l.describes {
		s := sighting{describe: d}
		for _, sh := range x.ev[d.ret].Holders {
			i, ok := rank[sh.Token]
			if !ok {
				continue
			}
			s.shows = append(s.shows, i)
			holds[i].gHi = min(holds[i].gHi, d.ret)
			holds[i].eLo = max(holds[i].eLo, d.invoke)
		}
		seen = append(seen, s)
	}
	return holds, seen
}

// honoured is up to where the service has to keep a hold that a client
// believes in: as long as it does, paused or not, unless the observer can't
// know what a paused client's clock said.
func (x *index) honoured(l *lock, b *belief) int {
	end := x.beliefEnd(l, b)
	if x.opts.ForgivePaused {
		for _, p := range x.pauses[b.client] {
			if p.from < end && (p.to == none || p.to > b.begin) {
				return min(end, max(p.from, b.begin))
			}
		}
	}
	return end
}

// orphansOf lists the holds that only describes show. Each belongs to some
// acquire of its session, of which the first bounds it.
func (x *index) orphansOf(l *lock, rank map[uint64]int) []hold {
	var orphans []hold
	known := map[uint64]bool{}
	var asked map[string]int
	var limit uint32
	for _, d := range l.describes {
		for _, sh := range x.ev[d.ret].Holders {
			if _, ok := rank[sh.Token]; ok || known[sh.Token] {
				continue
			}
			known[sh.Token] = true
			if asked == nil {
				limit = l.limit()
				asked = map[string]int{"": 0}
				for i, a := range l.acquires {
					if i == 0 {
						asked[""] = a.invoke
					}
					if _, ok := asked[a.session]; !ok {
						asked[a.session] = a.invoke
					}
				}
			}
			h := hold{token: sh.Token, session: sh.Session, mode: sh.Mode, permits: sh.Permits, gLo: asked[sh.Session], gHi: d.ret, eHi: len(x.ev)}
			h.eLo, h.limit = h.gLo, limit
			orphans = append(orphans, h)
		}
	}
	return orphans
}

// limit is the one that all counted acquires name; 0 if they differ.
func (l *lock) limit() uint32 {
	var n uint32
	for _, a := range l.acquires {
		if a.mode == history.Counted {
			if n != 0 && a.limit != n {
				return 0
			}
			n = a.limit
		}
	}
	return n
}

// tighten carries bounds along the order of tokens and over conflicts, and
// reports whether one moved.
func tighten(holds []hold) bool {
	moved := false
	raise := func(p *int, to int) {
		if to > *p {
			*p, moved = to, true
		}
	}
	lower := func(p *int, to int) {
		if to < *p {
			*p, moved = to, true
		}
	}
	var ends [4]int // latest eLo of the earlier holds, by mode
	begin := 0
	for i := range holds {
		h := &holds[i]
		for m, e := range ends {
			if e > 0 && conflict(history.Mode(m), h.mode) {
				raise(&h.gLo, e)
			}
		}
		raise(&h.gLo, begin)
		raise(&h.eLo, h.gLo)
		begin = h.gLo
		ends[h.mode&3] = max(ends[h.mode&3], h.eLo)
	}
	const far = int(^uint(0) >> 1)
	first := [4]int{far, far, far, far} // earliest gHi of the later holds, by mode
	next := far
	for i := len(holds) - 1; i >= 0; i-- {
		h := &holds[i]
		for m, g := range first {
			if g < far && conflict(history.Mode(m), h.mode) {
				lower(&h.eHi, g)
			}
		}
		lower(&h.gHi, next)
		lower(&h.gHi, h.eHi)
		next = h.gHi
		first[h.mode&3] = min(first[h.mode&3], h.gHi)
	}
	return moved
}

// missing uses the describes that do not show a hold: one that was granted
// before the describe began was over before it ended.
func (x *index) missing(holds []hold, seen []sighting) {
	var live []int                   // granted for certain, not over for certain
	shown := make([]int, len(holds)) // by hold: the last describe that shows it, from 1
	next := 0
	for n, s := range seen {
		for _, i := range s.shows {
			shown[i] = n + 1
		}
		for next < len(holds) && holds[next].gHi < s.invoke {
			live = append(live, next)
			next++
		}
		k := 0
		for _, i := range live {
			if holds[i].eHi > s.invoke {
				live[k] = i
				k++
			}
		}
		live = live[:k]
		for _, i := range live {
			if shown[i] != n+1 {
				holds[i].eHi = min(holds[i].eHi, s.ret)
			}
		}
	}
}

// crossed reports bounds that leave no moment, at most three per lock.
func (x *index) crossed(l *lock, holds []hold) bool {
	end := len(x.ev)
	told := map[[2]int]bool{} // pairs of events: other holds may show the same
	for i := range holds {
		h := &holds[i]
		begun, over := h.gLo >= h.gHi, h.eLo >= h.eHi && h.eHi < end
		pair := [2]int{h.gLo, h.gHi}
		if over {
			pair = [2]int{h.eLo, h.eHi}
		}
		if !begun && !over || len(told) == 3 || told[pair] {
			continue
		}
		told[pair] = true
		if over {
			x.report(x.blame(h.eLo, h.eHi), "held", h.eHi, []int{h.gLo, h.gHi, h.eLo, h.eHi},
				"lock %q: %s was the holder with token %d (%s) at least until %s: %s; but it was over before that: %s; a hold lasts until its owner lets it go, and excludes others meanwhile",
				l.name, h.who(), h.token, kindOfHold(h.mode, h.permits, h.limit), x.at(h.eLo), x.tell(h.eLo), x.tell(h.eHi))
			continue
		}
		x.report(x.blame(h.gLo, h.gHi), "held", h.gHi, []int{h.gLo, h.gHi},
			"lock %q: token %d can't have been granted to %s before %s: %s; but it was by %s: %s; tokens rise with each grant, and a lock is granted when those before have let it go",
			l.name, h.token, h.who(), x.at(h.gLo), x.tell(h.gLo), x.at(h.gHi), x.tell(h.gHi))
	}
	return len(told) > 0
}

// blame names the promise that two crossing proofs break.
func (x *index) blame(lo, hi int) string {
	kind := func(i int) (history.Kind, history.Op) {
		if i < 0 || i >= len(x.ev) {
			return history.BeliefEnds, 0
		}
		return x.ev[i].Kind, x.ev[i].Op
	}
	lk, lop := kind(lo)
	_, hop := kind(hi)
	switch {
	case hop == history.Acquire && lop == history.Describe:
		return "P3"
	case hop == history.Acquire && lk != history.Invoke:
		return "P1"
	case hop == history.Acquire:
		return "P2"
	case hop == history.Release || hop == history.Cancel:
		return "P9"
	case lk == history.BeliefEnds || lk == history.ClientDied:
		return "P9"
	}
	return "P3"
}

func (h *hold) who() string {
	if h.acq != nil {
		return h.acq.who()
	}
	return owner(-1, h.session)
}

// overLimit adds up the permits that were in use for certain.
func (x *index) overLimit(l *lock, holds []hold) bool {
	type step struct {
		at    int
		delta int64
		hold  int
	}
	var steps []step
	for i := range holds {
		h := &holds[i]
		if h.mode == history.Counted && h.gHi < h.eLo {
			steps = append(steps, step{h.gHi, int64(h.permits), i}, step{h.eLo, -int64(h.permits), i})
		}
	}
	// At one event what ends goes first.
	sort.Slice(steps, func(i, j int) bool {
		a, b := steps[i], steps[j]
		if a.at != b.at {
			return a.at < b.at
		}
		return a.delta < b.delta
	})
	sum := int64(0)
	for _, s := range steps {
		sum += s.delta
		h := &holds[s.hold]
		if s.delta > 0 && h.limit > 0 && sum > int64(h.limit) {
			x.report("P1", "held", s.at, []int{h.gLo, s.at}, "lock %q: with token %d of %s %d permits are in use (%s); the limit is %d",
				l.name, h.token, h.who(), sum, x.tell(s.at), h.limit)
			return true
		}
	}
	return false
}
