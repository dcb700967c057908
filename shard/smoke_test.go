package shard

import (
	"bytes"
	"testing"
)

func TestSmoke(t *testing.T) {
	m := New(Config{ID: 1, Floor: 100, Index: 10, Term: 5, Owns: []Selector{{HashLast: 1<<64 - 1}}})
	var out Outcome
	apply := func(c ...Command) {
		t.Helper()
		b := Batch{Time: m.state2(), Commands: c}
		if err := m.Apply(m.Applied()+1, 5, b.AppendTo(nil), &out); err != nil {
			t.Fatal(err)
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
	}
	apply(Command{Kind: KindRegister, Session: SessionID{1}, Client: "a", TTL: 1e10})
	r1 := out.Results[0].Registration
	apply(Command{Kind: KindAcquire, Registration: r1, Acquire: AcquireID{Seq: 1}, Name: "x", Mode: Exclusive})
	if out.Results[0].Token != 100 {
		t.Fatalf("%+v", out.Results[0])
	}
	apply(Command{Kind: KindAcquire, Registration: r1, Acquire: AcquireID{Seq: 2}, Name: "x", Mode: Exclusive, Wait: 1e9})
	apply(Command{Kind: KindRelease, Registration: r1, Acquire: AcquireID{Seq: 1}, Name: "x", Token: 100})
	t.Logf("%+v", out.Events)
	var buf bytes.Buffer
	s := m.Snapshot()
	if _, err := s.WriteTo(&buf); err != nil {
		t.Fatal(err)
	}
	s.Close()
	m2, err := Restore(&buf)
	if err != nil {
		t.Fatal(err)
	}
	if m.Hash() != m2.Hash() || m2.Check() != nil {
		t.Fatal("hash", m2.Check())
	}
}

func (m *Machine) state2() LeaderTime { return m.Time() + 1 }
