package shard

// findAcquire returns the registration's acquire with that identity, or none.
// An outcome whose time is over is forgotten on the way.
func (m *Machine) findAcquire(slot uint32, id AcquireID) uint32 {
	h := m.byID.find(idHash(slot, id), func(h uint32) bool {
		a := m.acqs.at(h)
		if a.reg != slot {
			return false
		}
		if a.bits&byRequest != 0 {
			if mutantMixedRequests {
				return id.Seq == 0
			}
			return *m.rids.at(uint32(a.id)) == id.RequestID
		}
		return id.Seq != 0 && a.id == id.Seq
	})
	if h != none && m.acqs.at(h).state() == acqOutcome && !m.remembers(m.acqs.at(h)) {
		m.forget(h)
		return none
	}
	return h
}

// newAcquire adds an acquire of a registration that has no such identity yet.
// It is in no list.
func (m *Machine) newAcquire(slot uint32, id AcquireID) uint32 {
	h := m.acqs.add(&m.cow)
	a := m.acqs.mut(&m.cow, h)
	a.reg = slot
	if id.Seq != 0 {
		a.id = id.Seq
	} else {
		rid := m.rids.add(&m.cow)
		*m.rids.mut(&m.cow, rid) = id.RequestID
		a.id = uint64(rid)
		a.bits |= byRequest
	}
	m.byID.insert(idHash(slot, id), h)
	return h
}

// dropAcquire takes an acquire out of its registration and forgets it. Its
// name must have been dealt with.
func (m *Machine) dropAcquire(h uint32) {
	a := m.acqs.at(h)
	m.byID.remove(idHash(a.reg, m.acquireID(a)), h)
	m.unlist(h)
	if a = m.acqs.at(h); tokenRemembered(a) {
		m.byToken.remove(tokenHash(Token(a.token)), h)
	}
	if a.bits&byRequest != 0 {
		m.rids.remove(&m.cow, uint32(a.id))
	}
	m.acqs.remove(&m.cow, h)
}

// listOf returns the registration's list that the acquire belongs in, by its
// state and bits, and the count that goes with it.
func listOf(r *regRec, a *acqRec) (*list, *uint32) {
	switch a.state() {
	case acqGranted:
		if a.bits&contended != 0 {
			return &r.contended, &r.contends
		}
		return &r.plain, nil
	case acqWaiting:
		return &r.waits, &r.waiting
	case acqOutcome:
		k := bySeqList
		if a.bits&byRequest != 0 {
			k = byRIDList
		}
		return &r.outcomes[k], &r.remembered[k]
	}
	panic("shard: an acquire without a state has no list")
}

// enlist appends the acquire to the list that its state calls for.
func (m *Machine) enlist(h uint32) {
	a := m.acqs.mut(&m.cow, h)
	r := m.regs.mut(&m.cow, a.reg)
	l, n := listOf(r, a)
	if n != nil {
		*n++
	}
	if a.state() == acqGranted {
		r.holds++
	}
	a.prev, a.next = l.tail, none
	if l.tail != none {
		m.acqs.mut(&m.cow, l.tail).next = h
	} else {
		l.head = h
	}
	l.tail = h
}

// unlist takes the acquire out of that list.
func (m *Machine) unlist(h uint32) {
	a := m.acqs.at(h)
	prev, next := a.prev, a.next
	r := m.regs.mut(&m.cow, a.reg)
	l, n := listOf(r, a)
	if n != nil {
		*n--
	}
	if a.state() == acqGranted {
		r.holds--
	}
	if prev != none {
		m.acqs.mut(&m.cow, prev).next = next
	} else {
		l.head = next
	}
	if next != none {
		m.acqs.mut(&m.cow, next).prev = prev
	} else {
		l.tail = prev
	}
}

// setContended moves a hold between its registration's two lists of holds.
func (m *Machine) setContended(h uint32, on bool) {
	a := m.acqs.at(h)
	if (a.bits&contended != 0) == on {
		return
	}
	m.unlist(h)
	a = m.acqs.mut(&m.cow, h)
	a.bits ^= contended
	m.enlist(h)
}

// remembers reports whether an outcome is still remembered by rule.
func (s *state) remembers(a *acqRec) bool {
	return a.at > s.time-OutcomeRetention && s.regs.at(a.reg).state == regLive
}

// remember turns an acquire that is in no list of its registration and has
// nothing to do with its name any more into an outcome.
func (m *Machine) remember(h uint32, hash uint64, why Reason, status Status, code limitCode) {
	a := m.acqs.mut(&m.cow, h)
	if a.bits&byRequest == 0 && a.id < m.regs.at(a.reg).doneBelow {
		m.byID.remove(idHash(a.reg, m.acquireID(a)), h)
		m.acqs.remove(&m.cow, h)
		return
	}
	a.setState(acqOutcome)
	a.bits &^= contended
	a.at, a.wall = m.time, int64(hash)
	a.lock, a.delay = none, 0
	a.permits = uint32(why) | uint32(status)<<8 | uint32(code)<<16
	a.lprev, a.lnext = m.outcomes.tail, none
	if m.outcomes.tail != none {
		m.acqs.mut(&m.cow, m.outcomes.tail).lnext = h
	} else {
		m.outcomes.head = h
	}
	m.outcomes.tail = h
	m.enlist(h)
	if tokenRemembered(m.acqs.at(h)) {
		m.byToken.insert(tokenHash(Token(m.acqs.at(h).token)), h)
	}
}

// tokenRemembered: the outcome of a hold that a unary call had, to be found by
// its token.
func tokenRemembered(a *acqRec) bool {
	return a.state() == acqOutcome && a.bits&byRequest != 0 && a.token != 0
}

// forget drops an outcome.
func (m *Machine) forget(h uint32) {
	a := m.acqs.at(h)
	prev, next, slot := a.lprev, a.lnext, a.reg
	if prev != none {
		m.acqs.mut(&m.cow, prev).lnext = next
	} else {
		m.outcomes.head = next
	}
	if next != none {
		m.acqs.mut(&m.cow, next).lprev = prev
	} else {
		m.outcomes.tail = prev
	}
	m.dropAcquire(h)
	m.freeIfEmpty(slot)
}

// raiseDoneBelow forgets the outcomes of seqs that a session is done with: by
// looking each up, or by going through the list, whichever is shorter.
func (m *Machine) raiseDoneBelow(slot uint32, to uint64) {
	r := m.regs.at(slot)
	from := r.doneBelow
	if to <= from {
		return
	}
	m.regs.mut(&m.cow, slot).doneBelow = to
	n := uint64(m.regs.at(slot).remembered[bySeqList])
	if n == 0 {
		return
	}
	if to-from <= n {
		for seq := max(from, 1); seq < to; seq++ {
			if h := m.findAcquire(slot, AcquireID{Seq: seq}); h != none && m.acqs.at(h).state() == acqOutcome {
				m.forget(h)
			}
		}
		return
	}
	for h := m.regs.at(slot).outcomes[bySeqList].head; h != none; {
		a := m.acqs.at(h)
		next := a.next
		if a.id < to {
			m.forget(h)
		}
		h = next
	}
}

// rememberedBy counts a registration's outcomes. The count includes some whose
// time is over only while it is below limit.
func (m *Machine) rememberedBy(slot uint32, limit uint32) uint32 {
	r := m.regs.at(slot)
	if r.remembered[0]+r.remembered[1] < limit {
		return r.remembered[0] + r.remembered[1]
	}
	for k := range r.outcomes {
		for {
			h := m.regs.at(slot).outcomes[k].head
			if h == none || m.remembers(m.acqs.at(h)) {
				break
			}
			m.forget(h)
		}
	}
	r = m.regs.at(slot)
	return r.remembered[0] + r.remembered[1]
}
