package history

import (
	"sync"
	"testing"
)

// TestLog: events come out by time, those of one moment as they were recorded,
// whatever goroutine they came from.
func TestLog(t *testing.T) {
	var l Log
	var r Recorder = &l
	var wg sync.WaitGroup
	for client := range 4 {
		wg.Go(func() {
			for i := range 100 {
				r.Record(Event{At: Time(1000 - i/2), Client: client, Call: uint64(i)})
			}
		})
	}
	wg.Wait()
	events := l.Events()
	if len(events) != 400 {
		t.Fatalf("%d events, want 400", len(events))
	}
	last := map[int]Event{}
	for i, e := range events {
		if i > 0 && e.At < events[i-1].At {
			t.Fatalf("event %d at %d comes after one at %d", i, e.At, events[i-1].At)
		}
		if p, ok := last[e.Client]; ok && p.At == e.At && p.Call > e.Call {
			t.Fatalf("client %d: call %d comes after %d, recorded later", e.Client, e.Call, p.Call)
		}
		last[e.Client] = e
	}
}

// TestNames: every constant has a name, and what is none does not panic.
func TestNames(t *testing.T) {
	for k := Invoke; k <= Forced; k++ {
		if k.String() == "" || len(kindNames) != int(Forced)+1 {
			t.Errorf("kind %d has no name", k)
		}
	}
	if len(opNames) != int(CloseSession)+1 || len(modeNames) != int(Counted)+1 || len(outcomeNames) != int(Lost)+1 {
		t.Error("an operation, mode or outcome has no name")
	}
	for _, p := range []struct{ got, want string }{
		{Forced.String(), "forced"}, {CloseSession.String(), "close"}, {Counted.String(), "counted"}, {Lost.String(), "lost"}, {Kind(99).String(), "kind(99)"},
	} {
		if p.got != p.want {
			t.Errorf("name %q, want %q", p.got, p.want)
		}
	}
}
