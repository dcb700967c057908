package sim

import (
	"fmt"

	"github.com/mortise-lock/mortise/ops/history"
	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"github.com/mortise-lock/mortise/sdk/core"
)

// lockName is a name of the workload, with how it is used.
type lockName struct {
	name  string
	kind  lockv1.Mode // shared: by readers and writers
	limit uint32
}

func (w *World) makeNames() {
	for i := range w.cfg.Names {
		n := lockName{name: fmt.Sprintf("job/%d", i)}
		switch w.rng.IntN(4) {
		case 0, 1:
			n.kind = lockv1.Mode_MODE_EXCLUSIVE
		case 2:
			n.kind = lockv1.Mode_MODE_SHARED
		case 3:
			n.kind, n.limit = lockv1.Mode_MODE_COUNTED, 1+w.rng.Uint32N(4)
		}
		w.names = append(w.names, n)
	}
}

// someName prefers the first names, so that some are contended.
func (w *World) someName() lockName {
	return w.names[min(w.rng.IntN(len(w.names)), w.rng.IntN(len(w.names)))]
}

func (w *World) someRequest(l *Load) core.Request {
	n := w.someName()
	r := core.Request{Name: n.name, Mode: n.kind}
	switch n.kind {
	case lockv1.Mode_MODE_SHARED:
		if w.rng.IntN(3) == 0 {
			r.Mode = lockv1.Mode_MODE_EXCLUSIVE
		}
	case lockv1.Mode_MODE_COUNTED:
		r.Limit, r.Permits = n.limit, 1+w.rng.Uint32N(min(n.limit, 2))
	}
	switch w.rng.IntN(6) {
	case 0, 1: // try
	case 2, 3, 4:
		r.Wait = ms + w.exp(3*second)
	case 5:
		r.Wait = 48 * hour
	}
	if w.chance(l.LockDelay) {
		r.LockDelay = ms + w.upTo(3*second)
	}
	if w.chance(l.MaxHold) {
		r.MaxHold = ms + w.upTo(3*second)
	}
	return r
}

// work lets a client do things at random until the world stops it.
func (c *Client) work(l *Load) {
	c.p.later(c.w.exp(l.OpEvery), func() {
		if c.w.stopApps || c.quiet {
			return
		}
		c.doSomething(l)
		c.work(l)
	})
}

func (w *World) ttl(l *Load) Time { return l.TTLs[w.rng.IntN(len(l.TTLs))] }

func (c *Client) doSomething(l *Load) {
	w := c.w
	if c.Session == nil {
		c.Open(w.ttl(l))
		return
	}
	switch x := w.rng.Float64(); {
	case x < l.Unary:
		c.unaryWork(l)
	case x < l.Unary+l.Describe:
		c.Describe(w.someName().name)
	case x < l.Unary+l.Describe+l.Reopen:
		s := c.Session
		s.Close()
		c.p.later(s.core.TTL()/2+5*second, s.abandon)
	default:
		s := c.Session
		if len(s.list) >= 12 {
			g := s.list[w.rng.IntN(len(s.list))]
			g.Cancel()
			g.Release()
			return
		}
		g := s.Acquire(w.someRequest(l))
		g.granted = func(g *Grant) { c.use(g, l) }
		if w.chance(l.Cancel) {
			c.p.later(w.exp(second), g.Cancel)
		}
	}
}

// use is what a holder does.
func (c *Client) use(g *Grant, l *Load) {
	w := c.w
	hold := w.exp(l.HoldFor)
	if w.chance(l.LongHold) {
		hold += 2 * g.s.core.TTL()
	}
	if g.Req.Mode == lockv1.Mode_MODE_EXCLUSIVE {
		for range w.rng.IntN(3) {
			c.p.later(w.upTo(hold), func() {
				if g.belief && c.p.local() < g.until() {
					c.write(g.Req.Name, g.Token)
				}
			})
		}
	}
	c.p.later(hold, g.Release)
}

// write sends a write to the protected store, which takes it if no greater
// token was seen. It may arrive late.
func (c *Client) write(name string, token uint64) {
	w := c.w
	d := w.cfg.Latency + w.upTo(w.cfg.Jitter)
	if w.rng.IntN(20) == 0 {
		d += w.upTo(5 * second)
	}
	w.after(d, func() {
		ok := token >= w.store[name]
		if ok {
			w.store[name] = token
		} else {
			w.stats.WritesRefused++
		}
		w.stats.Writes++
		w.record(history.Event{Kind: history.Write, Client: c.Index, Node: -1, Name: name, Token: token, Accepted: ok})
	})
}

// Describe asks who holds a name.
func (c *Client) Describe(name string) {
	w := c.w
	id := w.newCall()
	w.stats.Ops++
	w.stats.Describes++
	w.record(history.Event{Kind: history.Invoke, Client: c.Index, Node: -1, Op: history.Describe, Call: id, Name: name})
	c.unary(w.gws[w.rng.IntN(len(w.gws))], &lockv1.DescribeRequest{Name: name}, 3*second, func(resp any, f *lockv1.Failure) {
		r, ok := resp.(*lockv1.DescribeResponse)
		if !ok || f != nil {
			return
		}
		e := history.Event{Kind: history.Return, Client: c.Index, Node: -1, Op: history.Describe, Call: id, Name: name, Outcome: history.OK, Waiters: int(r.Waiters)}
		for _, h := range r.Holders {
			e.Holders = append(e.Holders, history.Holder{Session: h.Client, Client: h.Client, Token: h.Token, Mode: modeOf(h.Mode), Permits: h.Permits})
		}
		w.record(e)
	})
}

func (c *Client) unaryWork(l *Load) {
	w := c.w
	u := c.un
	switch {
	case u == nil:
		c.openUnary(w.ttl(l))
	case u.id == "" || len(u.holds) >= 4:
	case w.chance(l.Reopen):
		u.close()
	default:
		r := w.someRequest(l)
		r.Wait = min(r.Wait, 3*second)
		h := u.acquire(r, w.rng.IntN(4) > 0)
		h.granted = func(h *unaryHold) {
			hold := w.exp(l.HoldFor)
			if h.req.Mode == lockv1.Mode_MODE_EXCLUSIVE {
				c.p.later(w.upTo(hold), func() {
					if h.belief && c.p.local() < h.until {
						c.write(h.req.Name, h.token)
					}
				})
			}
			c.p.later(hold, h.release)
		}
	}
}
