package core

import (
	"testing"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
)

// TestRefusalAfterResume: an acquire was sent on two streams. That its second
// sending is refused says nothing about the first, so it is cancelled, whether
// or not it is asked for anew.
func TestRefusalAfterResume(t *testing.T) {
	for _, again := range []bool{false, true} {
		for _, twice := range []bool{false, true} {
			r := newRig(t)
			r.acquire("acquire 1")
			if twice {
				r.step(func() { r.s.Broken(r.now, 1, nil, &r.out) })
				r.now += ttl / 10
				r.step(func() { r.s.Tick(r.now, &r.out) }, "dial 1")
				r.step(func() { r.s.Connected(r.now, 2, &r.out) }, "resume 2", "renew 2", "acquire 1")
				r.id = 2
			}
			f := &lockv1.Failure{Code: 8, Message: "full", Detail: &lockv1.ErrorDetail{Reason: "DISK_FULL"}}
			want := []string{"failed #1"}
			if again {
				f.Detail.RetryAfterMs = 100
				want = []string{"retrying #1"}
			}
			if twice {
				want = append([]string{"cancel 1"}, want...)
			}
			r.event(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Ended{Ended: &lockv1.EndedEvent{Seq: 1,
				Reason: lockv1.EndReason_END_REASON_REFUSED, Failure: f}}}, want...)
			if n := r.s.Len(); n != map[bool]int{true: 1}[again]+map[bool]int{true: 1}[twice] {
				t.Errorf("asked anew %v, sent twice %v: %d acquires in the table", again, twice, n)
			}
			if !twice {
				continue
			}
			r.event(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Cancelled{Cancelled: &lockv1.CancelledEvent{Seq: 1}}})
			if n := r.s.Len(); n != map[bool]int{true: 1}[again] {
				t.Errorf("asked anew %v: %d acquires in the table after the cancel", again, n)
			}
		}
	}
}
