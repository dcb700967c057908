package core

import (
	"testing"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
)

// A gateway that stops takes back the unary acquires that only it could
// cancel: nothing stays queued for callers that were told "unavailable".
func TestShutdownGivesUnaryAcquiresUp(t *testing.T) {
	w := newSim(5, 2, 3)
	w.boot()
	s1, s2 := w.openSession(t, 1), w.openSession(t, 2)
	g := w.call(t, 3, &lockv1.AcquireRequest{SessionId: s1, Name: "x", RequestId: hexID(3)}).Response.(*lockv1.AcquireResponse)
	if !g.Granted {
		t.Fatal("a free lock was not granted")
	}
	wait := uint64(20_000)
	w.step(Input{Kind: CallStarted, Call: 4, OwnID: true, Request: &lockv1.AcquireRequest{SessionId: s2, Name: "x", RequestId: hexID(4), WaitMs: &wait}})
	w.settleFor(300 * time.Millisecond)
	if len(w.answers[4]) > 0 {
		t.Fatalf("it must wait: %v", w.answers[4])
	}
	w.step(Input{Kind: Shutdown})
	if len(w.answers[4]) != 1 || reason(w.answers[4][0].Failure) != ReasonShuttingDown {
		t.Errorf("the waiting caller was told %v", w.answers[4])
	}
	if a := w.call(t, 5, &lockv1.AcquireRequest{SessionId: s2, Name: "y", RequestId: hexID(5)}); reason(a.Failure) != ReasonShuttingDown {
		t.Errorf("a new acquire was told %v", a)
	}
	w.settleFor(300 * time.Millisecond)
	if a := w.call(t, 6, &lockv1.ReleaseRequest{Name: "x", Token: g.Token, SessionId: s1}); a.Failure != nil {
		t.Errorf("a release while stopping: %v", a.Failure)
	}
	w.settleFor(300 * time.Millisecond)
	w.checkEmpty(t)
}
