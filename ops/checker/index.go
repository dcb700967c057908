package checker

import (
	"fmt"
	"slices"

	"github.com/mortise-lock/mortise/ops/history"
)

// none is the index of an event that is not in the history.
const none = -1

// acquire is one acquire of a client with all that belongs to it. Positions
// are indexes of events.
type acquire struct {
	call       uint64
	invoke     int
	ret        int // none: no answer
	outcome    history.Outcome
	client     int
	session    string
	mode       history.Mode
	permits    uint32
	limit      uint32
	token      uint64 // if OK
	seq        uint64
	waiting    int // the last Waiting
	waitingSeq uint64
	belief     *belief
	released   int    // the Return of a release that freed it
	cancelled  int    // the Return of a confirmed Cancel
	floor      uint64 // the greatest token known at invoke
	floorBy    int    // the event that told it
}

// belief is a stretch in which a client acts as a holder.
type belief struct {
	begin, end int // end none: it lasts to the end of the history
	client     int
	session    string
	mode       history.Mode
	permits    uint32
	limit      uint32
	token      uint64
}

type describe struct{ invoke, ret int }

// lock is what concerns one name.
type lock struct {
	name      string
	acquires  []*acquire // by invoke
	beliefs   []*belief  // by begin
	describes []describe // those answered, by invoke
	granted   map[uint64]*acquire
	forced    []int
	known     uint64 // greatest token seen so far, while indexing
	knownBy   int
}

type session struct {
	client int
	ttl    history.Time
	// Events; none if there was none.
	closing, over, forced int // Invoke of CloseSession; ClientDied or SessionOver; Forced
}

type pause struct{ from, to int } // to none: for good

type index struct {
	ev       []history.Event
	opts     Options
	found    []Violation
	locks    map[string]*lock
	order    []*lock // by first mention
	sessions map[string]*session
	clients  map[int][]*session
	pauses   map[int][]pause
	acquires map[uint64]*acquire
	calls    map[uint64]int // Invoke of every operation
	quiet    []quiet
}

// quiet: from an event on, since when nothing is broken (-1: something is).
type quiet struct {
	from  int
	since history.Time
}

func newIndex(events []history.Event, opts Options) *index {
	x := &index{ev: events, opts: opts, locks: map[string]*lock{}, sessions: map[string]*session{}, clients: map[int][]*session{}, pauses: map[int][]pause{},
		acquires: map[uint64]*acquire{}, calls: map[uint64]int{}, quiet: []quiet{{0, 0}}}
	believed := map[uint64]*belief{}
	living := map[int][]*belief{} // by client, of which some may be over
	returned := map[uint64]bool{}
	var cancels []int
	var releases []int
	for i := range events {
		e := &events[i]
		if i > 0 && e.At < events[i-1].At {
			x.malformed(i, "is earlier than the event before it (%v)", when(events[i-1].At))
		}
		switch e.Kind {
		case history.Invoke:
			if _, ok := x.calls[e.Call]; ok {
				x.malformed(i, "uses a call again")
				continue
			}
			x.calls[e.Call] = i
			switch e.Op {
			case history.CloseSession:
				if s := x.session(e.Session); s.closing == none {
					s.closing = i
				}
			case history.Acquire:
				l := x.lock(e.Name)
				a := &acquire{call: e.Call, invoke: i, ret: none, client: e.Client, session: e.Session, mode: e.Mode, permits: e.Permits,
					limit: e.Limit, waiting: none, released: none, cancelled: none, floor: l.known, floorBy: l.knownBy}
				l.acquires = append(l.acquires, a)
				x.acquires[e.Call] = a
			}
		case history.Return:
			inv, ok := x.calls[e.Call]
			if !ok || events[inv].Op != e.Op {
				x.malformed(i, "returns from an operation that was not begun")
				continue
			}
			if returned[e.Call] {
				x.malformed(i, "returns a second time")
				continue
			}
			returned[e.Call] = true
			switch e.Op {
			case history.Acquire:
				x.answered(x.acquires[e.Call], i)
			case history.Describe:
				if e.Outcome == history.OK {
					l := x.lock(events[inv].Name)
					l.describes = append(l.describes, describe{inv, i})
					for _, h := range e.Holders {
						if h.Token > l.known {
							l.known, l.knownBy = h.Token, i
						}
					}
					opts.Stats.Describes++
				}
			case history.Cancel:
				if e.Outcome == history.OK {
					cancels = append(cancels, i)
				}
			case history.Release:
				if e.Outcome == history.OK {
					releases = append(releases, i)
				}
			}
		case history.Waiting:
			if a := x.acquires[e.Call]; a != nil && a.ret == none {
				a.waiting, a.waitingSeq = i, e.Seq
			}
		case history.BeliefBegins:
			b := &belief{begin: i, end: none, client: e.Client, session: e.Session, mode: e.Mode, permits: e.Permits, limit: e.Limit, token: e.Token}
			l := x.lock(e.Name)
			l.beliefs = append(l.beliefs, b)
			if believed[e.Call] != nil {
				x.malformed(i, "begins a belief a second time")
			}
			believed[e.Call] = b
			if a := x.acquires[e.Call]; a != nil {
				a.belief = b
			}
			living[e.Client] = append(living[e.Client], b)
			opts.Stats.Beliefs++
		case history.BeliefEnds:
			switch b := believed[e.Call]; {
			case b == nil:
				x.malformed(i, "ends a belief that did not begin")
			case b.end == none:
				b.end = i
			}
		case history.Paused:
			x.pauses[e.Client] = append(x.pauses[e.Client], pause{i, none})
		case history.Resumed:
			if p := x.pauses[e.Client]; len(p) > 0 && p[len(p)-1].to == none {
				p[len(p)-1].to = i
			}
		case history.SessionOpened:
			s := x.session(e.Session)
			s.client, s.ttl = e.Client, e.TTL
			x.clients[e.Client] = append(x.clients[e.Client], s)
		case history.SessionOver:
			if s := x.session(e.Session); s.over == none {
				s.over = i
			}
		case history.ClientDied:
			x.died(e.Client, i, living[e.Client])
			delete(living, e.Client)
		case history.Forced:
			if e.Name != "" {
				l := x.lock(e.Name)
				l.forced = append(l.forced, i)
			}
			if e.Session != "" {
				if s := x.session(e.Session); s.forced == none {
					s.forced = i
				}
			}
		case history.Fault:
			if x.quiet[len(x.quiet)-1].since >= 0 {
				x.quiet = append(x.quiet, quiet{i, -1})
			}
		case history.Healed:
			x.quiet = append(x.quiet, quiet{i, e.At})
		}
	}
	for _, i := range cancels {
		if a := x.acquires[events[x.calls[events[i].Call]].Of]; a != nil {
			a.cancelled = i
		}
	}
	for _, i := range releases {
		x.release(i)
	}
	for _, l := range x.order {
		slices.SortFunc(l.describes, func(a, b describe) int { return a.invoke - b.invoke })
	}
	opts.Stats.Locks = len(x.order)
	return x
}

func (x *index) lock(name string) *lock {
	l := x.locks[name]
	if l == nil {
		l = &lock{name: name, granted: map[uint64]*acquire{}, knownBy: none}
		x.locks[name] = l
		x.order = append(x.order, l)
	}
	return l
}

func (x *index) session(name string) *session {
	s := x.sessions[name]
	if s == nil {
		s = &session{client: -1, closing: none, over: none, forced: none}
		x.sessions[name] = s
	}
	return s
}

// answered notes the answer of an acquire, and that its token is granted.
func (x *index) answered(a *acquire, i int) {
	e := &x.ev[i]
	a.ret, a.outcome, a.seq = i, e.Outcome, e.Seq
	if e.Outcome != history.OK {
		return
	}
	a.token = e.Token
	l := x.lock(x.ev[a.invoke].Name)
	x.opts.Stats.Grants++
	if b := l.granted[a.token]; b != nil {
		x.report("P2", "token", i, []int{b.ret, i}, "lock %q: token %d was granted twice, to %s at %s and to %s at %s; each grant needs a token of its own",
			l.name, a.token, b.who(), x.at(b.ret), a.who(), x.at(i))
	} else {
		l.granted[a.token] = a
	}
	if a.token > l.known {
		l.known, l.knownBy = a.token, i
	}
}

// died ends a client's sessions, and all that it believes.
func (x *index) died(client, i int, living []*belief) {
	for _, s := range x.clients[client] {
		if s.over == none {
			s.over = i
		}
	}
	delete(x.clients, client)
	for _, b := range living {
		if b.end == none {
			b.end = i
		}
	}
}

// release notes that a hold is over, unless its session was ending: the client's
// library answers what it released by itself then.
func (x *index) release(i int) {
	inv := x.calls[x.ev[i].Call]
	e := &x.ev[inv]
	l := x.locks[e.Name]
	if l == nil {
		return
	}
	a := l.granted[e.Token]
	if a == nil || a.released != none {
		return
	}
	if s := x.sessions[a.session]; s != nil {
		if s.closing != none && s.closing < i || s.over != none && s.over > i && x.ev[s.over].At == x.ev[i].At {
			return
		}
	}
	a.released = i
}

func (x *index) report(promise, check string, at int, events []int, format string, args ...any) {
	events = slices.DeleteFunc(events, func(i int) bool { return i < 0 || i >= len(x.ev) })
	slices.Sort(events)
	v := Violation{Promise: promise, Check: check, Text: fmt.Sprintf(format, args...), Events: slices.Compact(events)}
	if at >= 0 && at < len(x.ev) {
		v.At = x.ev[at].At
	}
	x.found = append(x.found, v)
}

func (x *index) malformed(i int, format string, args ...any) {
	e := &x.ev[i]
	x.report("history", "history", i, []int{i}, "event %d (%v %v of client %d, call %d, at %v) %s", i, e.Kind, e.Op, e.Client, e.Call, when(e.At), fmt.Sprintf(format, args...))
}

// calm returns since when nothing was broken at an event; false if something is.
func (x *index) calm(i int) (history.Time, bool) {
	k, ok := slices.BinarySearchFunc(x.quiet, i, func(q quiet, i int) int { return q.from - i })
	if !ok {
		k--
	}
	since := x.quiet[k].since
	return since, since >= 0
}
