package shard

import (
	"errors"
	"fmt"
)

// Check verifies the invariants of doc.go that a state alone can show, and that
// what is derived from the state agrees with it. It reads everything and is
// meant for tests and for a host that suspects damage.
func (m *Machine) Check() error {
	k := checker{m: m}
	k.registrations()
	k.locks()
	k.outcomes()
	k.totals()
	if k.bad == nil {
		return nil
	}
	return errors.Join(k.bad...)
}

type checker struct {
	m       *Machine
	bad     []error
	holds   uint64
	waits   uint64
	records int // acquires found in some list of a registration
	byName  int
	tokens  int
	extras  int
	delays  int
	idle    int
}

func (k *checker) fail(invariant int, format string, args ...any) {
	if len(k.bad) < 10 {
		k.bad = append(k.bad, fmt.Errorf("invariant %d: %s", invariant, fmt.Sprintf(format, args...)))
	}
}

func (k *checker) registrations() {
	m := k.m
	var live uint64
	var prev Registration
	for slot := m.firstReg; slot != none; slot = m.regs.at(slot).next {
		r := m.regs.at(slot)
		live++
		if r.state != regLive || r.number <= prev {
			k.fail(6, "registration %d is in the list out of order or not live", r.number)
		}
		prev = r.number
		if m.sessions[r.session] != slot || m.numbers[r.number] != slot {
			k.fail(6, "registration %d can't be found", r.number)
		}
		if r.contends+r.waiting > m.limits.ContendedPerRegistration || r.waiting > m.limits.WaitsPerRegistration {
			k.fail(8, "registration %d has %d contended holds and %d waits", r.number, r.contends, r.waiting)
		}
		k.holds += uint64(r.holds)
		k.waits += uint64(r.waiting)
	}
	if live != m.regN || len(m.sessions) != int(live) || len(m.numbers) != int(live) {
		k.fail(6, "%d live registrations, counted %d", live, m.regN)
	}
	for slot := uint32(1); slot < m.regs.next; slot++ {
		r := m.regs.at(slot)
		if r.state == regFree {
			continue
		}
		if r.state == regEnded && (r.waits.head != none || r.contended.head != none) {
			k.fail(6, "ended registration %d has waits or contended holds", r.number)
		}
		plain := k.list(slot, r.plain, acqGranted)
		cont := k.list(slot, r.contended, acqGranted)
		waits := k.list(slot, r.waits, acqWaiting)
		if uint32(plain+cont) != r.holds || uint32(cont) != r.contends || uint32(waits) != r.waiting {
			k.fail(6, "registration %d: counts differ from its lists", r.number)
		}
		for i := range r.outcomes {
			if k.list(slot, r.outcomes[i], acqOutcome) != int(r.remembered[i]) {
				k.fail(7, "registration %d: outcomes are miscounted", r.number)
			}
		}
	}
}

func (k *checker) list(slot uint32, l list, want acqState) int {
	m := k.m
	n, prev := 0, none
	for h := l.head; h != none; h = m.acqs.at(h).next {
		a := m.acqs.at(h)
		if a.state() != want || a.reg != slot || a.prev != prev {
			k.fail(7, "an acquire of registration %d is in the wrong list", m.regs.at(slot).number)
			return n
		}
		if found := m.byID.find(idHash(slot, m.acquireID(a)), func(x uint32) bool { return x == h }); found != h {
			k.fail(7, "an acquire of registration %d can't be found by its id", m.regs.at(slot).number)
		}
		n++
		k.records++
		prev = h
	}
	if l.tail != prev {
		k.fail(7, "registration %d: the end of a list differs", m.regs.at(slot).number)
	}
	return n
}

func (k *checker) locks() {
	m := k.m
	for h := uint32(1); h < m.locks.next; h++ {
		l := m.locks.at(h)
		if l.length == 0 {
			continue
		}
		k.byName++
		name := string(m.nameOf(l))
		if m.findLock(name, HashName(name)) != h {
			k.fail(1, "%q can't be found", name)
		}
		if l.extra == none {
			if l.holder == none || l.mode != Exclusive || m.acqs.at(l.holder).bits&contended != 0 {
				k.fail(5, "%q has no extra and is not simply held", name)
			} else if a := m.acqs.at(l.holder); a.lock != h || a.mode != Exclusive {
				k.fail(1, "%q: its hold belongs elsewhere", name)
			}
			continue
		}
		k.extras++
		k.lock(h, l, name)
	}
}

func (k *checker) lock(h uint32, l *lockRec, name string) {
	m := k.m
	x := m.extras.at(l.extra)
	var holders, used, waiters uint32
	var prev uint32
	var token, order uint64
	for i := l.holder; i != none; i = m.acqs.at(i).lnext {
		a := m.acqs.at(i)
		if a.state() != acqGranted || a.lock != h || a.lprev != prev || m.regs.at(a.reg).state != regLive {
			k.fail(6, "%q: a hold is not one of a live registration", name)
		}
		if a.token <= token || a.token >= m.nextTok {
			k.fail(3, "%q: tokens do not rise", name)
		}
		if a.mode != l.mode {
			k.fail(2, "%q: modes are mixed", name)
		}
		if (a.bits&contended != 0) != (l.mode != Exclusive || x.waiters > 0) {
			k.fail(5, "%q: a hold is in the wrong list", name)
		}
		if a.mode != Exclusive {
			k.tokens++
			if m.holdWith(h, Token(a.token)) != i {
				k.fail(3, "%q: a hold can't be found by its token", name)
			}
		}
		holders, used, token, prev = holders+1, used+a.permits, a.token, i
	}
	if prev != x.lastHolder || holders != x.holders || used != x.used || x.lock != h {
		k.fail(2, "%q: holds are miscounted", name)
	}
	if l.mode == Exclusive && holders > 1 {
		k.fail(1, "%q: %d exclusive holds", name, holders)
	}
	if (l.mode == Counted) != (x.limit > 0) || l.mode == Counted && used > x.limit {
		k.fail(2, "%q: %d permits of %d", name, used, x.limit)
	}
	prev = none
	for i := x.firstWaiter; i != none; i = m.acqs.at(i).lnext {
		a := m.acqs.at(i)
		if a.state() != acqWaiting || a.lock != h || a.lprev != prev || m.regs.at(a.reg).state != regLive {
			k.fail(6, "%q: a wait is not one of a live registration", name)
		}
		if a.token <= order || a.token >= m.nextOrd || m.waits.at(uint32(a.wall)).acq != i {
			k.fail(4, "%q: the queue is out of order", name)
		}
		if (a.mode == Counted) != (l.mode == Counted) {
			k.fail(2, "%q: modes are mixed in the queue", name)
		}
		waiters, order, prev = waiters+1, a.token, i
	}
	if prev != x.lastWaiter || waiters != x.waiters {
		k.fail(4, "%q: waits are miscounted", name)
	}
	if waiters > m.limits.WaitersPerName {
		k.fail(8, "%q: %d waiters", name, waiters)
	}
	if waiters > 0 {
		if a := m.acqs.at(x.firstWaiter); m.fits(l, x, a.mode, a.permits) {
			k.fail(4, "%q: the first waiter fits but waits", name)
		}
	}
	if holders+waiters == 0 && (x.delayUntil == 0 || l.mode != 0) || l.mode == Exclusive && holders == 1 && waiters == 0 {
		k.fail(5, "%q: its extra is not needed", name)
	}
	if x.delayUntil != 0 {
		if waiters > 0 {
			k.delays++
		} else {
			k.idle++
		}
	}
}

func (k *checker) outcomes() {
	m := k.m
	var at int64
	prev := none
	for h := m.outcomes.head; h != none; h = m.acqs.at(h).lnext {
		a := m.acqs.at(h)
		if a.state() != acqOutcome || a.lprev != prev || a.at < at {
			k.fail(7, "outcomes are out of order")
			return
		}
		if r := m.regs.at(a.reg); r.state == regLive && a.bits&byRequest == 0 && a.id < r.doneBelow {
			k.fail(7, "registration %d: an outcome below done_below", r.number)
		}
		if tokenRemembered(a) {
			k.tokens++
		}
		at, prev = a.at, h
	}
	if m.outcomes.tail != prev {
		k.fail(7, "the end of the list of outcomes differs")
	}
}

func (k *checker) totals() {
	m := k.m
	if k.holds != m.holds || k.waits != m.waitN {
		k.fail(6, "%d holds and %d waits, counted %d and %d", k.holds, k.waits, m.holds, m.waitN)
	}
	for _, c := range []struct {
		what string
		a, b int
	}{
		{"acquires by id", k.records, m.byID.n},
		{"acquires", k.records, m.acqs.live()},
		{"names", k.byName, m.byName.n},
		{"lock records", k.byName, m.locks.live()},
		{"extras", k.extras, m.extras.live()},
		{"tokens", k.tokens, m.byToken.n},
		{"wait records", int(k.waits), m.waits.live()},
		{"wait limits", int(k.waits), len(m.deadlines.heap)},
		{"lock-delays with waiters", k.delays, len(m.delays.heap)},
		{"lock-delays without", k.idle, len(m.idle.heap)},
		{"leave times", int(m.regN), len(m.leaves.heap)},
	} {
		if c.a != c.b {
			k.fail(9, "%s: %d, recorded %d", c.what, c.a, c.b)
		}
	}
}
