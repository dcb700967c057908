package checker

import (
	"fmt"
	"testing"
	"time"

	"github.com/mortise-lock/mortise/ops/history"
)

// BenchmarkCheck tells the time for an event of a random history.
func BenchmarkCheck(b *testing.B) {
	var events int
	var histories [][]history.Event
	for seed := range uint64(20) {
		h := randomHistory(seed, 10_000*ms)
		histories = append(histories, h)
		events += len(h)
	}
	for b.Loop() {
		for _, h := range histories {
			Check(h, modelOptions)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*events), "ns/event")
}

// TestManyReaders: thousands of readers at once take no time that grows with
// their square.
func TestManyReaders(t *testing.T) {
	const readers = 20_000
	var events []history.Event
	at := history.Time(0)
	add := func(e history.Event) {
		at++
		e.At, e.Name, e.Mode = at, "config", history.Shared
		events = append(events, e)
	}
	for i := range readers {
		call, token := uint64(i+1), uint64(i+1)
		add(history.Event{Kind: history.Invoke, Op: history.Acquire, Call: call, Client: i, Session: "s"})
		add(history.Event{Kind: history.Return, Op: history.Acquire, Outcome: history.OK, Call: call, Client: i, Session: "s", Token: token})
		add(history.Event{Kind: history.BeliefBegins, Call: call, Client: i, Session: "s", Token: token})
	}
	writer := uint64(readers + 1)
	for range 2 { // writers, who may not
		add(history.Event{Kind: history.Invoke, Op: history.Acquire, Call: writer, Client: int(writer), Session: "w"})
		events[len(events)-1].Mode = history.Exclusive
		add(history.Event{Kind: history.BeliefBegins, Call: writer, Client: int(writer), Session: "w", Token: writer})
		events[len(events)-1].Mode = history.Exclusive
		writer++
	}
	var st Stats
	v := Check(events, Options{Stats: &st})
	if len(v) != 2 || v[0].Check != "belief" || st.Beliefs != readers+2 {
		t.Fatalf("%d violations: %v; %+v", len(v), v, st)
	}
}

// TestManyDeaths: thousands of clients that die take no time that grows with
// their square.
func TestManyDeaths(t *testing.T) {
	const clients = 30_000
	var events []history.Event
	for i := range clients {
		session, name, call := fmt.Sprint("s", i), fmt.Sprint("lock", i%100), uint64(i+1)
		for _, e := range []history.Event{
			{Kind: history.SessionOpened, TTL: 1},
			{Kind: history.Invoke, Op: history.Acquire},
			{Kind: history.Return, Op: history.Acquire, Outcome: history.OK, Token: call},
			{Kind: history.BeliefBegins, Token: call},
			{Kind: history.ClientDied},
		} {
			e.At, e.Client, e.Session, e.Name, e.Call, e.Mode = history.Time(len(events)), i, session, name, call, history.Exclusive
			events = append(events, e)
		}
	}
	began := time.Now()
	if v := Check(events, Options{FreeWithin: 5}); len(v) > 0 {
		t.Fatal(v[0])
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("%d events took %v", len(events), took)
	}
}
