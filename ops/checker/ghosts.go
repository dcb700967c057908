package checker

import (
	"fmt"

	"github.com/mortise-lock/mortise/ops/history"
)

// ghosts judges the holders that describes show: those that no acquire
// returned with (orphans), those that none has returned with yet, those on which
// nobody relies any more, and those of the dead.
func (x *index) ghosts(l *lock) {
	var askers map[string][]*acquire // by session; all under ""
	first := map[uint64]int{}        // the describe that showed a token first
	told := map[uint64]bool{}
	for _, d := range l.describes {
		for _, h := range x.ev[d.ret].Holders {
			if told[h.Token] {
				continue
			}
			a := l.granted[h.Token]
			session := h.Session
			if a != nil {
				session = a.session
			}
			if x.outlived(l, d, h, session) {
				told[h.Token] = true
				continue
			}
			if a != nil && a.ret < d.invoke {
				told[h.Token] = x.forsaken(l, d, a)
				continue
			}
			seen, again := first[h.Token]
			if !again {
				seen = d.ret
				first[h.Token] = seen
			}
			if a != nil {
				told[h.Token] = x.undelivered(l, d, h, a, seen)
				continue
			}
			if !again {
				x.opts.Stats.Orphans++
			}
			if askers == nil {
				askers = map[string][]*acquire{}
				for _, a := range l.acquires {
					askers[""] = append(askers[""], a)
					if a.session != "" {
						askers[a.session] = append(askers[a.session], a)
					}
				}
			}
			told[h.Token] = x.ghost(l, d, h, askers[session], seen)
		}
	}
}

// outlived: a session is over for longer than its holds may be.
func (x *index) outlived(l *lock, d describe, h history.Holder, name string) bool {
	s := x.sessions[name]
	if s == nil || name == "" || s.over == none || x.opts.FreeWithin <= 0 {
		return false
	}
	since, ok := x.calm(d.invoke)
	from := max(since, x.ev[s.over].At)
	if !ok || x.ev[d.invoke].At <= from+s.ttl+x.opts.FreeWithin {
		return false
	}
	x.report("P4", "death", d.ret, []int{s.over, d.invoke, d.ret}, "lock %q: session %s of client %d was over at %s (%v), its TTL is %v, and nothing is broken since %v; but a describe from %s to %s still shows it as holder with token %d; its holds had to be free by %v",
		l.name, name, s.client, x.at(s.over), x.ev[s.over].Kind, when(s.ttl), when(since), x.at(d.invoke), x.at(d.ret), h.Token, when(from+s.ttl+x.opts.FreeWithin))
	return true
}

// forsaken: the client's library has to give back what its caller can't rely on
// any more, because it was released or because its lease ran out meanwhile.
func (x *index) forsaken(l *lock, d describe, a *acquire) bool {
	since, ok := x.calm(d.invoke)
	if !ok || x.opts.FreeWithin <= 0 || a.seq == 0 {
		return false
	}
	end := a.ret // over before it began
	if a.belief != nil {
		end = a.belief.end
	}
	if end == none || end >= d.invoke {
		return false
	}
	bound := max(since, x.ev[end].At, x.awake(a.client, d.invoke)) + x.ttl(a.session) + x.opts.FreeWithin
	if x.ev[d.invoke].At <= bound {
		return false
	}
	x.report("P6", "ghost", d.ret, []int{a.ret, end, d.invoke, d.ret}, "lock %q: a describe from %s to %s still shows the hold of %s with token %d, on which nobody relies since %s (%v); it had to be given back by %v",
		l.name, x.at(d.invoke), x.at(d.ret), a.who(), a.token, x.at(end), x.ev[end].Kind, when(bound))
	return true
}

// ghost judges an orphan by the acquires that it may belong to.
func (x *index) ghost(l *lock, d describe, h history.Holder, acqs []*acquire, first int) bool {
	who := owner(-1, h.Session)
	var last *acquire // the one whose end is the latest
	var ends history.Time
	var open *acquire
	for _, a := range acqs {
		if a.invoke > d.ret {
			break
		}
		end := a.ret
		if a.cancelled != none {
			end = a.cancelled
		}
		switch {
		case end == none:
			return false // as good as unknown
		case end > d.invoke:
			open = a
		case a.outcome == history.OutcomeUnknown && a.cancelled == none:
			return false // the caller may hold it for as long as its session lives
		case last == nil || x.ev[end].At > ends:
			last, ends = a, x.ev[end].At
		}
	}
	if last == nil && open == nil {
		x.report("P6", "ghost", d.ret, []int{d.invoke, d.ret}, "lock %q: a describe from %s to %s shows %s as holder with token %d, but nobody like that has asked for the lock by then",
			l.name, x.at(d.invoke), x.at(d.ret), who, h.Token)
		return true
	}
	if open != nil {
		return x.undelivered(l, d, h, open, first)
	}
	since, ok := x.calm(d.invoke)
	if !ok || x.opts.FreeWithin <= 0 {
		return false
	}
	bound := max(since, ends) + x.ttl(last.session) + x.opts.FreeWithin
	if x.ev[d.invoke].At <= bound {
		return false
	}
	heard := fmt.Sprintf("was told %q at %s", last.outcome, x.at(last.ret))
	if last.cancelled != none {
		heard = "was told at " + x.at(last.cancelled) + " that it is cancelled"
	}
	x.report("P6", "ghost", d.ret, []int{last.invoke, last.ret, d.invoke, d.ret}, "lock %q: a describe from %s to %s shows %s as holder with token %d, which no caller was told; the last that could have asked for it, %s, %s; whatever was held for it had to be gone by %v",
		l.name, x.at(d.invoke), x.at(d.ret), who, h.Token, last.who(), heard, when(bound))
	return true
}

// undelivered: a hold shows for longer than its acquire, which is open all the
// time, may go without an answer.
func (x *index) undelivered(l *lock, d describe, h history.Holder, a *acquire, first int) bool {
	since, ok := x.calm(d.invoke)
	if !ok || x.opts.FreeWithin <= 0 || a.invoke > first {
		return false
	}
	bound := max(since, x.ev[first].At, x.awake(a.client, d.invoke)) + x.ttl(a.session) + x.opts.FreeWithin
	if x.ev[d.invoke].At <= bound {
		return false
	}
	x.report("P6", "ghost", d.ret, []int{a.invoke, first, d.invoke, d.ret}, "lock %q: %s asked at %s and was answered only at %s, but describes show its hold with token %d since %s, and at %s still; a grant had to be delivered or taken back by %v",
		l.name, a.who(), x.at(a.invoke), x.at(a.ret), h.Token, x.at(first), x.at(d.ret), when(bound))
	return true
}

func (x *index) ttl(session string) history.Time {
	if s := x.sessions[session]; s != nil {
		return s.ttl
	}
	return 0
}

// awake returns since when a client has been running at an event; the end of
// time if it stands still or is gone.
func (x *index) awake(client, i int) history.Time {
	var t history.Time
	for _, p := range x.pauses[client] {
		if p.from > i {
			break
		}
		if p.to == none || p.to > i {
			return 1 << 61
		}
		t = x.ev[p.to].At
	}
	return t
}
