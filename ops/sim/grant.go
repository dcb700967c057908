package sim

import (
	"fmt"
	"slices"

	"github.com/mortise-lock/mortise/ops/history"
	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"github.com/mortise-lock/mortise/sdk/core"
)

func modeOf(m lockv1.Mode) history.Mode { return history.Mode(m) }

// Acquire asks for a lock; the Grant tells how it goes on.
func (s *Session) Acquire(req core.Request) *Grant {
	if req.Mode == 0 {
		req.Mode = lockv1.Mode_MODE_EXCLUSIVE
	}
	w := s.w
	g := &Grant{s: s, Req: req, call: w.newCall()}
	e := history.Event{Kind: history.Invoke, Client: s.c.Index, Node: -1, Op: history.Acquire, Call: g.call, Session: s.Name, Name: req.Name,
		Mode: modeOf(req.Mode), Permits: req.Permits, Limit: req.Limit, WaitFor: history.Time(req.Wait)}
	w.record(e)
	w.stats.Ops++
	s.list = append(s.list, g)
	s.do(func(now core.Time) {
		// The core's answer may come within the call.
		g.id = s.core.Acquire(now, req, &s.out)
		s.grants[g.id] = g
	})
	return g
}

// result passes news on to a grant.
func (s *Session) result(r *core.Result) {
	g := s.grants[r.ID]
	if g == nil {
		return
	}
	switch r.Kind {
	case core.ResultGranted:
		if g.State != Asked {
			s.w.violate("sdk", fmt.Sprintf("client %d: acquire %d of %s was granted in state %d", s.c.Index, g.call, g.Req.Name, g.State))
			return
		}
		g.seq = r.Seq
		g.State, g.Token, g.own, g.capAt, g.cover = Held, r.Token, r.Deadline, r.CapAt, s.coverOf(r.Registration)
		g.finish(history.OK)
		s.w.stats.Grants++
		g.beginBelief()
		if g.granted != nil {
			s.c.p.later(s.w.upTo(ms), func() {
				if g.State == Held {
					g.granted(g)
				}
			})
		}
	case core.ResultFailed:
		o := history.Refused
		switch {
		case r.Reason == lockv1.EndReason_END_REASON_BUSY || r.Reason == lockv1.EndReason_END_REASON_WAIT_OVER:
			o = history.Busy
		case r.Reason == lockv1.EndReason_END_REASON_REGISTRATION_ENDED:
			o = history.Lost
		}
		s.w.stats.Failed[o]++
		g.finish(o)
		g.over()
	case core.ResultQueued:
		g.Queued = true
		s.w.stats.Queued++
		s.w.record(history.Event{Kind: history.Waiting, Client: s.c.Index, Node: -1, Call: g.call, Session: s.Name, Name: g.Req.Name, Seq: r.Seq})
	case core.ResultLost:
		g.Lost = r.Lost
		s.w.stats.LostBy[r.Lost]++
		g.endBelief()
		if g.relCall != 0 {
			g.released(history.Lost)
		}
		g.over()
	case core.ResultReleased:
		o := history.OK
		switch {
		case r.Failure != nil:
			o = history.Lost
		case s.closeCall != 0 || s.out.Closed:
			o = history.OutcomeUnknown // only the end of the session answers it
		}
		g.released(o)
		g.over()
	}
}

func (g *Grant) finish(o history.Outcome) {
	g.Outcome = o
	g.s.w.record(history.Event{Kind: history.Return, Client: g.s.c.Index, Node: -1, Op: history.Acquire, Call: g.call, Session: g.s.Name, Name: g.Req.Name,
		Mode: modeOf(g.Req.Mode), Permits: g.Req.Permits, Limit: g.Req.Limit, Token: g.Token, Outcome: o, Seq: g.seq})
}

func (g *Grant) released(o history.Outcome) {
	g.s.w.record(history.Event{Kind: history.Return, Client: g.s.c.Index, Node: -1, Op: history.Release, Call: g.relCall, Session: g.s.Name, Name: g.Req.Name,
		Token: g.Token, Outcome: o})
	g.relCall = 0
}

func (g *Grant) over() {
	if g.State == Over {
		return
	}
	g.State = Over
	s := g.s
	delete(s.grants, g.id)
	if i := slices.Index(s.list, g); i >= 0 {
		s.list = slices.Delete(s.list, i, i+1)
	}
	if g.ended != nil {
		g.ended(g)
	}
}

// Protected: the application may act as a holder at this moment.
func (g *Grant) Protected() bool { return g.belief }

// until is the present deadline, on the client's clock.
func (g *Grant) until() Time {
	d := max(g.own, g.cover.deadline)
	if g.capAt != 0 {
		d = min(d, g.capAt)
	}
	return d
}

func (g *Grant) beginBelief() {
	s := g.s
	if s.c.p.local() >= g.until() {
		return // over before it began
	}
	g.belief = true
	s.w.record(history.Event{Kind: history.BeliefBegins, Client: s.c.Index, Node: -1, Call: g.call, Session: s.Name, Name: g.Req.Name,
		Mode: modeOf(g.Req.Mode), Permits: g.Req.Permits, Limit: g.Req.Limit, Token: g.Token})
	s.w.q.push(s.c.p.at(g.until()), beliefCheck{g}, s.inc)
}

func (g *Grant) endBelief() {
	if !g.belief {
		return
	}
	g.belief = false
	s := g.s
	s.w.record(history.Event{Kind: history.BeliefEnds, Client: s.c.Index, Node: -1, Call: g.call, Session: s.Name, Name: g.Req.Name, Token: g.Token,
		Mode: modeOf(g.Req.Mode)})
}

// beliefCheck looks whether the clock has passed the deadline, also while the
// process stands still: from then on whoever asks is told that it is over.
type beliefCheck struct{ *Grant }

func (b beliefCheck) fire(inc uint64) {
	g := b.Grant
	p := g.s.c.p
	if !g.belief || p.inc != inc {
		return
	}
	if p.local() < g.until() {
		p.w.q.push(p.at(g.until()), b, inc)
		return
	}
	g.endBelief()
	// The application may look before the timer comes.
	if !p.paused && !g.s.over && p.w.rng.IntN(2) == 0 {
		why := core.LostDeadline
		if g.capAt != 0 && p.local() >= g.capAt {
			why = core.LostMaxHold
		}
		g.s.do(func(now core.Time) { g.s.core.ConcludeLost(now, g.id, why, &g.s.out) })
	}
}

// Release gives the lock back.
func (g *Grant) Release() {
	s := g.s
	if g.State != Held || s.over {
		return
	}
	if g.belief && s.c.p.local() >= g.until() {
		g.endBelief() // looking tells
	}
	if !g.belief {
		// Lost by the clock; what the service still has is freed.
		s.do(func(now core.Time) {
			s.core.ConcludeLost(now, g.id, core.LostDeadline, &s.out)
			s.core.Release(now, g.id, &s.out)
		})
		return
	}
	g.endBelief()
	g.State, g.relCall = Releasing, s.w.newCall()
	s.w.stats.Ops++
	s.w.record(history.Event{Kind: history.Invoke, Client: s.c.Index, Node: -1, Op: history.Release, Call: g.relCall, Session: s.Name, Name: g.Req.Name, Token: g.Token})
	s.do(func(now core.Time) { s.core.Release(now, g.id, &s.out) })
}

// Cancel gives an acquire up that has no answer yet.
func (g *Grant) Cancel() {
	s := g.s
	if g.State != Asked || s.over {
		return
	}
	s.w.stats.Ops++
	s.w.stats.Cancels++
	g.finish(history.Cancelled)
	s.w.record(history.Event{Kind: history.Invoke, Client: s.c.Index, Node: -1, Op: history.Cancel, Call: s.w.newCall(), Of: g.call, Session: s.Name, Name: g.Req.Name})
	id := g.id
	g.over()
	s.do(func(now core.Time) { s.core.Cancel(now, id, &s.out) })
}
