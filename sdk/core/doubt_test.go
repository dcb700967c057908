package core

import (
	"testing"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"google.golang.org/grpc/codes"
)

func refusedEvent(seq uint64, code codes.Code, retryMS uint64) *lockv1.SessionEvent {
	f := &lockv1.Failure{Code: int32(code), Message: "full", Detail: &lockv1.ErrorDetail{Reason: "DISK_FULL", RetryAfterMs: retryMS}}
	return &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Ended{Ended: &lockv1.EndedEvent{Seq: seq,
		Reason: lockv1.EndReason_END_REASON_REFUSED, Failure: f}}}
}

// resumed breaks the stream in use and resumes on another, where the acquire
// is asked for once more.
func (r *rig) resumed() {
	r.t.Helper()
	r.step(func() { r.s.Broken(r.now, 1, nil, &r.out) })
	r.now += ttl / 10
	r.step(func() { r.s.Tick(r.now, &r.out) }, "dial 1")
	r.step(func() { r.s.Connected(r.now, 2, &r.out) }, "resume 2", "renew 2", "acquire 1")
	r.id = 2
}

// TestRefusalInDoubt: an acquire was sent twice, by this session on two streams
// or by the gateway (which then says UNAVAILABLE). That the second sending is
// refused says nothing about the first, so it is cancelled, whether or not it
// is asked for anew.
func TestRefusalInDoubt(t *testing.T) {
	for _, again := range []bool{false, true} {
		for _, twice := range []string{"", "by the session", "by the gateway"} {
			r := newRig(t)
			r.acquire("acquire 1")
			code, ms := codes.ResourceExhausted, uint64(0)
			switch twice {
			case "by the session":
				r.resumed()
			case "by the gateway":
				if !again {
					continue // UNAVAILABLE is always asked anew
				}
				code = codes.Unavailable
			}
			left := 0
			want := []string{"failed #1"}
			if again {
				ms, left, want = 100, 1, []string{"retrying #1"}
			}
			if twice != "" {
				want = append([]string{"cancel 1"}, want...)
			}
			r.event(refusedEvent(1, code, ms), want...)
			if twice == "" {
				if n := r.s.Len(); n != left {
					t.Errorf("asked anew %v: %d acquires in the table", again, n)
				}
				continue
			}
			if n := r.s.Len(); n != left+1 {
				t.Errorf("asked anew %v, sent twice %s: %d acquires in the table", again, twice, n)
			}
			r.event(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Cancelled{Cancelled: &lockv1.CancelledEvent{Seq: 1}}})
			if n := r.s.Len(); n != left {
				t.Errorf("asked anew %v, sent twice %s: %d acquires in the table after the cancel", again, twice, n)
			}
		}
	}
}

// TestRefusalAfterInventory: the inventory said that the acquire is granted; a
// refusal of its repetition changes nothing.
func TestRefusalAfterInventory(t *testing.T) {
	r := newRig(t)
	r.acquire("acquire 1")
	r.resumed()
	r.event(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Inventory{Inventory: &lockv1.InventoryEvent{Shard: 1, Registration: 7, Epoch: 50,
		Holds: []*lockv1.InventoryHold{{Seq: 1, Name: "n", Token: 30}}}}})
	r.event(refusedEvent(1, codes.Unavailable, 100))
	r.renewed(2, &lockv1.Covered{Registration: 7, Epoch: 50}, "granted #1")
}

// TestRegistrationEndsUnderARepetition: the registration under which an acquire
// waited has ended, and the acquire was asked for again on a new stream, where
// the gateway may register the session anew for it. So the old seq is cancelled
// when a new one takes its place. That something waits which nobody here asked
// for is looked into.
func TestRegistrationEndsUnderARepetition(t *testing.T) {
	r := newRig(t)
	r.acquire("acquire 1")
	waiting := func(seq, reg uint64) *lockv1.SessionEvent {
		return &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Waiting{Waiting: &lockv1.WaitingEvent{Seq: seq, Position: 1, Shard: 1, Registration: reg}}}
	}
	r.event(waiting(1, 7), "queued #1")
	r.resumed()
	r.event(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_RegistrationEnded{RegistrationEnded: &lockv1.RegistrationEndedEvent{Shard: 1, Registration: 7}}},
		"cancel 1", "acquire 2")
	r.event(waiting(1, 8))
	r.event(waiting(2, 8), "queued #1")
	r.event(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Cancelled{Cancelled: &lockv1.CancelledEvent{Seq: 1}}})
	if n := r.s.Len(); n != 1 {
		t.Fatalf("%d acquires in the table", n)
	}
	r.event(waiting(1, 8))
	r.tick(time.Second, "inventory")
}
