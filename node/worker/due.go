package worker

import (
	"cmp"
	"slices"

	"github.com/mortise-lock/mortise/shard"
)

const (
	// logTimeEvery is how often a leader logs its time while something waits
	// for time and nothing else is proposed: that much of a wait is repeated at
	// most when a leader is lost.
	logTimeEvery = Time(5_000_000_000)
	// duePerEntry bounds the timed commands of one entry.
	duePerEntry = 1024
	// blockedRetry is when to look again at what is due but can't be proposed.
	blockedRetry = Time(10_000_000)
)

func (r *replica) pushOwn(c shard.Command) {
	r.load++
	r.loadBytes += cost(&c)
	r.own = append(r.own, own{op: op{kind: c.Kind, reg: c.Registration, acq: c.Acquire}, cmd: c})
}

// checkLeases proposes to expire the registrations whose deadline has passed,
// each with its epoch and this term: an entry of another term has no effect, so
// a deposed leader expires nobody.
func (r *replica) checkLeases() {
	if !r.ready || r.leases == nil || r.blockAcks != 0 || !r.canPropose() || len(r.own) > 0 {
		return
	}
	r.w.expired = r.leases.Expired(int64(r.w.now), r.w.cfg.Limits.ExpirePerEntry, r.w.expired[:0])
	for _, reg := range r.w.expired {
		v, ok := r.m.Get(reg)
		if !ok {
			r.leases.Forget(reg)
			continue
		}
		r.pushOwn(shard.Command{Kind: shard.KindExpire, Registration: reg, Epoch: v.Epoch, Term: r.term})
	}
}

// takeDue queues the commands whose leader time has come; one batch at a time.
func (r *replica) takeDue() {
	if !r.ready || r.dueInLog {
		return
	}
	now := r.leaderTime()
	if at, ok := r.m.NextDue(); !ok || at > now {
		return
	}
	for _, c := range r.m.Due(now, duePerEntry) {
		r.pushOwn(c)
		r.dueInLog = true
	}
}

func (r *replica) timeToLog() bool {
	if r.forceTime {
		return true
	}
	if !r.ready || r.w.now-r.timeLogged < logTimeEvery {
		return false
	}
	_, waiting := r.m.NextDue()
	return waiting
}

// setTimer tells the worker when this replica next has something to do of
// itself.
func (r *replica) setTimer() {
	var at Time
	by := func(t Time) {
		if at == 0 || t < at {
			at = t
		}
	}
	if r.ready && r.m != nil {
		if t, ok := r.leases.Next(); ok {
			by(Time(t))
		}
		if due, ok := r.m.NextDue(); ok {
			by(r.timeLogged + logTimeEvery)
			if !r.dueInLog {
				by(r.clock.at + Time(due-r.clock.base))
			}
		}
		if r.reads.ctx != 0 {
			by(r.reads.begun + r.w.readRetry())
		}
	}
	if r.move.phase != moveNone {
		by(r.move.deadline)
	}
	if at != 0 && at <= r.w.now {
		at = r.w.now + blockedRetry
	}
	r.w.timers.set(r, at)
}

// sortedWaiters fixes the order in which an ending leader answers.
func sortedWaiters(m map[waitKey]waiter) []waiter {
	ws := make([]waiter, 0, len(m))
	for _, w := range m {
		ws = append(ws, w)
	}
	slices.SortFunc(ws, func(a, b waiter) int {
		if c := cmp.Compare(a.stream, b.stream); c != 0 {
			return c
		}
		return cmp.Compare(a.id, b.id)
	})
	return ws
}
