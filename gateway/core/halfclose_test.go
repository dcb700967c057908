package core

import (
	"testing"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
)

// A client may say everything, close its direction, and listen: it hears every
// answer, then a good end.
func TestHalfClosedStreamHearsEveryAnswer(t *testing.T) {
	w := newSim(1, 4, 3)
	w.boot()
	ended := func(id StreamID) bool { _, ok := w.ends[id]; return ok }

	a := w.open(1)
	sa := a.acquire("x", 0)
	a.send(a.renewOp())
	w.step(Input{Kind: StreamHalfClosed, Stream: a.id})
	if ended(a.id) {
		t.Fatal("it was ended before it heard anything")
	}
	w.settle()
	a.poll()
	if a.tokens[sa] == 0 {
		t.Error("the grant did not reach it")
	}
	renewed := false
	for _, e := range w.events[a.id] {
		renewed = renewed || e.GetRenewed() != nil
	}
	if !renewed {
		t.Error("the acknowledgement of its heartbeat did not reach it")
	}
	if f, ok := w.ends[a.id]; !ok || f != nil {
		t.Errorf("with everything answered it must end in good order: ended %v, %v", ok, f)
	}

	// A wait is answered by its grant, however late within 30 s.
	b, c := w.open(2), w.open(3)
	sb := b.acquire("y", 0)
	w.settle()
	sc := c.acquire("y", 60000)
	w.step(Input{Kind: StreamHalfClosed, Stream: c.id})
	w.settle()
	if ended(c.id) {
		t.Fatal("it was ended while its acquire waits")
	}
	b.poll()
	b.release(sb)
	w.settle()
	c.poll()
	if c.tokens[sc] == 0 || !ended(c.id) {
		t.Errorf("granted %v, ended %v; want both", c.tokens[sc] != 0, ended(c.id))
	}

	// A close is answered by Closed.
	d := w.open(4)
	d.acquire("z", 0)
	d.send(&lockv1.SessionOp{Op: &lockv1.SessionOp_Close{Close: &lockv1.CloseOp{}}})
	w.step(Input{Kind: StreamHalfClosed, Stream: d.id})
	w.settle()
	closed := false
	for _, e := range w.events[d.id] {
		closed = closed || e.GetClosed() != nil
	}
	if !closed || !ended(d.id) {
		t.Errorf("closed %v, ended %v; want both", closed, ended(d.id))
	}

	// A stream that never said anything ends at once; a resumed one hears its
	// inventory first.
	w.step(Input{Kind: StreamOpened, Stream: 5})
	w.step(Input{Kind: StreamHalfClosed, Stream: 5})
	if !ended(5) {
		t.Error("a stream that said nothing and never will is still open")
	}
	w.step(Input{Kind: StreamOpened, Stream: 6})
	w.step(Input{Kind: StreamFrame, Stream: 6, Frame: &lockv1.SessionRequest{Ops: []*lockv1.SessionOp{
		{Op: &lockv1.SessionOp_Resume{Resume: &lockv1.ResumeOp{SessionId: a.str, Attachment: 2}}},
		{Op: &lockv1.SessionOp_Renew{Renew: &lockv1.RenewOp{Number: 2}}}}}})
	w.step(Input{Kind: StreamHalfClosed, Stream: 6})
	w.settle()
	inventory := false
	for _, e := range w.events[6] {
		inventory = inventory || len(e.GetInventory().GetHolds()) == 1
	}
	if !inventory {
		t.Errorf("no inventory reached the resumed stream: %v", w.events[6])
	}
	if !ended(6) {
		t.Error("the resumed stream did not end")
	}
	// Nothing is asked for ever: silence ends a wait's stream after 30 s.
	e := w.open(7)
	e.acquire("y", 60000)
	w.step(Input{Kind: StreamHalfClosed, Stream: 7})
	w.settleFor(40 * time.Second)
	if !ended(7) {
		t.Error("a silent stream is still open after 40 s")
	}
}
