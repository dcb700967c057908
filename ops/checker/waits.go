package checker

import (
	"cmp"
	"slices"

	"github.com/mortise-lock/mortise/ops/history"
)

// forever leaves room for bounds that are added to it.
const forever = history.Time(1) << 61

// stretch of time, both ends included.
type stretch struct{ from, to history.Time }

// stuck looks for waiters that a free lock is kept from: nothing is broken,
// nobody relies on a hold of the lock, and no client that ever asked for it dies,
// leaves, stands still or takes an acquire back, for as long as a hold without an
// owner may last at most; and still it is not granted.
func (x *index) stuck(l *lock) {
	if x.opts.FreeWithin <= 0 || len(x.ev) == 0 {
		return
	}
	var waits []*acquire
	bound := history.Time(0)
	for _, a := range l.acquires {
		if a.waiting != none && a.waitingSeq != 0 {
			waits = append(waits, a)
		}
		bound = max(bound, x.ttl(a.session))
	}
	bound += x.opts.FreeWithin
	if len(waits) == 0 {
		return
	}
	free := x.idle(l, bound)
	for _, a := range waits {
		from, to := x.ev[a.waiting].At, x.patience(a)
		// Idle stretches are longer than the bound, so there are few.
		for _, f := range free {
			since := max(f.from, from)
			if min(f.to, to) <= since+bound {
				continue
			}
			at := len(x.ev) - 1
			if a.ret != none {
				at = a.ret
			}
			x.report("serve", "stuck", at, []int{a.invoke, a.waiting, a.ret},
				"lock %q: %s was told at %s that it waits, and did so until %v at least; but since %v nothing is broken and nobody relies on a hold of the lock; it had to be granted by %v",
				l.name, a.who(), x.at(a.waiting), when(min(f.to, to)), when(since), when(since+bound))
			return
		}
	}
}

// patience is up to when an acquire is known to wait.
func (x *index) patience(a *acquire) history.Time {
	end := len(x.ev) - 1
	if a.ret != none {
		end = a.ret
	}
	if s := x.sessions[a.session]; s != nil {
		for _, e := range []int{s.closing, s.over, s.forced} {
			if e != none {
				end = min(end, e)
			}
		}
	}
	return x.ev[end].At
}

// idle lists the stretches longer than a bound in which a lock is free for all
// that can be known.
func (x *index) idle(l *lock, bound history.Time) []stretch {
	last := x.ev[len(x.ev)-1].At
	var busy []stretch
	point := func(e int) {
		if e != none {
			busy = append(busy, stretch{x.ev[e].At, x.ev[e].At})
		}
	}
	seen := map[string]bool{}
	clients := map[int]bool{}
	for _, a := range l.acquires {
		if !clients[a.client] {
			clients[a.client] = true
			for _, p := range x.pauses[a.client] {
				s := stretch{x.ev[p.from].At, forever}
				if p.to != none {
					s.to = x.ev[p.to].At
				}
				busy = append(busy, s)
			}
		}
		if s := x.sessions[a.session]; s != nil && !seen[a.session] {
			seen[a.session] = true
			point(s.closing)
			point(s.over)
			point(s.forced)
		}
		if a.ret == none {
			continue
		}
		switch a.outcome {
		case history.OK:
			busy = append(busy, stretch{x.ev[a.ret].At, x.reliedOn(a)})
		case history.OutcomeUnknown:
			end := forever
			if a.cancelled != none {
				end = x.ev[a.cancelled].At
			} else if s := x.sessions[a.session]; s != nil && s.over != none {
				end = x.ev[s.over].At
			}
			busy = append(busy, stretch{x.ev[a.invoke].At, end})
		case history.Cancelled, history.Lost:
			point(a.ret)
			point(a.cancelled)
		}
	}
	for _, f := range l.forced {
		point(f)
	}
	for i, q := range x.quiet {
		if q.since < 0 {
			s := stretch{x.ev[q.from].At, forever}
			if i+1 < len(x.quiet) {
				s.to = x.ev[x.quiet[i+1].from].At
			}
			busy = append(busy, s)
		}
	}
	slices.SortFunc(busy, func(a, b stretch) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
	})
	var free []stretch
	at := x.ev[0].At
	for _, b := range busy {
		if b.from > at+bound {
			free = append(free, stretch{at, b.from})
		}
		at = max(at, b.to)
	}
	if last > at+bound {
		free = append(free, stretch{at, last})
	}
	return free
}

// reliedOn is up to when somebody may rely on a hold. Without a library that
// gives back what ran out, that is until it is released.
func (x *index) reliedOn(a *acquire) history.Time {
	end := x.ev[a.ret].At
	if b := a.belief; b != nil {
		if b.end == none {
			return forever
		}
		end = max(end, x.ev[b.end].At)
	}
	if a.seq != 0 {
		return end
	}
	switch s := x.sessions[a.session]; {
	case a.released != none:
		return max(end, x.ev[a.released].At)
	case a.cancelled != none:
		return max(end, x.ev[a.cancelled].At)
	case s != nil && s.over != none:
		return max(end, x.ev[s.over].At)
	}
	return forever
}
