package checker

import "github.com/mortise-lock/mortise/ops/history"

// tokens compares each grant's token with those that were known when it was
// asked for, and each describe with the grants whose tokens it shows.
func (x *index) tokens(l *lock) {
	for _, a := range l.acquires {
		if a.ret == none || a.outcome != history.OK {
			continue
		}
		switch {
		case a.token == 0:
			x.report("P2", "token", a.ret, []int{a.ret}, "lock %q: at %s %s was granted without a token", l.name, x.at(a.ret), a.who())
		case a.token <= a.floor && a.floorBy != none:
			x.report("P2", "token", a.ret, []int{a.floorBy, a.invoke, a.ret}, "lock %q: %s asked at %s and was granted token %d at %s, but token %d was in use before it asked (%s); its token had to be greater",
				l.name, a.who(), x.at(a.invoke), a.token, x.at(a.ret), a.floor, x.tell(a.floorBy))
		}
	}
	for _, d := range l.describes {
		for _, h := range x.ev[d.ret].Holders {
			a := l.granted[h.Token]
			if a == nil {
				continue
			}
			if h.Session != "" && a.session != "" && h.Session != a.session {
				x.report("P2", "token", d.ret, []int{a.ret, d.invoke, d.ret}, "lock %q: token %d was granted to %s, but the describe that ended at %s shows it as held by session %s",
					l.name, h.Token, a.who(), x.at(d.ret), h.Session)
			}
			if h.Mode != 0 && a.mode != 0 && h.Mode != a.mode || h.Mode == history.Counted && h.Permits != a.permits {
				x.report("P3", "token", d.ret, []int{a.ret, d.invoke, d.ret}, "lock %q: token %d was granted to %s as %s, but the describe that ended at %s shows it as %s",
					l.name, h.Token, a.who(), kindOfHold(a.mode, a.permits, a.limit), x.at(d.ret), kindOfHold(h.Mode, h.Permits, a.limit))
			}
		}
	}
}

// fifo: an acquire that was begun after another was told that it waits gets a
// greater token, if both are granted; whatever the modes, since a waiter that
// does not fit holds up those behind it. Waits whose place was given up (another
// Seq at the grant) or may have been (no Seq) prove nothing.
func (x *index) fifo(l *lock) {
	var waits []*acquire
	for _, a := range l.acquires {
		if a.waiting != none && a.waitingSeq != 0 && a.ret != none && a.outcome == history.OK && a.seq == a.waitingSeq {
			waits = append(waits, a)
		}
	}
	sortBy(waits, func(a *acquire) int { return a.waiting })
	var ahead *acquire // the greatest token of those known to wait
	for _, b := range l.acquires {
		for len(waits) > 0 && waits[0].waiting < b.invoke {
			if ahead == nil || waits[0].token > ahead.token {
				ahead = waits[0]
			}
			waits = waits[1:]
		}
		if ahead != nil && b.ret != none && b.outcome == history.OK && b.token < ahead.token {
			x.report("P5", "fifo", b.ret, []int{ahead.invoke, ahead.waiting, b.invoke, b.ret, ahead.ret},
				"lock %q: %s was told at %s that it waits, and %s asked only at %s; but it got token %d at %s, before the one who waited got %d; the order of the queue is that of asking",
				l.name, ahead.who(), x.at(ahead.waiting), b.who(), x.at(b.invoke), b.token, x.at(b.ret), ahead.token)
		}
	}
}
