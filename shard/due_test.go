package shard

import "testing"

// TestDueIsExact: nothing is due before its time, NextDue is never late, and
// what was proposed and applied is due no more.
func TestDueIsExact(t *testing.T) {
	r := newRig(t)
	a, b := r.register(1), r.register(2)
	r.apply(
		Command{Kind: KindAcquire, Registration: a, Acquire: AcquireID{Seq: 1}, Name: "x", Mode: Exclusive, LockDelay: 20e9},
		Command{Kind: KindAcquire, Registration: b, Acquire: AcquireID{Seq: 1}, Name: "x", Mode: Exclusive, Wait: 5e9},
		Command{Kind: KindAcquire, Registration: b, Acquire: AcquireID{Seq: 2}, Name: "x", Mode: Exclusive, Wait: 50e9},
	)
	if at, ok := r.m.NextDue(); !ok || at != 5e9 {
		t.Fatal(at, ok)
	}
	if c := r.m.Due(5e9-1, 10); len(c) != 0 {
		t.Fatal(c)
	}
	r.time = 5e9
	if c := r.m.Due(r.time, 10); len(c) != 1 || c[0].Kind != KindWaitOver || r.apply(c...)[0].Status != StatusOK {
		t.Fatal(c)
	}
	r.apply(Command{Kind: KindExpire, Registration: a, Epoch: 1, Term: 1})
	if at, ok := r.m.NextDue(); !ok || at != 25e9 {
		t.Fatal(at, ok)
	}
	r.time = 25e9
	if c := r.m.Due(r.time, 10); len(c) != 1 || c[0].Kind != KindWake || r.apply(c...)[0].Status != StatusOK {
		t.Fatal(c)
	}
	if !r.m.CheckToken("x", 2) {
		t.Fatal("the waiter was not granted")
	}
	// A registration that holds something does not leave; NextDue moves on.
	r.time = LeaveAfter * 3
	if c := r.m.Due(r.time, 10); len(c) != 0 {
		t.Fatal(c)
	}
	if at, ok := r.m.NextDue(); !ok || at <= r.time {
		t.Fatal(at, ok)
	}
	r.apply(Command{Kind: KindRelease, Name: "x", Token: 2})
	at, _ := r.m.NextDue()
	if c := r.m.Due(at, 10); len(c) != 1 || c[0].Kind != KindLeave {
		t.Fatal(c)
	}
	r.time = at
	r.apply(Command{Kind: KindLeave, Registration: b})
	if _, ok := r.m.NextDue(); ok {
		t.Fatal("an empty shard waits for something")
	}
}
