package core

import (
	"testing"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
)

// Gateways drop a stream that was silent for 30 s: however long the TTL, a
// session that has nothing to say speaks more often than that.
func TestNoStreamIsSilentForLong(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 10 * time.Second, time.Minute, 10 * time.Minute} {
		r := &rig{t: t, now: time.Hour, id: 1}
		r.s = New(Config{Client: "c", TTL: ttl, DriftPPM: 21_000, Endpoints: 1, RetryBase: 25 * time.Millisecond, RetryMax: time.Second,
			Rand: func() uint64 { return 0 }}, r.now)
		r.s.Tick(r.now, &r.out)
		r.s.Connected(r.now, 1, &r.out)
		events := []*lockv1.SessionEvent{{Event: &lockv1.SessionEvent_Opened{Opened: &lockv1.OpenedEvent{SessionId: "s", TtlMs: uint64(ttl.Milliseconds())}}}}
		spoke, longest, beats := r.now, time.Duration(0), 0
		for end := r.now + 30*time.Minute; r.now < end; {
			r.out.Reset()
			r.s.Frame(r.now, 1, &lockv1.SessionResponse{Events: events}, &r.out)
			events = nil
			for _, op := range r.out.Ops {
				longest, spoke, beats = max(longest, r.now-spoke), r.now, beats+1
				if n := op.GetRenew().GetNumber(); n != 0 {
					events = append(events, &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Renewed{Renewed: &lockv1.RenewedEvent{Number: n}}})
				}
			}
			if len(events) == 0 {
				r.now = max(r.out.Wake, r.now+time.Millisecond)
			}
		}
		if limit := min(ttl/3, 10*time.Second) + time.Millisecond; longest > limit || beats < 3 {
			t.Errorf("TTL %v: it was silent for %v and spoke %d times; want at most %v", ttl, longest, beats, limit)
		}
	}
}
