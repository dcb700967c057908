package shard

// acquireOK checks the rules that gateways check too.
func acquireOK(c *Command) bool {
	if ValidateName(c.Name) != nil || !oneID(c.Acquire) {
		return false
	}
	if c.Wait < 0 || c.Wait > MaxWait || c.LockDelay < 0 || c.LockDelay > MaxLockDelay {
		return false
	}
	switch c.Mode {
	case Exclusive, Shared:
		return c.Permits <= 1 && c.Limit == 0
	case Counted:
		return c.Permits >= 1 && c.Limit >= 1 && c.Permits <= c.Limit
	}
	return false
}

func oneID(id AcquireID) bool { return (id.Seq != 0) != (id.RequestID != [16]byte{}) }

func (m *Machine) acquire(c *Command, res *Result) {
	if !acquireOK(c) {
		res.Status = StatusInvalid
		return
	}
	slot, ok := m.acting(c, res)
	if !ok {
		return
	}
	m.inForce(slot, res)
	if c.Acquire.Seq != 0 && c.Acquire.Seq < m.regs.at(slot).doneBelow {
		res.Status = StatusStale
		return
	}
	hash := HashName(c.Name)
	if h := m.findAcquire(slot, c.Acquire); h != none && !mutantNoDedup {
		a := m.acqs.at(h)
		if !m.isNamed(a, c.Name, hash) || a.mode != c.Mode && a.mode != 0 {
			res.Status = StatusMismatch
			return
		}
		m.present(h, c.Name, hash, res)
		return
	}
	if !m.ownsName(c.Name, hash) {
		res.Status = StatusNotOwner
		return
	}
	if n := m.limits.OutcomesPerRegistration; m.rememberedBy(slot, n) >= n {
		m.refuse(slot, c, hash, ReasonNone, StatusLimit, limitOutcomesPerRegistration, res)
		return
	}
	r := m.regs.at(slot)
	if r.holds+r.waiting >= m.limits.HoldsPerRegistration {
		m.refuse(slot, c, hash, ReasonNone, StatusLimit, limitHoldsPerRegistration, res)
		return
	}
	if m.limits.ContendedPerRegistration <= r.contends+r.waiting && c.Mode != Exclusive {
		m.refuse(slot, c, hash, ReasonNone, StatusLimit, limitContendedPerRegistration, res)
		return
	}
	lock := m.touch(c.Name, hash)
	if lock == none {
		m.grantNew(slot, c, hash, res)
		return
	}
	l := m.locks.at(lock)
	one := extraRec{holders: 1, used: 1}
	x := &one
	if l.extra != none {
		x = m.extras.at(l.extra)
	}
	if x.holders+x.waiters > 0 {
		if (l.mode == Counted) != (c.Mode == Counted) {
			m.refuse(slot, c, hash, ReasonNone, StatusModeConflict, limitNone, res)
			return
		}
		if c.Mode == Counted && x.limit != c.Limit {
			m.refuse(slot, c, hash, ReasonNone, StatusLimitDisagrees, limitNone, res)
			return
		}
	}
	if x.waiters == 0 && m.fits(l, x, c.Mode, c.Permits) {
		// Exclusive can't be: a name with a record is held or delayed.
		h := m.newAcquire(slot, c.Acquire)
		m.shape(h, c)
		m.hold(lock, h, permitsOf(c))
		m.granted(h, res)
		return
	}
	if c.Wait == 0 {
		m.refuse(slot, c, hash, ReasonBusy, StatusOK, limitNone, res)
		return
	}
	if code := m.mayWait(slot, l, x); code != limitNone {
		m.refuse(slot, c, hash, ReasonNone, StatusLimit, code, res)
		return
	}
	h := m.newAcquire(slot, c.Acquire)
	m.shape(h, c)
	m.enqueue(lock, h, permitsOf(c), m.time+c.Wait)
	// A name that is only delayed takes its mode from its first waiter.
	if y := m.extras.mut(&m.cow, m.locks.at(lock).extra); y.waiters == 1 {
		if y.holders == 0 {
			y.limit = c.Limit
		}
		m.settle(lock)
	}
	res.State = AcquireWaiting
	res.Position = m.position(h)
	res.Holders = m.holdersOf(m.locks.at(lock))
}

// mayWait returns the limit that forbids one more wait, or limitNone.
func (m *Machine) mayWait(slot uint32, l *lockRec, x *extraRec) limitCode {
	r := m.regs.at(slot)
	most := m.limits.ContendedPerRegistration
	switch {
	case x.waiters >= m.limits.WaitersPerName:
		return limitWaitersPerName
	case r.waiting >= m.limits.WaitsPerRegistration:
		return limitWaitsPerRegistration
	case r.contends+r.waiting >= most:
		return limitContendedPerRegistration
	}
	if l.mode == Exclusive && x.holders == 1 && x.waiters == 0 {
		// Its hold becomes contended.
		holder := m.acqs.at(l.holder).reg
		n := m.regs.at(holder).contends + m.regs.at(holder).waiting
		if holder == slot {
			n++
		}
		if n >= most {
			return limitContendedPerRegistration
		}
	}
	return limitNone
}

// shape fills in what an acquire has in each state.
func (m *Machine) shape(h uint32, c *Command) {
	a := m.acqs.mut(&m.cow, h)
	a.mode = c.Mode
	a.delay = uint16((c.LockDelay + 999_999) / 1_000_000)
}

func permitsOf(c *Command) uint32 { return max(c.Permits, 1) }

// grantNew grants a free name.
func (m *Machine) grantNew(slot uint32, c *Command, hash uint64, res *Result) {
	h := m.newAcquire(slot, c.Acquire)
	m.shape(h, c)
	lock := m.addLock(c.Name, hash)
	if c.Mode != Exclusive {
		m.extra(lock).limit = c.Limit
	}
	m.hold(lock, h, permitsOf(c))
	m.granted(h, res)
}

func (m *Machine) granted(h uint32, res *Result) {
	res.State = AcquireGranted
	res.Token = Token(m.acqs.at(h).token)
}

// refuse ends an acquire that was not seen before, and remembers that: a late
// duplicate must not be granted after the caller was told otherwise.
func (m *Machine) refuse(slot uint32, c *Command, hash uint64, why Reason, status Status, code limitCode, res *Result) {
	if code != limitOutcomesPerRegistration || m.spareOutcome(slot) {
		h := m.newAcquire(slot, c.Acquire)
		m.shape(h, c)
		m.remember(h, hash, why, status, code)
	}
	m.ended(c.Name, hash, why, status, code, res)
}

// spareOutcome reports whether an outcome may be remembered although the limit
// was reached.
func (m *Machine) spareOutcome(slot uint32) bool {
	n := m.limits.OutcomesPerRegistration
	return uint64(m.rememberedBy(slot, n)) < 2*uint64(n)
}

// ended answers for an acquire that holds nothing and never will.
func (m *Machine) ended(name string, hash uint64, why Reason, status Status, code limitCode, res *Result) {
	res.Status, res.State, res.Reason = status, AcquireEnded, why
	res.LimitName, res.LimitValue = m.limits.name(code)
	if status != StatusModeConflict && status != StatusLimitDisagrees && why != ReasonBusy && why != ReasonWaitOver {
		return
	}
	if h := m.findLock(name, hash); h != none {
		if v, ok := m.look(m.locks.at(h)); ok {
			res.Holders = m.holdersOf(m.locks.at(h))
			if why == ReasonNone {
				res.Mode, res.Limit = v.mode, v.limit
			}
		}
	}
}

// present answers a duplicate with the present truth of its acquire.
func (m *Machine) present(h uint32, name string, hash uint64, res *Result) {
	a := m.acqs.at(h)
	switch a.state() {
	case acqGranted:
		m.granted(h, res)
	case acqWaiting:
		res.State = AcquireWaiting
		res.Position = m.position(h)
		res.Holders = m.holdersOf(m.locks.at(a.lock))
	case acqOutcome:
		m.ended(name, hash, a.reason(), a.status(), a.limit(), res)
	}
}

// isNamed reports whether an acquire is about that name.
func (m *Machine) isNamed(a *acqRec, name string, hash uint64) bool {
	if a.state() == acqOutcome {
		return uint64(a.wall) == hash
	}
	return string(m.nameOf(m.locks.at(a.lock))) == name
}

// positionExact is up to where position counts one by one.
const positionExact = 100

// position counts the waiters in front of a wait: exactly up to positionExact,
// beyond that it may count some that have left meanwhile.
func (m *Machine) position(h uint32) int {
	a := m.acqs.at(h)
	n := 0
	for at := a.lprev; at != none; at = m.acqs.at(at).lprev {
		if n++; n > positionExact {
			x := m.extras.at(m.locks.at(a.lock).extra)
			first := m.waits.at(uint32(m.acqs.at(x.firstWaiter).wall)).place
			return int(min(uint64(x.waiters-1), m.waits.at(uint32(a.wall)).place-first))
		}
	}
	return n
}
