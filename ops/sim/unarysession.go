package sim

import (
	"fmt"
	"slices"

	"github.com/mortise-lock/mortise/ops/history"
	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"github.com/mortise-lock/mortise/sdk/core"
	"google.golang.org/grpc/codes"
)

// unarySession is a session of a client that uses unary calls only, as a
// program without the SDK does: it keeps its own account of leases.
type unarySession struct {
	c     *Client
	w     *World
	Name  string
	id    string // session string; "" until opened
	ttl   Time
	inc   uint64
	holds []*unaryHold
	over  bool
	gw    int
	// cancels under way; orphans are acquires without an answer whose request id
	// only a gateway knew, so that nobody can cancel them if it died.
	cancels, orphans int
}

// unaryHold is a unary acquire and what it was granted.
type unaryHold struct {
	u    *unarySession
	req  *lockv1.AcquireRequest
	call uint64
	// cancelCall is that of the cancel, if there was one.
	cancelCall uint64
	wait       Time
	tries      int
	token      uint64
	until      Time // on the client's clock
	gotAt      Time // on the client's clock
	belief     bool
	over       bool // given back or given up: later answers are the past
	granted    func(*unaryHold)
}

func (u *unarySession) live() bool { return !u.over && u.c.p.inc == u.inc && !u.c.dead }

// gateway is the one to call; after a failure another.
func (u *unarySession) gateway() *gateway { return u.w.gws[u.gw%len(u.w.gws)] }

// openUnary begins a session by unary calls.
func (c *Client) openUnary(ttl Time) *unarySession {
	w := c.w
	c.sessions++
	u := &unarySession{c: c, w: w, Name: fmt.Sprintf("u%d.%d", c.Index, c.sessions), ttl: ttl, inc: c.p.inc, gw: w.rng.IntN(len(w.gws))}
	c.un = u
	w.record(history.Event{Kind: history.SessionOpened, Client: c.Index, Node: -1, Session: u.Name, TTL: history.Time(ttl)})
	u.open()
	return u
}

func (u *unarySession) open() {
	ms := uint64(u.ttl / ms)
	u.c.unary(u.gateway(), &lockv1.OpenSessionRequest{Client: u.Name, TtlMs: &ms}, 2*second, func(resp any, f *lockv1.Failure) {
		if !u.live() {
			return
		}
		if r, ok := resp.(*lockv1.OpenSessionResponse); ok && f == nil {
			u.id = r.SessionId
			u.c.p.later(u.ttl/3, u.keepAlive)
			return
		}
		u.gw++
		u.c.p.later(200_000_000, u.open)
	})
}

// margin is what a careful caller takes off a lease: both clocks may be 1% off.
func (u *unarySession) margin() Time { return u.ttl*21/1000 + 20*ms }

func (u *unarySession) keepAlive() {
	if !u.live() {
		return
	}
	sent := u.c.p.local()
	u.w.stats.KeepAlives++
	u.c.unary(u.gateway(), &lockv1.KeepAliveRequest{SessionId: u.id}, u.ttl/3, func(resp any, f *lockv1.Failure) {
		r, _ := resp.(*lockv1.KeepAliveResponse)
		if u.w.tracing() {
			u.w.note(u.c.p, fmt.Sprintf("keepalive of %s sent %v ago: %v %v", u.Name, u.c.p.local()-sent, r, f))
		}
		if r == nil || f != nil {
			u.gw++
			return
		}
		for _, l := range r.Lost {
			for _, h := range slices.Clone(u.holds) {
				if h.token == l.Token {
					h.endBelief()
					u.drop(h)
				}
			}
		}
		if !r.Renewed {
			return
		}
		for _, h := range u.holds {
			if h.token != 0 && h.gotAt < sent {
				h.until = max(h.until, sent+Time(r.LeaseForMs)*ms-u.margin())
			}
		}
	})
	u.c.p.later(u.ttl/3, u.keepAlive)
}

func (u *unarySession) drop(h *unaryHold) {
	if i := slices.Index(u.holds, h); i >= 0 {
		u.holds = slices.Delete(u.holds, i, i+1)
	}
}

// acquire asks; unanswered calls are repeated under the same request id.
func (u *unarySession) acquire(req core.Request, ownID bool) *unaryHold {
	w := u.w
	r := &lockv1.AcquireRequest{SessionId: u.id, Name: req.Name, Mode: req.Mode}
	if ownID {
		r.RequestId = w.newRequestID()
	}
	if req.Mode == lockv1.Mode_MODE_COUNTED {
		r.Permits, r.Limit = &req.Permits, &req.Limit
	}
	if req.Wait > 0 {
		ms := uint64(req.Wait / ms)
		r.WaitMs = &ms
	}
	h := &unaryHold{u: u, req: r, call: w.newCall(), wait: req.Wait}
	u.holds = append(u.holds, h)
	w.stats.Ops++
	w.stats.Unary++
	w.record(history.Event{Kind: history.Invoke, Client: u.c.Index, Node: -1, Op: history.Acquire, Call: h.call, Session: u.Name, Name: r.Name,
		Mode: modeOf(req.Mode), Permits: req.Permits, Limit: req.Limit, WaitFor: history.Time(req.Wait)})
	h.ask()
	return h
}

func (h *unaryHold) ask() {
	u := h.u
	sent := u.c.p.local()
	h.tries++
	r := &lockv1.AcquireRequest{SessionId: h.req.SessionId, Name: h.req.Name, Mode: h.req.Mode, Permits: h.req.Permits, Limit: h.req.Limit,
		WaitMs: h.req.WaitMs, RequestId: h.req.RequestId}
	u.c.unary(u.gateway(), r, h.wait+2*second+u.w.upTo(4*second), func(resp any, f *lockv1.Failure) { h.answered(sent, resp, f) })
}

func (h *unaryHold) answered(sent Time, resp any, f *lockv1.Failure) {
	u := h.u
	if !u.live() || h.over {
		return
	}
	if r, ok := resp.(*lockv1.AcquireResponse); ok && f == nil {
		if !r.Granted {
			h.finish(history.Busy)
			u.drop(h)
			return
		}
		h.token, h.gotAt = r.Token, u.c.p.local()
		h.until = sent + Time(r.LeaseForMs)*ms - u.margin()
		h.finish(history.OK)
		u.w.stats.Grants++
		if u.w.tracing() {
			u.w.note(u.c.p, fmt.Sprintf("call %d: lease of %d ms from %v ago", h.call, r.LeaseForMs, u.c.p.local()-sent))
		}
		if u.c.p.local() < h.until {
			h.belief = true
			u.w.record(history.Event{Kind: history.BeliefBegins, Client: u.c.Index, Node: -1, Call: h.call, Session: u.Name, Name: h.req.Name,
				Mode: modeOf(h.req.Mode), Permits: h.req.GetPermits(), Limit: h.req.GetLimit(), Token: h.token})
			u.w.q.push(u.c.p.at(h.until), unaryCheck{h}, u.inc)
		}
		h.granted(h)
		return
	}
	switch reason := f.GetDetail().GetReason(); {
	case reason == "SESSION_ENDED":
		h.finish(history.Lost)
		u.drop(h)
		u.end()
	case codes.Code(f.Code) == codes.InvalidArgument || reason == "HOLD_OVER" || reason == "CANCELLED" || codes.Code(f.Code) == codes.ResourceExhausted:
		// Refused; but an earlier try may have been granted and lost since.
		o := history.Refused
		if h.tries > 1 || reason == "HOLD_OVER" || reason == "CANCELLED" {
			o = history.OutcomeUnknown
		}
		h.finish(o)
		u.drop(h)
		if o == history.OutcomeUnknown && h.req.RequestId != "" {
			h.cancel(0)
		} else if o == history.OutcomeUnknown {
			u.orphans++
		}
	case h.req.RequestId != "" && h.tries < 3 && u.w.rng.IntN(4) > 0:
		u.gw++
		u.c.p.later(u.w.upTo(300*ms), func() {
			if u.live() && !h.over {
				h.ask()
			}
		})
	default:
		u.gw++
		h.finish(history.OutcomeUnknown)
		u.drop(h)
		if h.req.RequestId != "" {
			h.cancel(0)
		} else {
			u.orphans++
		}
	}
}

func (h *unaryHold) finish(o history.Outcome) {
	u := h.u
	u.w.record(history.Event{Kind: history.Return, Client: u.c.Index, Node: -1, Op: history.Acquire, Call: h.call, Session: u.Name, Name: h.req.Name,
		Mode: modeOf(h.req.Mode), Permits: h.req.GetPermits(), Limit: h.req.GetLimit(), Token: h.token, Outcome: o})
}

// cancel makes sure that nothing is held for an acquire without an answer.
func (h *unaryHold) cancel(tries int) {
	u := h.u
	if !u.live() {
		return
	}
	e := history.Event{Kind: history.Invoke, Client: u.c.Index, Node: -1, Op: history.Cancel, Of: h.call, Session: u.Name, Name: h.req.Name}
	if tries == 0 {
		h.cancelCall = u.w.newCall()
		e.Call = h.cancelCall
		u.w.record(e)
		u.cancels++
	}
	u.c.unary(u.gateway(), &lockv1.CancelRequest{SessionId: u.id, Name: h.req.Name, RequestId: h.req.RequestId}, 3*second,
		func(resp any, f *lockv1.Failure) {
			if f == nil && !u.c.dead {
				e.Kind, e.Call, e.Outcome = history.Return, h.cancelCall, history.OK
				u.w.record(e)
				u.cancels--
			}
			if !u.live() || f == nil || tries > 50 || f.GetDetail().GetReason() == "SESSION_ENDED" {
				return
			}
			u.gw++
			u.c.p.later(u.w.upTo(500*ms), func() { h.cancel(tries + 1) })
		})
}

func (h *unaryHold) endBelief() {
	if !h.belief {
		return
	}
	h.belief = false
	u := h.u
	u.w.record(history.Event{Kind: history.BeliefEnds, Client: u.c.Index, Node: -1, Call: h.call, Session: u.Name, Name: h.req.Name, Token: h.token,
		Mode: modeOf(h.req.Mode)})
}

type unaryCheck struct{ *unaryHold }

func (b unaryCheck) fire(inc uint64) {
	h := b.unaryHold
	p := h.u.c.p
	if !h.belief || p.inc != inc {
		return
	}
	if p.local() < h.until {
		p.w.q.push(p.at(h.until), b, inc)
		return
	}
	h.endBelief()
}

// release gives it back, repeating until there is an answer.
func (h *unaryHold) release() {
	u := h.u
	if h.over {
		return
	}
	h.over = true
	if h.belief && u.c.p.local() >= h.until {
		h.endBelief()
	}
	h.endBelief()
	u.drop(h)
	call := u.w.newCall()
	u.w.stats.Ops++
	u.w.record(history.Event{Kind: history.Invoke, Client: u.c.Index, Node: -1, Op: history.Release, Call: call, Session: u.Name, Name: h.req.Name, Token: h.token})
	h.giveBack(call, 0)
}

func (h *unaryHold) giveBack(call uint64, tries int) {
	u := h.u
	if !u.live() {
		return
	}
	u.c.unary(u.gateway(), &lockv1.ReleaseRequest{SessionId: u.id, Name: h.req.Name, Token: h.token, RequestId: h.req.RequestId}, 3*second,
		func(resp any, f *lockv1.Failure) {
			if !u.live() {
				return
			}
			ret := history.Event{Kind: history.Return, Client: u.c.Index, Node: -1, Op: history.Release, Call: call, Session: u.Name, Name: h.req.Name, Token: h.token}
			switch reason := f.GetDetail().GetReason(); {
			case f == nil:
				ret.Outcome = history.OK
				u.w.record(ret)
			case reason == "SESSION_ENDED" || reason == "TOKEN_NOT_CURRENT" || reason == "HOLD_OVER":
				ret.Outcome = history.Lost
				u.w.record(ret)
			case tries < 50:
				u.gw++
				u.c.p.later(u.w.upTo(500*ms), func() { h.giveBack(call, tries+1) })
			}
		})
}

// end: the service says that the session is over.
func (u *unarySession) end() {
	if u.over {
		return
	}
	u.over = true
	for _, h := range u.holds {
		h.endBelief()
	}
	u.holds = nil
	u.w.record(history.Event{Kind: history.SessionOver, Client: u.c.Index, Node: -1, Session: u.Name})
	if u.c.un == u {
		u.c.un = nil
	}
}

func (u *unarySession) killed() {
	for _, h := range u.holds {
		h.endBelief()
	}
	u.over = true
}

// close ends the session.
func (u *unarySession) close() {
	if u.over {
		return
	}
	id := u.id
	call := u.w.newCall()
	u.w.record(history.Event{Kind: history.Invoke, Client: u.c.Index, Node: -1, Op: history.CloseSession, Call: call, Session: u.Name})
	u.end()
	if id != "" {
		u.closing(id, call, 0)
	}
}

func (u *unarySession) closing(id string, call uint64, tries int) {
	u.c.unary(u.gateway(), &lockv1.CloseSessionRequest{SessionId: id}, 3*second, func(resp any, f *lockv1.Failure) {
		if u.c.dead {
			return
		}
		if f == nil {
			u.w.record(history.Event{Kind: history.Return, Client: u.c.Index, Node: -1, Op: history.CloseSession, Call: call, Outcome: history.OK, Session: u.Name})
			return
		}
		if tries < 20 {
			u.gw++
			u.c.p.later(u.w.upTo(500*ms), func() { u.closing(id, call, tries+1) })
		}
	})
}

// settle gives back what the session has. One that may hold something which it
// can't know of is closed.
func (u *unarySession) settle() {
	for _, h := range slices.Clone(u.holds) {
		switch {
		case h.token != 0:
			h.release()
		case h.req.RequestId == "":
			u.orphans++
		default:
			h.over = true
			h.finish(history.Cancelled)
			u.drop(h)
			h.cancel(0)
		}
	}
	if u.orphans > 0 {
		u.close()
	}
}
