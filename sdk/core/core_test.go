package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
)

// rig is one session, its service played by the test line by line.
type rig struct {
	t   *testing.T
	s   *Session
	out Output
	now Time
	id  StreamID
}

const ttl = 10 * time.Second

func newRig(t *testing.T) *rig {
	r := &rig{t: t, now: time.Hour}
	r.s = New(Config{Client: "c", TTL: ttl, DriftPPM: 21_000, Endpoints: 2, RetryBase: 25 * time.Millisecond, RetryMax: time.Second,
		Rand: func() uint64 { return 0 }}, r.now)
	r.step(func() { r.s.Tick(r.now, &r.out) }, "dial 0")
	r.step(func() { r.s.Connected(r.now, 1, &r.out) }, "open", "renew 1")
	r.id = 1
	r.event(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Opened{Opened: &lockv1.OpenedEvent{SessionId: "s", TtlMs: 10_000}}})
	return r
}

// step runs f and compares what it wants with want.
func (r *rig) step(f func(), want ...string) {
	r.t.Helper()
	r.out.Reset()
	f()
	if got := r.words(); !slices.Equal(got, want) {
		r.t.Fatalf("at %v: got %q, want %q", r.now-time.Hour, got, want)
	}
}

func (r *rig) words() (w []string) {
	for _, d := range r.out.Dial {
		w = append(w, fmt.Sprint("dial ", d.Endpoint))
	}
	for _, op := range r.out.Ops {
		switch o := op.Op.(type) {
		case *lockv1.SessionOp_Open:
			w = append(w, "open")
		case *lockv1.SessionOp_Resume:
			w = append(w, fmt.Sprint("resume ", o.Resume.Attachment))
		case *lockv1.SessionOp_Renew:
			w = append(w, fmt.Sprint("renew ", o.Renew.Number))
		case *lockv1.SessionOp_Acquire:
			w = append(w, fmt.Sprint("acquire ", o.Acquire.Seq))
		case *lockv1.SessionOp_Cancel:
			w = append(w, fmt.Sprint("cancel ", o.Cancel.Seq))
		case *lockv1.SessionOp_Release:
			w = append(w, fmt.Sprint("release ", o.Release.Seq, " ", o.Release.Token))
		case *lockv1.SessionOp_Inventory:
			w = append(w, "inventory")
		case *lockv1.SessionOp_Close:
			w = append(w, "close")
		}
	}
	for _, x := range r.out.Results {
		s := [...]string{"", "granted", "failed", "queued", "retrying", "suspect", "lost", "released"}[x.Kind] + fmt.Sprint(" #", x.ID)
		if x.Kind == ResultLost {
			s += fmt.Sprint(" ", x.Lost)
		}
		if x.Kind == ResultReleased && x.Failure != nil {
			s += " refused"
		}
		w = append(w, s)
	}
	return w
}

func (r *rig) event(e *lockv1.SessionEvent, want ...string) {
	r.t.Helper()
	r.step(func() { r.s.Frame(r.now, r.id, &lockv1.SessionResponse{Events: []*lockv1.SessionEvent{e}}, &r.out) }, want...)
}

func (r *rig) acquire(want ...string) {
	r.t.Helper()
	r.step(func() {
		r.s.Acquire(r.now, Request{Name: "n", Mode: lockv1.Mode_MODE_EXCLUSIVE, Wait: time.Hour}, &r.out)
	}, want...)
}

func (r *rig) granted(seq, token uint64, lease time.Duration, reg uint64, want ...string) {
	r.t.Helper()
	r.event(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Granted{Granted: &lockv1.GrantedEvent{Seq: seq, Token: token,
		LeaseMs: uint64(lease / time.Millisecond), Shard: 1, Registration: reg, Epoch: 50}}}, want...)
}

func (r *rig) renewed(number uint64, c *lockv1.Covered, want ...string) {
	r.t.Helper()
	e := &lockv1.RenewedEvent{Number: number}
	if c != nil {
		c.Shard = 1
		e.Covered = []*lockv1.Covered{c}
	}
	r.event(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Renewed{Renewed: e}}, want...)
}

// tick lets time pass.
func (r *rig) tick(d time.Duration, want ...string) {
	r.t.Helper()
	r.now += d
	r.step(func() { r.s.Tick(r.now, &r.out) }, want...)
}

func lostEvent(epoch, seq, token uint64) *lockv1.EpochEvent {
	return &lockv1.EpochEvent{Epoch: epoch, Kind: &lockv1.EpochEvent_Lost{Lost: &lockv1.LostHold{Name: "n", Seq: seq, Token: token, Reason: lockv1.LostReason_LOST_REASON_FORCED}}}
}

func TestLeaseCountsFromSending(t *testing.T) {
	r := newRig(t)
	sent := r.now
	r.acquire("acquire 1")
	r.now += 2 * time.Second // the answer takes long
	r.granted(1, 7, 8*time.Second, 5, "granted #1")
	a := r.s.bySeq[1]
	margin := 210*time.Millisecond + 50*time.Millisecond
	if got := r.s.deadline(a); got != sent+8*time.Second-margin {
		t.Fatalf("deadline %v after sending", got-sent)
	}
	r.renewed(1, &lockv1.Covered{Registration: 5, Epoch: 50})
	if got := r.s.deadline(a); got != sent+ttl-margin {
		t.Fatalf("deadline %v after the renewal", got-sent)
	}
	r.renewed(1, &lockv1.Covered{Registration: 6, Epoch: 60}, "lost #1 4") // a new registration ended the old one
}

func TestLocalLossCancelsAndIsFinal(t *testing.T) {
	r := newRig(t)
	r.acquire("acquire 1")
	r.granted(1, 7, ttl, 5, "granted #1")
	r.now += ttl - 261*time.Millisecond // stood still, just not too long
	r.step(func() { r.s.Tick(r.now, &r.out) }, "dial 1", "renew 2", "suspect #1")
	r.now += 2 * time.Millisecond // an acknowledgement that was in the buffer comes too late
	r.renewed(2, &lockv1.Covered{Registration: 5, Epoch: 50}, "cancel 1", "lost #1 1")
	r.granted(1, 7, ttl, 5) // a duplicate changes nothing
	r.event(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Cancelled{Cancelled: &lockv1.CancelledEvent{Seq: 1}}})
	if r.s.DoneBelow() != 2 || r.s.Len() != 0 {
		t.Fatal(r.s.DoneBelow(), r.s.Len())
	}
}

func TestLostBeforeItsGrant(t *testing.T) {
	r := newRig(t)
	r.acquire("acquire 1")
	r.renewed(1, &lockv1.Covered{Registration: 5, Epoch: 51, Events: []*lockv1.EpochEvent{lostEvent(51, 1, 7)}}, "acquire 2")
	r.granted(1, 7, ttl, 5, "inventory") // of a seq that is over: is anything held for it?
	r.granted(2, 8, ttl, 5, "granted #1")
	r.event(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Lost{Lost: &lockv1.LostEvent{Shard: 1, Registration: 5, Epoch: 52,
		Hold: lostEvent(52, 2, 8).GetLost()}}}, "lost #1 5")
	r.renewed(1, &lockv1.Covered{Registration: 5, Epoch: 52, Events: []*lockv1.EpochEvent{lostEvent(52, 2, 8)}}) // told again
}

func TestGrantWhoseLeaseIsOverIsHeldBack(t *testing.T) {
	r := newRig(t)
	r.acquire("acquire 1")
	r.granted(1, 7, 0, 5)
	r.tick(ttl/10, "renew 2") // sooner than its turn
	r.renewed(2, &lockv1.Covered{Registration: 5, Epoch: 50}, "granted #1")

	r = newRig(t)
	r.acquire("acquire 1")
	r.granted(1, 7, 0, 5)
	for i := range uint64(20) {
		r.now += ttl / 20
		r.out.Reset()
		r.s.Tick(r.now, &r.out)
		r.s.Frame(r.now, r.id, &lockv1.SessionResponse{Events: []*lockv1.SessionEvent{{Event: &lockv1.SessionEvent_Renewed{
			Renewed: &lockv1.RenewedEvent{Number: r.s.lastRenew}}}}}, &r.out)
		if w := strings.Join(r.words(), ","); i == 19 && !strings.Contains(w, "cancel 1,acquire 2") || i < 19 && strings.Contains(w, "cancel") {
			t.Fatal(i, w)
		}
	}
}

func TestEventsDroppedNeedTheInventory(t *testing.T) {
	r := newRig(t)
	r.acquire("acquire 1")
	r.granted(1, 7, ttl, 5, "granted #1")
	r.now += 2 * time.Second
	r.renewed(1, &lockv1.Covered{Registration: 5, Epoch: 90, EventsDropped: true}, "inventory")
	if r.s.shards[1].isCov {
		t.Fatal("credited before the inventory")
	}
	r.now++
	inv := &lockv1.InventoryEvent{Shard: 1, Registration: 5, Epoch: 90, Holds: []*lockv1.InventoryHold{{Seq: 1, Name: "n", Token: 7}}}
	r.event(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Inventory{Inventory: inv}})
	r.renewed(1, &lockv1.Covered{Registration: 5, Epoch: 90})
	if !r.s.shards[1].isCov {
		t.Fatal("not credited after the inventory")
	}
}

func TestInventoryReconciles(t *testing.T) {
	r := newRig(t)
	r.acquire("acquire 1")
	r.granted(1, 7, ttl, 5, "granted #1")
	r.acquire("acquire 2")
	r.now++
	r.step(func() { r.s.Cancel(r.now, 2, &r.out) }, "cancel 2")
	r.event(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Cancelled{Cancelled: &lockv1.CancelledEvent{Seq: 2}}})
	r.step(func() { r.s.Broken(r.now, 1, nil, &r.out) })
	r.tick(10*time.Millisecond, "dial 1")
	r.id = 2
	r.step(func() { r.s.Connected(r.now, 2, &r.out) }, "resume 2", "renew 2")
	inv := &lockv1.InventoryEvent{Shard: 1, Registration: 5, Epoch: 90, Holds: []*lockv1.InventoryHold{{Seq: 2, Name: "n", Token: 8}, {Seq: 99, Name: "z", Token: 9}}}
	r.event(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Inventory{Inventory: inv}}, "release 2 8", "lost #1 4")
}

func TestReleaseIsRepeatedUntilAnswered(t *testing.T) {
	r := newRig(t)
	r.acquire("acquire 1")
	r.granted(1, 7, ttl, 5, "granted #1")
	r.step(func() { r.s.Release(r.now, 1, &r.out) }, "release 1 7")
	busy := &lockv1.Failure{Code: 14, Detail: &lockv1.ErrorDetail{RetryAfterMs: 100}}
	released := func(f *lockv1.Failure) *lockv1.SessionEvent {
		return &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Released{Released: &lockv1.ReleasedEvent{Seq: 1, Failure: f}}}
	}
	r.event(released(busy))
	r.tick(101*time.Millisecond, "release 1 7")
	r.step(func() { r.s.Broken(r.now, 1, nil, &r.out) })
	r.tick(10*time.Millisecond, "dial 1")
	r.id = 2
	r.step(func() { r.s.Connected(r.now, 2, &r.out) }, "resume 2", "renew 2", "release 1 7")
	if r.s.DoneBelow() != 1 {
		t.Fatal("done_below passed a release without an answer")
	}
	r.event(released(nil), "released #1")
	r.event(released(nil))
}

func TestRefusalsAreRetriedWithTheirDelay(t *testing.T) {
	r := newRig(t)
	r.acquire("acquire 1")
	end := func(seq uint64, code int32, ms uint64) *lockv1.SessionEvent {
		return &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Ended{Ended: &lockv1.EndedEvent{Seq: seq, Reason: lockv1.EndReason_END_REASON_REFUSED,
			Failure: &lockv1.Failure{Code: code, Detail: &lockv1.ErrorDetail{RetryAfterMs: ms}}}}}
	}
	r.event(end(1, 8, 200), "retrying #1")
	r.tick(199 * time.Millisecond)
	r.tick(2*time.Millisecond, "acquire 2")
	r.event(end(2, 14, 0), "cancel 2", "retrying #1") // unavailable: it may have had an effect
	r.event(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Cancelled{Cancelled: &lockv1.CancelledEvent{Seq: 2}}})
	r.tick(time.Second, "acquire 3")
	r.event(end(3, 8, 0), "failed #1")
	if r.s.DoneBelow() != 4 {
		t.Fatal(r.s.DoneBelow())
	}
}

func TestLockDelayHoldsTheCancelBack(t *testing.T) {
	r := newRig(t)
	r.step(func() {
		r.s.Acquire(r.now, Request{Name: "n", Mode: lockv1.Mode_MODE_EXCLUSIVE, LockDelay: 3 * time.Second, MaxHold: time.Second}, &r.out)
	}, "acquire 1")
	r.granted(1, 7, ttl, 5, "granted #1")
	r.renewed(1, &lockv1.Covered{Registration: 5, Epoch: 50})
	r.tick(time.Second, "lost #1 2")
	r.tick(3*time.Second-1, "renew 2")
	r.tick(1, "cancel 1")
}
