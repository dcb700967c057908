package checker

import (
	"slices"

	"github.com/mortise-lock/mortise/ops/history"
)

// conflict: two holds of one lock exclude each other whatever their sizes. An
// unknown mode excludes nothing.
func conflict(a, b history.Mode) bool {
	if a == 0 || b == 0 {
		return false
	}
	return a == history.Exclusive || b == history.Exclusive || a != b
}

// beliefEnd is where a belief counts no longer: at its end, or where an
// operator took the hold away.
func (x *index) beliefEnd(l *lock, b *belief) int {
	end := b.end
	if end == none {
		end = len(x.ev)
	}
	for _, f := range l.forced {
		if f > b.begin {
			end = min(end, f)
			break
		}
	}
	if s := x.sessions[b.session]; s != nil && s.forced > b.begin {
		end = min(end, s.forced)
	}
	return end
}

// time of an event; past the end it is the end of time.
func (x *index) time(i int) history.Time {
	if i >= len(x.ev) {
		return 1<<63 - 1
	}
	return x.ev[i].At
}

// active is a belief that lasts while the sweep passes.
type active struct {
	*belief
	until history.Time
}

// beliefs looks for clients that act as holders at the same moment though the
// modes or the limit forbid it. It sweeps over the beliefs by begin and keeps
// those that last by mode, so that a reader never looks at other readers.
func (x *index) beliefs(l *lock) {
	var now [4][]active
	for _, b := range l.beliefs {
		begin, until := x.ev[b.begin].At, x.time(x.beliefEnd(l, b))
		if until <= begin {
			continue
		}
		alone := true
		for m := range now {
			if alone && conflict(history.Mode(m), b.mode) {
				now[m] = lasting(now[m], begin)
				alone = x.besides(l, b, until, now[m])
			}
		}
		if b.mode == history.Counted {
			now[b.mode] = lasting(now[b.mode], begin)
			x.permits(l, b, until, now[b.mode])
		}
		now[b.mode&3] = append(now[b.mode&3], active{b, until})
	}
}

// lasting drops what is over at a moment.
func lasting(list []active, at history.Time) []active {
	return slices.DeleteFunc(list, func(a active) bool { return a.until <= at })
}

// besides reports a belief that begins beside one that excludes it; false if
// there is one.
func (x *index) besides(l *lock, b *belief, until history.Time, now []active) bool {
	begin := x.ev[b.begin].At
	for _, a := range now {
		if x.allPaused(a.client, begin, min(a.until, until)) {
			continue
		}
		x.report("P1", "belief", b.begin, []int{a.begin, b.begin, a.end, b.end},
			"lock %q: from %v %s acts as holder with token %d (%s), but %s, which has acted as holder with token %d (%s) since %v, does so until %v; the later one had to wait",
			l.name, when(begin), b.who(), b.token, kindOfHold(b.mode, b.permits, b.limit), a.who(), a.token, kindOfHold(a.mode, a.permits, a.limit), x.at(a.begin), x.until(a.until))
		return false
	}
	return true
}

// permits reports a belief that takes more permits than are left.
func (x *index) permits(l *lock, b *belief, until history.Time, now []active) {
	begin := x.ev[b.begin].At
	sum, events := uint64(b.permits), []int{b.begin}
	for _, a := range now {
		if !x.allPaused(a.client, begin, min(a.until, until)) {
			sum += uint64(a.permits)
			events = append(events, a.begin)
		}
	}
	if sum > uint64(b.limit) {
		x.report("P1", "belief", b.begin, events, "lock %q: at %v %s joins with token %d and %d permits, which makes %d permits in use at once; the limit is %d",
			l.name, when(begin), b.who(), b.token, b.permits, sum, b.limit)
	}
}

func (x *index) until(t history.Time) string {
	if t == 1<<63-1 {
		return "the end of the run"
	}
	return when(t).String()
}

// allPaused: with ForgivePaused, a client stood still during the whole of a
// stretch of time.
func (x *index) allPaused(client int, from, to history.Time) bool {
	if !x.opts.ForgivePaused {
		return false
	}
	for _, p := range x.pauses[client] {
		end := history.Time(1<<63 - 1)
		if p.to != none {
			end = x.ev[p.to].At
		}
		if x.ev[p.from].At <= from && end >= to {
			return true
		}
		if start := x.ev[p.from].At; start <= from && end > from {
			from = end // covered so far
		}
	}
	return false
}
