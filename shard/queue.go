package shard

// Names: their holds, their queues and their lock-delays. A name's record
// exists while it is held, waited for or delayed. Whoever changes a name calls
// settle afterwards, which grants what can be granted and restores the shape
// that invariants 4 and 5 ask for.

// findLock returns the name's record as it is in the slabs.
func (m *Machine) findLock(name string, hash uint64) uint32 {
	h32 := nameHash32(hash)
	return m.byName.find(h32, func(h uint32) bool {
		l := m.locks.at(h)
		return l.hash == h32 && string(m.nameOf(l)) == name
	})
}

// touch returns the name's record after removing what is over by rule; none if
// the name is free.
func (m *Machine) touch(name string, hash uint64) uint32 {
	h := m.findLock(name, hash)
	if h == none {
		return none
	}
	l := m.locks.at(h)
	if a, _ := m.dead(l); a != nil {
		m.bury(l.holder)
		if h = m.findLock(name, hash); h == none {
			return none
		}
		l = m.locks.at(h)
	}
	if l.extra != none {
		if x := m.extras.at(l.extra); x.waiters == 0 && x.delayUntil != 0 && x.delayUntil <= m.time {
			if !m.undelay(h) {
				return none
			}
		}
	}
	return h
}

// addLock makes a record for a name that has none.
func (m *Machine) addLock(name string, hash uint64) uint32 {
	h := m.locks.add(&m.cow)
	*m.locks.mut(&m.cow, h) = lockRec{cell: m.names.add(&m.cow, name), length: uint16(len(name)), hash: nameHash32(hash)}
	m.byName.insert(nameHash32(hash), h)
	return h
}

// removeLock removes the record of a name without holds and waiters.
func (m *Machine) removeLock(h uint32) {
	l := m.locks.at(h)
	m.byName.remove(l.hash, h)
	m.names.remove(l.cell, l.length)
	if l.extra != none {
		m.dropExtra(l.extra)
	}
	m.locks.remove(&m.cow, h)
}

func (m *Machine) dropExtra(x uint32) {
	m.delays.drop(x)
	m.idle.drop(x)
	m.extras.remove(&m.cow, x)
}

// extra returns the name's extra for writing, after making one if there is
// none.
func (m *Machine) extra(lock uint32) *extraRec {
	l := m.locks.mut(&m.cow, lock)
	if l.extra == none {
		l.extra = m.extras.add(&m.cow)
		x := m.extras.mut(&m.cow, l.extra)
		x.lock = lock
		if l.holder != none {
			x.lastHolder, x.holders, x.used = l.holder, 1, 1
		}
	}
	return m.extras.mut(&m.cow, l.extra)
}

// fits reports whether the name can be granted to one more hold, apart from
// those who wait for it already.
func (m *Machine) fits(l *lockRec, x *extraRec, mode Mode, permits uint32) bool {
	switch {
	case x.delayUntil > m.time || x.delayUntil != 0 && x.waiters > 0:
		return false
	case x.holders == 0:
		return true
	case mode == Exclusive || l.mode == Exclusive:
		return false
	case mode == Shared:
		return true
	default:
		return uint64(x.used)+uint64(permits) <= uint64(x.limit)
	}
}

// hold gives the name to an acquire that is in no list. The extra is kept in
// step if there is one.
func (m *Machine) hold(lock, h uint32, permits uint32) {
	a := m.acqs.mut(&m.cow, h)
	a.setState(acqGranted)
	a.token = m.nextTok
	m.nextTok++
	a.at, a.wall = m.time, m.wallMS
	a.lock, a.permits = lock, permits
	a.lprev, a.lnext = none, none
	l := m.locks.mut(&m.cow, lock)
	l.mode = a.mode
	a.bits &^= contended
	if l.extra == none {
		l.holder = h
	} else {
		x := m.extras.mut(&m.cow, l.extra)
		m.appendHolder(l, x, h)
		if a.mode != Exclusive {
			a.bits |= contended
		}
	}
	if a.mode != Exclusive {
		m.byToken.insert(tokenHash(Token(a.token)), h)
	}
	m.enlist(h)
	m.holds++
}

// appendHolder links a hold behind the others of its name.
func (m *Machine) appendHolder(l *lockRec, x *extraRec, h uint32) {
	a := m.acqs.mut(&m.cow, h)
	a.lprev, a.lnext = x.lastHolder, none
	if x.lastHolder != none {
		m.acqs.mut(&m.cow, x.lastHolder).lnext = h
	} else {
		l.holder = h
	}
	x.lastHolder = h
	x.holders++
	x.used += a.permits
}

// unhold takes a hold away from its name; the registration's list still has
// it. The caller settles the name.
func (m *Machine) unhold(h uint32) {
	a := m.acqs.at(h)
	l := m.locks.mut(&m.cow, a.lock)
	if a.mode != Exclusive {
		m.byToken.remove(tokenHash(Token(a.token)), h)
	}
	if l.extra == none {
		l.holder = none
		return
	}
	x := m.extras.mut(&m.cow, l.extra)
	prev, next := a.lprev, a.lnext
	x.holders--
	x.used -= a.permits
	if prev != none {
		m.acqs.mut(&m.cow, prev).lnext = next
	} else {
		l.holder = next
	}
	if next != none {
		m.acqs.mut(&m.cow, next).lprev = prev
	} else {
		x.lastHolder = prev
	}
}

// enqueue makes an acquire that is in no list wait for the name.
func (m *Machine) enqueue(lock, h uint32, permits uint32, deadline int64) {
	x := m.extra(lock)
	w := m.waits.add(&m.cow)
	*m.waits.mut(&m.cow, w) = waitRec{deadline: deadline, place: x.enqueued, acq: h}
	x.enqueued++
	a := m.acqs.mut(&m.cow, h)
	a.setState(acqWaiting)
	a.token = m.nextOrd
	m.nextOrd++
	a.at, a.wall = m.time, int64(w)
	a.lock, a.permits = lock, permits
	m.appendWaiter(x, h)
	m.enlist(h)
	m.waitN++
	m.deadlines.set(w, deadline)
}

// appendWaiter links a wait behind the others of its name.
func (m *Machine) appendWaiter(x *extraRec, h uint32) {
	a := m.acqs.mut(&m.cow, h)
	a.lprev, a.lnext = x.lastWaiter, none
	if x.lastWaiter != none {
		m.acqs.mut(&m.cow, x.lastWaiter).lnext = h
	} else {
		x.firstWaiter = h
	}
	x.lastWaiter = h
	x.waiters++
}

// dequeue takes a wait out of its name's queue; the registration's list still
// has it. The caller settles the name.
func (m *Machine) dequeue(h uint32) {
	a := m.acqs.at(h)
	w := uint32(a.wall)
	x := m.extras.mut(&m.cow, m.locks.at(a.lock).extra)
	prev, next := a.lprev, a.lnext
	if prev != none {
		m.acqs.mut(&m.cow, prev).lnext = next
	} else {
		x.firstWaiter = next
	}
	if next != none {
		m.acqs.mut(&m.cow, next).lprev = prev
	} else {
		x.lastWaiter = prev
	}
	x.waiters--
	if x.waiters == 0 {
		x.enqueued = 0
	}
	m.deadlines.drop(w)
	m.waits.remove(&m.cow, w)
}

// delayLock makes the name unavailable until that time, if it is not so for
// longer already.
func (m *Machine) delayLock(lock uint32, until int64, token Token) {
	x := m.extra(lock)
	if until > x.delayUntil || until == x.delayUntil && token > x.delayToken {
		x.delayUntil, x.delayToken = until, token
	}
	m.retime(lock)
}

// undelay ends the name's lock-delay. It reports whether the record is still
// there.
func (m *Machine) undelay(lock uint32) bool {
	x := m.extras.mut(&m.cow, m.locks.at(lock).extra)
	x.delayUntil, x.delayToken = 0, 0
	m.settle(lock)
	return m.locks.at(lock).length != 0
}

// retime puts the name's lock-delay where it will be found in time.
func (m *Machine) retime(lock uint32) {
	h := m.locks.at(lock).extra
	x := m.extras.at(h)
	if x.delayUntil != 0 && x.waiters > 0 {
		m.delays.set(h, x.delayUntil)
	} else {
		m.delays.drop(h)
	}
	if x.delayUntil != 0 && x.waiters == 0 {
		m.idle.set(h, x.delayUntil)
	} else {
		m.idle.drop(h)
	}
}

// settle grants the name to those at the head of its queue that fit, and
// removes what the name needs no more. A record that is gone is fine.
func (m *Machine) settle(lock uint32) {
	l := m.locks.at(lock)
	if l.length == 0 {
		return
	}
	if l.extra == none {
		if l.holder == none {
			m.removeLock(lock)
		}
		return
	}
	l = m.locks.mut(&m.cow, lock)
	x := m.extras.mut(&m.cow, l.extra)
	for x.waiters > 0 {
		a := m.acqs.at(x.firstWaiter)
		if !m.fits(l, x, a.mode, a.permits) {
			break
		}
		m.grantWaiter(lock, x.firstWaiter)
	}
	switch {
	case x.holders == 0 && x.waiters == 0:
		l.mode, x.limit = 0, 0
		if x.delayUntil <= m.time {
			m.removeLock(lock)
			return
		}
	case x.holders == 0:
		l.mode = m.acqs.at(x.firstWaiter).mode
	case l.mode == Exclusive:
		m.setContended(l.holder, x.waiters > 0)
		if x.waiters == 0 {
			// Granted, so no lock-delay is left (fits).
			m.dropExtra(l.extra)
			l.extra = none
			return
		}
	}
	m.retime(lock)
}

// grantWaiter gives the name to its first waiter.
func (m *Machine) grantWaiter(lock, h uint32) {
	permits := m.acqs.at(h).permits
	m.dequeue(h)
	m.unlist(h)
	m.waitN--
	m.hold(lock, h, permits)
	a := m.acqs.at(h)
	r := m.regs.at(a.reg)
	m.event(Event{
		Kind: EventGranted, Session: r.session, Registration: r.number, Epoch: r.epoch,
		Acquire: m.acquireID(a), Name: string(m.nameOf(m.locks.at(lock))), Token: Token(a.token),
	})
}

// emitEnded tells the session that its wait came to nothing.
func (m *Machine) emitEnded(h uint32, why Reason) {
	a := m.acqs.at(h)
	r := m.regs.at(a.reg)
	l := m.locks.at(a.lock)
	e := Event{
		Kind: EventEnded, Session: r.session, Registration: r.number, Epoch: r.epoch,
		Acquire: m.acquireID(a), Name: string(m.nameOf(l)), Reason: why,
	}
	if why == ReasonWaitOver {
		e.Holders = m.holdersOf(l)
	}
	m.event(e)
}
