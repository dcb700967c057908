package history

import (
	"cmp"
	"slices"
	"sync"
)

// Log is a Recorder for observers with several goroutines. Events may come in
// late, such as the end of a belief that was found out afterwards: Events puts
// them in order. The zero value is ready; its methods may be called from any
// goroutine.
type Log struct {
	mu     sync.Mutex
	events []Event
}

// Record appends an event, whose At has to be set.
func (l *Log) Record(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

// Events returns a copy of all events in the order of At, and of recording
// where At is equal.
func (l *Log) Events() []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	events := slices.Clone(l.events)
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return events
}
