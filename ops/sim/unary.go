package sim

import (
	"encoding/hex"

	gwcore "github.com/mortise-lock/mortise/gateway/core"
	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
)

// unary is one call of a client to a gateway, on a connection of its own.
type unary struct {
	c        *Client
	g        *gateway
	req      any
	timeout  Time // on the caller's clock; 0: none
	done     func(resp any, f *lockv1.Failure)
	over     bool
	up, down pipe
	inc      uint64 // of the client
	gwInc    uint64 // of the gateway that took it
	id       gwcore.CallID
	answered any
	own      bool
}

type callBody struct{}
type leaveBody struct{}
type answerBody struct {
	resp any
	f    *lockv1.Failure
}

// deadlineExceeded is what a caller concludes by its own clock.
var deadlineExceeded = &lockv1.Failure{Code: 4, Message: "deadline exceeded"}

// unary makes a call. done is called once; a failure without an answer of the
// service means that the outcome is unknown.
func (c *Client) unary(g *gateway, req any, timeout Time, done func(resp any, f *lockv1.Failure)) {
	u := &unary{c: c, g: g, req: req, timeout: timeout, done: done, inc: c.p.inc}
	w := c.w
	u.up = pipe{w: w, from: c.p, to: g.p, sink: u.arrive, patience: 20 * second}
	u.down = pipe{w: w, from: g.p, to: c.p, sink: u.answerArrives, patience: 20 * second}
	u.up.broken = func() { u.up.purge(); u.finish(nil, resetFailure) }
	u.down.broken = func() { u.down.purge(); u.finish(nil, resetFailure) }
	if w.cfg.Encode {
		u.req = cloneAny(req)
	}
	u.up.send(callBody{})
	if timeout > 0 {
		c.p.later(c.p.at(c.p.local()+timeout)-w.now, func() {
			if !u.over {
				u.up.send(leaveBody{})
				u.finish(nil, deadlineExceeded)
			}
		})
	}
}

func (u *unary) arrive(body any) {
	switch body.(type) {
	case callBody:
		if !u.g.p.up {
			u.back(u.g, nil, resetFailure)
			return
		}
		u.gwInc = u.g.p.inc
		u.g.p.whenAwake(false, func() { u.g.callArrives(u) })
	case leaveBody:
		if u.g.p.up && u.g.p.inc == u.gwInc {
			u.g.p.whenAwake(false, func() { u.g.callLeft(u) })
		}
	}
}

func (u *unary) back(_ *gateway, resp any, f *lockv1.Failure) { u.down.send(answerBody{resp, f}) }

func (u *unary) answerArrives(body any) {
	a := body.(answerBody)
	u.finish(a.resp, a.f)
}

func (u *unary) finish(resp any, f *lockv1.Failure) {
	if u.over {
		return
	}
	if u.c.p.inc != u.inc {
		u.over = true
		return
	}
	u.c.p.whenAwake(false, func() {
		if !u.over {
			u.over = true
			u.done(resp, f)
		}
	})
}

func (w *World) newRequestID() string {
	var b [16]byte
	for i := range b {
		b[i] = byte(w.rng.Uint32())
	}
	return hex.EncodeToString(b[:])
}
