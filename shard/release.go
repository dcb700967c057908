package shard

func (m *Machine) release(c *Command, res *Result) {
	if ValidateName(c.Name) != nil || c.Acquire != (AcquireID{}) && !oneID(c.Acquire) || c.Acquire != (AcquireID{}) && c.Registration == 0 {
		res.Status = StatusInvalid
		return
	}
	hash := HashName(c.Name)
	slot := none
	if c.Registration != 0 {
		var ok bool
		if slot, ok = m.acting(c, res); !ok {
			return
		}
		defer func() { m.inForce(slot, res) }()
		if c.Acquire != (AcquireID{}) {
			m.releaseOf(slot, c, hash, res)
			return
		}
	}
	if !m.ownsName(c.Name, hash) {
		res.Status = StatusNotOwner
		return
	}
	h := m.findHold(c.Name, hash, c.Token)
	if h == none {
		if slot == none || !m.releasedBefore(slot, c.Token, hash) {
			res.Status = StatusTokenNotCurrent
		}
		return
	}
	// A session of unary calls alone may name its hold by the token; it needs
	// no news of what it did itself.
	if slot != none && m.acqs.at(h).reg == slot && c.Attachment == 0 && m.regs.at(slot).attachment == 0 {
		m.endHold(h, hash, ReasonReleased, false)
		return
	}
	m.endHold(h, hash, ReasonReleasedByToken, true)
}

// releasedBefore: the registration's hold with that token was released, as far
// as that is still remembered. So a caller without a request id may repeat
// itself, too. Acquires of streams have seqs for that.
func (m *Machine) releasedBefore(slot uint32, token Token, hash uint64) bool {
	return m.byToken.find(tokenHash(token), func(h uint32) bool {
		a := m.acqs.at(h)
		return a.state() == acqOutcome && a.reg == slot && a.token == uint64(token) && uint64(a.wall) == hash &&
			m.remembers(a) && releasedFor(a.reason())
	}) != none
}

// releasedFor: to repeat the release of a hold that ended for this reason is
// OK.
func releasedFor(why Reason) bool {
	return why == ReasonReleased || why == ReasonReleasedByToken || why == ReasonCancelled
}

// releaseOf frees the hold of an acquire that the caller named.
func (m *Machine) releaseOf(slot uint32, c *Command, hash uint64, res *Result) {
	h := m.findAcquire(slot, c.Acquire)
	if h == none {
		if !m.ownsName(c.Name, hash) {
			res.Status = StatusNotOwner
			return
		}
		// Under done_below nothing is held any more, whatever the reason.
		if c.Acquire.Seq == 0 || c.Acquire.Seq >= m.regs.at(slot).doneBelow {
			res.Status = StatusTokenNotCurrent
		}
		return
	}
	a := m.acqs.at(h)
	if !m.isNamed(a, c.Name, hash) {
		res.Status = StatusMismatch
		return
	}
	right := c.Token == 0 || uint64(c.Token) == a.token
	switch a.state() {
	case acqGranted:
		if !right {
			res.Status = StatusTokenNotCurrent
			return
		}
		if m.own(slot, c) {
			m.endHold(h, hash, ReasonReleased, false)
		} else {
			m.endHold(h, hash, ReasonReleasedByToken, true)
		}
	case acqWaiting:
		res.Status = StatusTokenNotCurrent
	case acqOutcome:
		if !releasedFor(a.reason()) || !right || a.token == 0 {
			res.Status, res.Reason = StatusTokenNotCurrent, a.reason()
		}
	}
}

// findHold returns the present hold of the name with that token, or none.
func (m *Machine) findHold(name string, hash uint64, token Token) uint32 {
	lock := m.touch(name, hash)
	if lock == none || token == 0 {
		return none
	}
	return m.holdWith(lock, token)
}

// holdWith returns the hold of a name's record with that token, or none.
func (m *Machine) holdWith(lock uint32, token Token) uint32 {
	l := m.locks.at(lock)
	if l.holder == none {
		return none
	}
	if l.mode == Exclusive {
		if m.acqs.at(l.holder).token == uint64(token) {
			return l.holder
		}
		return none
	}
	return m.byToken.find(tokenHash(token), func(h uint32) bool {
		a := m.acqs.at(h)
		return a.token == uint64(token) && a.lock == lock
	})
}

// endHold ends a hold of a live registration, passes the name on, and makes it
// news for the session unless it was its own act.
func (m *Machine) endHold(h uint32, hash uint64, why Reason, news bool) {
	lock := m.acqs.at(h).lock
	m.letGo(h, hash, why, news)
	m.settle(lock)
}

// letGo is endHold without passing the name on.
func (m *Machine) letGo(h uint32, hash uint64, why Reason, news bool) {
	a := m.acqs.at(h)
	slot := a.reg
	if news {
		m.news(slot, EpochEvent{
			Name: string(m.nameOf(m.locks.at(a.lock))), Token: Token(a.token), Acquire: m.acquireID(a), Reason: why,
		})
	}
	m.unhold(h)
	m.unlist(h)
	m.holds--
	m.remember(h, hash, why, StatusOK, limitNone)
}

// endWait ends a wait of a live registration and passes the name on.
func (m *Machine) endWait(h uint32, hash uint64, why Reason) {
	lock := m.acqs.at(h).lock
	m.emitEnded(h, why)
	m.dequeue(h)
	m.unlist(h)
	m.waitN--
	m.acqs.mut(&m.cow, h).token = 0
	m.remember(h, hash, why, StatusOK, limitNone)
	m.settle(lock)
}

func (m *Machine) cancel(c *Command, res *Result) {
	if ValidateName(c.Name) != nil || !oneID(c.Acquire) {
		res.Status = StatusInvalid
		return
	}
	slot, ok := m.acting(c, res)
	if !ok {
		return
	}
	defer func() { m.inForce(slot, res) }()
	hash := HashName(c.Name)
	h := m.findAcquire(slot, c.Acquire)
	if h == none {
		m.cancelUnseen(slot, c, hash, res)
		return
	}
	a := m.acqs.at(h)
	if !m.isNamed(a, c.Name, hash) {
		res.Status = StatusMismatch
		return
	}
	switch a.state() {
	case acqGranted:
		if mutantCancelLoses {
			return
		}
		res.Ended = 1
		m.endHold(h, hash, ReasonCancelled, !m.own(slot, c))
	case acqWaiting:
		m.endWait(h, hash, ReasonCancelled)
	case acqOutcome:
		// It holds nothing and never will.
	}
}

// cancelUnseen remembers a cancel that came before its acquire.
func (m *Machine) cancelUnseen(slot uint32, c *Command, hash uint64, res *Result) {
	if c.Acquire.Seq != 0 && c.Acquire.Seq < m.regs.at(slot).doneBelow {
		return
	}
	if !m.ownsName(c.Name, hash) {
		res.Status = StatusNotOwner
		return
	}
	if mutantUnseenCancel || mutantOldAttachment {
		return
	}
	if !m.spareOutcome(slot) {
		res.Status = StatusLimit
		res.LimitName, res.LimitValue = m.limits.name(limitOutcomesPerRegistration)
		return
	}
	m.remember(m.newAcquire(slot, c.Acquire), hash, ReasonCancelled, StatusOK, limitNone)
}

// waitOver ends a wait whose limit has passed; it never touches a hold.
func (m *Machine) waitOver(c *Command, res *Result) {
	res.Status = StatusNoEffect
	slot, ok := m.numbers[c.Registration]
	if !ok || !oneID(c.Acquire) {
		return
	}
	h := m.findAcquire(slot, c.Acquire)
	if h == none {
		return
	}
	hash := HashName(c.Name)
	a := m.acqs.at(h)
	if mutantWaitOverFrees && a.state() == acqGranted {
		m.endHold(h, hash, ReasonWaitOver, true)
		res.Status = StatusOK
		return
	}
	if a.state() != acqWaiting || !m.isNamed(a, c.Name, hash) || m.waits.at(uint32(a.wall)).deadline > m.time {
		return
	}
	m.endWait(h, hash, ReasonWaitOver)
	m.inForce(slot, res)
	res.Status = StatusOK
}

// wake ends a lock-delay whose time is over.
func (m *Machine) wake(c *Command, res *Result) {
	res.Status = StatusNoEffect
	lock := m.touch(c.Name, HashName(c.Name))
	if lock == none || m.locks.at(lock).extra == none {
		return
	}
	x := m.extras.at(m.locks.at(lock).extra)
	if x.delayUntil == 0 || x.delayToken != c.Token || x.delayUntil > m.time {
		return
	}
	m.undelay(lock)
	res.Status = StatusOK
}

// forceRelease ends holds against their holders' will. No lock-delay follows:
// the operator vouches for it.
func (m *Machine) forceRelease(c *Command, res *Result) {
	if ValidateName(c.Name) != nil {
		res.Status = StatusInvalid
		return
	}
	hash := HashName(c.Name)
	if !m.ownsName(c.Name, hash) {
		res.Status = StatusNotOwner
		return
	}
	lock := m.touch(c.Name, hash)
	if lock == none {
		if c.Token != 0 {
			res.Status = StatusTokenNotCurrent
		}
		return
	}
	if c.Token != 0 {
		h := m.holdWith(lock, c.Token)
		if h == none {
			res.Status = StatusTokenNotCurrent
			return
		}
		res.EndedHolds = append(res.EndedHolds, m.holderView(m.acqs.at(h)))
		res.Ended = 1
		m.endHold(h, hash, ReasonForced, true)
		return
	}
	for h := m.locks.at(lock).holder; h != none; h = m.locks.at(lock).holder {
		if res.Ended < MaxHoldersShown {
			res.EndedHolds = append(res.EndedHolds, m.holderView(m.acqs.at(h)))
		}
		res.Ended++
		m.letGo(h, hash, ReasonForced, true)
	}
	m.settle(lock)
}
