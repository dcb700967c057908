package sim

import (
	"slices"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
)

// connKind is what a stream carries.
type connKind uint8

const (
	exchangeConn connKind = iota // gateway to node
	sessionConn                  // client to gateway
	connKinds
)

// side is one end of a stream.
type side interface {
	// connected: the other end took it. Dialler only.
	connected(c *conn)
	received(c *conn, body any)
	// ended: by the other end, or by a failure; not after a close of our own.
	ended(c *conn, f *lockv1.Failure)
}

// refusal is why a stream was not taken.
type refusal struct{ f *lockv1.Failure }

type (
	syn struct{}
	ack struct{}
	// fin ends a stream.
	fin struct{ f *lockv1.Failure }
)

// conn is a stream between two processes, like one over TCP: in order, never
// losing a frame without breaking.
type conn struct {
	w        *World
	kind     connKind
	a, b     *proc // a dialled
	ia, ib   uint64
	sa, sb   side
	aOpen    bool
	bOpen    bool
	up, down pipe
}

var resetFailure = &lockv1.Failure{Code: 14, Message: "connection reset"}

// dial begins a stream.
func (w *World) dial(kind connKind, a, b *proc, s side) *conn {
	c := &conn{w: w, kind: kind, a: a, b: b, ia: a.inc, sa: s, aOpen: true}
	c.up = pipe{w: w, from: a, to: b, sink: c.atB, patience: 20 * second}
	c.down = pipe{w: w, from: b, to: a, sink: c.atA, patience: 20 * second}
	c.up.broken, c.down.broken = c.timeOut, c.timeOut
	a.conns = append(a.conns, c)
	c.up.send(syn{})
	return c
}

// timeOut: the kernel of one end gave up.
func (c *conn) timeOut() {
	c.up.purge()
	c.down.purge()
	if c.aOpen {
		c.closeA()
		c.a.whenAwake(false, func() { c.sa.ended(c, resetFailure) })
	}
	if c.bOpen {
		c.closeB()
		c.b.whenAwake(false, func() { c.sb.ended(c, resetFailure) })
	}
}

func (c *conn) closeA() {
	c.aOpen = false
	if i := slices.Index(c.a.conns, c); i >= 0 {
		c.a.conns = slices.Delete(c.a.conns, i, i+1)
	}
}

func (c *conn) closeB() {
	c.bOpen = false
	if i := slices.Index(c.b.conns, c); i >= 0 {
		c.b.conns = slices.Delete(c.b.conns, i, i+1)
	}
}

// atB handles what arrives at the end that was dialled.
func (c *conn) atB(body any) {
	if _, ok := body.(syn); ok {
		if !c.b.up || c.b.accept[c.kind] == nil {
			c.down.send(fin{f: resetFailure})
			return
		}
		c.ib, c.bOpen = c.b.inc, true
		c.b.conns = append(c.b.conns, c)
		c.b.whenAwake(false, func() {
			s, no := c.b.accept[c.kind](c)
			if no != nil {
				c.closeB()
				c.down.send(fin{f: no.f})
				return
			}
			c.sb = s
			c.down.send(ack{})
		})
		return
	}
	if !c.bOpen || c.b.inc != c.ib {
		return
	}
	if !c.b.paused {
		c.handleB(body)
		return
	}
	c.b.whenAwake(false, func() { c.handleB(body) })
}

func (c *conn) handleB(body any) {
	if !c.bOpen || c.sb == nil {
		return
	}
	if f, ok := body.(fin); ok {
		c.closeB()
		c.sb.ended(c, f.f)
		return
	}
	c.sb.received(c, body)
}

func (c *conn) atA(body any) {
	if !c.aOpen || c.a.inc != c.ia {
		return
	}
	if !c.a.paused {
		c.handleA(body)
		return
	}
	c.a.whenAwake(false, func() { c.handleA(body) })
}

func (c *conn) handleA(body any) {
	if !c.aOpen {
		return
	}
	switch f := body.(type) {
	case ack:
		c.sa.connected(c)
	case fin:
		c.closeA()
		c.sa.ended(c, f.f)
	default:
		c.sa.received(c, body)
	}
}

// send sends a frame from an end; into a closed one it goes nowhere.
func (c *conn) send(from side, body any) {
	switch {
	case from == c.sa && c.aOpen:
		c.up.send(body)
	case from == c.sb && c.bOpen:
		c.down.send(body)
	}
}

// close ends the stream from one end, after what was sent.
func (c *conn) close(from side, f *lockv1.Failure) {
	switch {
	case from == c.sa && c.aOpen:
		c.closeA()
		c.up.send(fin{f: f})
	case from == c.sb && c.bOpen:
		c.closeB()
		c.down.send(fin{f: f})
	}
}

// reset: the process at one end is gone.
func (c *conn) reset(p *proc) {
	if c.a == p && c.aOpen && c.ia != p.inc {
		c.closeA()
		c.up.send(fin{f: resetFailure})
	}
	if c.b == p && c.bOpen && c.ib != p.inc {
		c.closeB()
		c.down.send(fin{f: resetFailure})
	}
}

// snap breaks a stream at both ends, for no reason.
func (c *conn) snap() {
	c.w.count(FaultStreamBreak)
	c.timeOut()
}
