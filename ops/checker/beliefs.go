package checker

import "github.com/mortise-lock/mortise/ops/history"

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
// modes or the limit forbid it. It sweeps over the beliefs by begin; what is
// over at a begin leaves the sweep.
func (x *index) beliefs(l *lock) {
	var now []active
	for _, b := range l.beliefs {
		begin, until := x.ev[b.begin].At, x.time(x.beliefEnd(l, b))
		k := 0
		for _, a := range now {
			if a.until > begin {
				now[k] = a
				k++
			}
		}
		now = now[:k]
		if until <= begin {
			continue
		}
		permits := uint64(b.permits)
		for _, a := range now {
			if b.mode == history.Counted && a.mode == history.Counted {
				if !x.allPaused(a.client, begin, min(a.until, until)) {
					permits += uint64(a.permits)
				}
				continue
			}
			if conflict(a.mode, b.mode) && !x.allPaused(a.client, begin, min(a.until, until)) {
				x.report("P1", "belief", b.begin, []int{a.begin, b.begin, a.end, b.end},
					"lock %q: from %v %s acts as holder with token %d (%s), but %s, which has acted as holder with token %d (%s) since %v, does so until %v; the later one had to wait",
					l.name, when(begin), b.who(), b.token, kindOfHold(b.mode, b.permits, b.limit), a.who(), a.token, kindOfHold(a.mode, a.permits, a.limit), x.at(a.begin), x.until(a.until))
				break
			}
		}
		if b.mode == history.Counted && permits > uint64(b.limit) {
			ev := []int{b.begin}
			for _, a := range now {
				ev = append(ev, a.begin)
			}
			x.report("P1", "belief", b.begin, ev, "lock %q: at %v %s joins with token %d and %d permits, which makes %d permits in use at once; the limit is %d",
				l.name, when(begin), b.who(), b.token, b.permits, permits, b.limit)
		}
		now = append(now, active{b, until})
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
