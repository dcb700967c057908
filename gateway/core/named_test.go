package core

import (
	"testing"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"google.golang.org/grpc/codes"
)

// TestRegisterRefusedForMany: several unary calls wait for one registration,
// which is refused for good; each is answered, and none in the others' way.
func TestRegisterRefusedForMany(t *testing.T) {
	w := newSim(11, 1, 3)
	w.boot()
	s := w.openSession(t, 1)
	w.refuse = func(req *nodev1.Request) *nodev1.Response {
		if req.GetRegister() == nil {
			return nil
		}
		return refuse(codes.ResourceExhausted, "DISK_FULL")
	}
	const calls = 5
	for i := range CallID(calls) {
		w.step(Input{Kind: CallStarted, Call: 10 + i, OwnID: i%2 == 0,
			Request: &lockv1.AcquireRequest{SessionId: s, Name: "x", RequestId: hexID(uint64(i))}})
	}
	w.settleFor(time.Minute)
	for i := range CallID(calls) {
		if a := w.answers[10+i]; len(a) != 1 || reason(a[0].Failure) != "DISK_FULL" {
			t.Errorf("call %d: %v", 10+i, a)
		}
	}
	w.settleFor(3 * time.Minute)
	w.checkNoLeaks(t)
}

// TestNamedAcquireIsNotCancelled: the caller named the request id and may have
// asked again elsewhere, so that no end of this call sends a cancel. One whose
// id the gateway chose is cancelled.
func TestNamedAcquireIsNotCancelled(t *testing.T) {
	for _, own := range []bool{false, true} {
		for _, end := range []string{"time over while it waits", "time over without an answer", "caller gone"} {
			w := newSim(12, 1, 3)
			w.boot()
			s1, s2 := w.openSession(t, 1), w.openSession(t, 2)
			if g := w.call(t, 3, &lockv1.AcquireRequest{SessionId: s1, Name: "x", RequestId: hexID(3)}).Response.(*lockv1.AcquireResponse); !g.Granted {
				t.Fatal("not granted")
			}
			cancels, silent := 0, false
			w.refuse = func(req *nodev1.Request) *nodev1.Response {
				if req.GetCancel() != nil {
					cancels++
				}
				if silent {
					return refuse(codes.Unavailable, "OUTCOME_UNKNOWN")
				}
				return nil
			}
			wait := uint64(60_000)
			in := Input{Kind: CallStarted, Call: 4, OwnID: own, Deadline: w.now + 5*time.Second,
				Request: &lockv1.AcquireRequest{SessionId: s2, Name: "x", RequestId: hexID(4), WaitMs: &wait}}
			w.step(in)
			w.settleFor(time.Second)
			switch end {
			case "time over without an answer":
				silent = true
				w.lead(w.shards[0], w.shards[0].leader%3+1)
				w.settleFor(10 * time.Second)
				silent = false
			case "caller gone":
				w.step(Input{Kind: CallGone, Call: 4})
			}
			w.settleFor(10 * time.Second)
			if (cancels > 0) != own {
				t.Errorf("%s, id chosen by the gateway %v: %d cancels were sent", end, own, cancels)
			}
			w.settleFor(3 * time.Minute)
			w.checkNoLeaks(t)
		}
	}
}

// TestRefusalOfARepetition: the first sending of an acquire was applied and its
// answer lost; the second is refused without a look at what was. A caller who
// knows it by a seq or a request id hears that the outcome is not known. Under
// an id of the gateway's it is cancelled, and the refusal is the answer.
func TestRefusalOfARepetition(t *testing.T) {
	for _, why := range []string{"DISK_FULL", "SHARD_OVERLOADED"} {
		for _, by := range []string{"stream", "unary", "unary, named"} {
			w := newSim(13, 1, 3)
			w.boot()
			asked := 0
			w.refuse = func(req *nodev1.Request) *nodev1.Response {
				if req.GetAcquire() == nil {
					return nil
				}
				if asked++; asked == 1 {
					w.shards[0].apply(req)
					return refuse(codes.Unavailable, "OUTCOME_UNKNOWN")
				}
				return refuse(codes.ResourceExhausted, why)
			}
			var got *lockv1.Failure
			if by == "stream" {
				a := w.open(1)
				a.acquire("x", 60_000)
				w.settle()
				for _, e := range a.poll() {
					if e.GetEnded() != nil {
						got = e.GetEnded().Failure
					}
				}
			} else {
				s := w.openSession(t, 1)
				w.step(Input{Kind: CallStarted, Call: 2, OwnID: by == "unary", Request: &lockv1.AcquireRequest{SessionId: s, Name: "x", RequestId: hexID(2)}})
				w.settle()
				if len(w.answers[2]) == 1 {
					got = w.answers[2][0].Failure
				}
			}
			if asked != 2 || reason(got) != why {
				t.Errorf("%s by %s: asked %d times, answered %v", why, by, asked, got)
			}
			if by != "unary" {
				if codes.Code(got.GetCode()) != codes.Unavailable {
					t.Errorf("%s by %s: %v does not say that the outcome is unknown", why, by, got)
				}
				continue
			}
			w.checkEmpty(t)
		}
	}
}

// TestGivesBackUnderThePresentRegistration: the registration that this gateway
// remembers has ended, another gateway registered the session anew and acquired
// there. A release or a cancel by this one must reach that hold.
func TestGivesBackUnderThePresentRegistration(t *testing.T) {
	for _, by := range []string{"release", "cancel", "undelivered"} {
		w := newSim(14, 1, 3)
		w.boot()
		s := w.openSession(t, 1)
		id, _ := plainSessions{}.Verify(s)
		g := w.call(t, 2, &lockv1.AcquireRequest{SessionId: s, Name: "x", RequestId: hexID(2)}).Response.(*lockv1.AcquireResponse)
		if !g.Granted {
			t.Fatal("not granted")
		}
		sh := w.shards[0]
		for _, r := range sh.regs {
			if r.live {
				sh.end(r)
			}
		}
		sh.next++
		sh.regs[sh.next] = &mreg{num: sh.next, sess: id.Session, out: map[string]*outcome{}, live: true}
		rid := make([]byte, 16)
		rid[15] = 4 // hexID(3)
		resp := sh.apply(&nodev1.Request{Op: &nodev1.Request_Acquire{Acquire: &nodev1.Acquire{Acting: &nodev1.Acting{Registration: sh.next},
			Id: &nodev1.AcquireId{RequestId: rid}, Name: "y", Mode: lockv1.Mode_MODE_EXCLUSIVE}}})
		token := resp.GetAcquire().GetGranted().GetToken()
		if token == 0 {
			t.Fatalf("%v", resp)
		}
		switch by {
		case "release":
			if a := w.call(t, 3, &lockv1.ReleaseRequest{SessionId: s, Name: "y", Token: token, RequestId: hexID(3)}); a.Failure != nil {
				t.Errorf("release: %v", a.Failure)
			}
		case "cancel":
			if a := w.call(t, 3, &lockv1.CancelRequest{SessionId: s, Name: "y", RequestId: hexID(3)}); a.Failure != nil {
				t.Errorf("cancel: %v", a.Failure)
			}
		case "undelivered":
			w.step(Input{Kind: CallUndelivered, Request: &lockv1.AcquireRequest{SessionId: s, Name: "y", RequestId: hexID(3)}})
			w.settle()
		}
		w.checkEmpty(t)
		// What was held under the ended registration is over.
		if a := w.call(t, 5, &lockv1.ReleaseRequest{SessionId: s, Name: "x", Token: g.Token, RequestId: hexID(2)}); a.Failure == nil {
			t.Errorf("%s: the release of a hold that is over was acknowledged", by)
		}
		w.settleFor(3 * time.Minute)
		w.checkNoLeaks(t)
	}
}
