package checker

import (
	"cmp"
	"slices"

	"github.com/mortise-lock/mortise/ops/history"
)

// Options say what a run may be held to. The zero value checks what holds in
// every run; bounds in time are checked only where they are given.
type Options struct {
	// ServeWithin: after Healed each of Shards serves within it. 0: not checked.
	ServeWithin history.Time
	// Shards are those that must serve; nil: those in Applied events, but 0.
	Shards []uint32
	// FreeWithin: once nothing is broken, what a dead session held, and what is
	// held for an acquire whose caller was not told "granted" or relies on it no
	// more, is gone within its TTL and FreeWithin, and a waiter gets a lock that
	// was free for as long. It includes an election, the way of a cancel and the
	// longest lock-delay in use. 0: not checked.
	FreeWithin history.Time
	// ForgivePaused: the observer can't tell when the clock of a paused process
	// passed its deadline, so that BeliefEnds comes no earlier than the wake-up.
	// Then what such a process believes while it is paused is not held against
	// anyone. Without it a lease counts for paused clients as for others.
	ForgivePaused bool
	// MaxViolations bounds the answer; 0: 20.
	MaxViolations int
	// MaxSteps bounds the search for an order per window of a lock's history;
	// 0: 100,000. A window whose search ends at the bound counts as good, and in
	// Stats.Undecided.
	MaxSteps int
	// Stats, if set, is filled in.
	Stats *Stats
}

// Stats tell how much was looked at.
type Stats struct {
	Locks, Grants, Describes, Beliefs, Writes int
	// Orphans are holds that only a describe has shown.
	Orphans int
	// Windows were searched for an order; Undecided of them not to the end.
	Windows, Undecided, Steps int
}

// Violation is a promise that a history shows broken.
type Violation struct {
	// Promise is the one of ARCHITECTURE.md that is broken: P1 to P10, "serve"
	// for liveness, "history" for a history that is not well formed.
	Promise string
	// Check is the id of the check that found it (see Checks).
	Check string
	At    history.Time
	// Text says what happened and what should have been.
	Text string
	// Events are indexes into the history, in rising order.
	Events []int
}

func (v Violation) String() string { return v.Promise + " (" + v.Check + "): " + v.Text }

// Checks lists every check by its id, with the sentence that it proves.
var Checks = map[string]string{
	"history":   "The history keeps to its contract (package history).",
	"belief":    "Clients that believe at the same moment to hold one lock are those that may share it.",
	"token":     "A token is granted once, and a grant's token is greater than every token that was known when it was asked for.",
	"fence":     "The protected store accepts a write exactly if no greater token was seen.",
	"held":      "From its grant until its owner lets it go a hold excludes others and is in every describe; afterwards in none.",
	"order":     "Grants, ends of holds and describes of a lock have one order that fits real time and the rules of the modes.",
	"fifo":      "Who asks after another was told that it waits is granted after it.",
	"ghost":     "Nothing is held for an acquire that nobody made, that was not granted, whose grant is not delivered, or on which nobody relies any more.",
	"stuck":     "Once nothing is broken, a lock that nobody holds is granted to those who wait for it.",
	"death":     "What a session held is free within its TTL and a bound after its death.",
	"baseline":  "When all clients have gone nothing is left.",
	"same-hash": "Replicas have equal states at equal indexes.",
	"serve":     "Every shard serves within a bound once nothing is broken.",
}

// Check returns what is wrong with a history, in order of time. It is a
// function of its arguments, and its time grows with n log n of the events.
func Check(events []history.Event, opts Options) []Violation {
	if opts.MaxViolations <= 0 {
		opts.MaxViolations = 20
	}
	if opts.MaxSteps <= 0 {
		opts.MaxSteps = 100_000
	}
	if opts.Stats == nil {
		opts.Stats = &Stats{}
	}
	*opts.Stats = Stats{}
	x := newIndex(events, opts)
	x.cluster()
	x.store()
	for _, l := range x.order {
		bad := len(x.found)
		x.beliefs(l)
		x.tokens(l)
		x.fifo(l)
		x.ghosts(l)
		x.stuck(l)
		if len(x.found) == bad { // else the rest says the same in other words
			x.held(l)
		}
	}
	slices.SortStableFunc(x.found, func(a, b Violation) int { return cmp.Compare(a.At, b.At) })
	return x.found[:min(len(x.found), opts.MaxViolations)]
}
