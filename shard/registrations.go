package shard

import (
	"slices"
	"strings"
)

// acting finds the registration that a command acts for, refuses superseded
// streams, and notes what every command of a session carries along.
func (m *Machine) acting(c *Command, res *Result) (slot uint32, ok bool) {
	slot, ok = m.numbers[c.Registration]
	if !ok {
		res.Status = StatusNoRegistration
		return none, false
	}
	r := m.regs.at(slot)
	if c.Attachment > 0 && c.Attachment < r.attachment && !mutantOldAttachment {
		res.Status = StatusOldAttachment
		m.inForce(slot, res)
		return none, false
	}
	r = m.regs.mut(&m.cow, slot)
	r.attachment = max(r.attachment, c.Attachment)
	r.lastUsed = m.time
	m.raiseDoneBelow(slot, c.DoneBelow)
	return slot, true
}

// inForce tells the caller what it needs to know of its registration.
func (m *Machine) inForce(slot uint32, res *Result) {
	r := m.regs.at(slot)
	res.Registration, res.Epoch, res.Attachment = r.number, r.epoch, r.attachment
}

// own reports whether the command counts as the session's own act: it names
// its acquire and came by the attachment in force.
func (m *Machine) own(slot uint32, c *Command) bool {
	return c.Acquire != (AcquireID{}) && c.Attachment == m.regs.at(slot).attachment
}

func (m *Machine) register(c *Command, res *Result) {
	if validateText("client", c.Client, MaxClient) != nil || c.TTL < MinTTL || c.TTL > MaxTTL || c.Session == (SessionID{}) {
		res.Status = StatusInvalid
		return
	}
	if slot, ok := m.sessions[c.Session]; ok {
		as := Command{Registration: m.regs.at(slot).number, Attachment: c.Attachment, DoneBelow: c.DoneBelow}
		if _, ok := m.acting(&as, res); ok {
			m.inForce(slot, res)
		}
		return
	}
	if m.regN >= uint64(m.limits.Registrations) {
		res.Status = StatusLimit
		res.LimitName, res.LimitValue = m.limits.name(limitRegistrations)
		return
	}
	slot := m.regs.add(&m.cow)
	*m.regs.mut(&m.cow, slot) = regRec{
		number: Registration(m.nextReg), session: c.Session, client: strings.Clone(c.Client), ttl: c.TTL,
		epoch: m.epoch0, attachment: c.Attachment, doneBelow: c.DoneBelow, lastUsed: m.time, state: regLive,
	}
	m.nextReg++
	m.enrol(slot)
	m.inForce(slot, res)
	m.event(Event{Kind: EventRegistered, Session: c.Session, Registration: res.Registration, Epoch: res.Epoch, TTL: c.TTL})
}

// enrol appends a live registration to the list in order of number and makes
// it findable.
func (m *Machine) enrol(slot uint32) {
	r := m.regs.mut(&m.cow, slot)
	r.prev, r.next = m.lastReg, none
	if m.lastReg != none {
		m.regs.mut(&m.cow, m.lastReg).next = slot
	} else {
		m.firstReg = slot
	}
	m.lastReg = slot
	m.regN++
	m.sessions[r.session] = slot
	m.numbers[r.number] = slot
	m.leaves.set(slot, r.lastUsed+LeaveAfter)
}

// news records an epoch event and tells the session.
func (m *Machine) news(slot uint32, e EpochEvent) {
	r := m.regs.mut(&m.cow, slot)
	r.epoch++
	e.Epoch = r.epoch
	r.events = append(r.events, e)
	if n := len(r.events) - int(m.limits.EventsPerRegistration); n > 0 {
		r.events = r.events[n:]
	}
	m.event(Event{
		Kind: EventLost, Session: r.session, Registration: r.number, Epoch: r.epoch,
		Acquire: e.Acquire, Name: e.Name, Token: e.Token, Reason: e.Reason,
	})
}

func (m *Machine) expire(c *Command, res *Result) {
	slot, ok := m.numbers[c.Registration]
	if !ok || m.regs.at(slot).epoch != c.Epoch || c.Term != m.term {
		res.Status = StatusNoEffect
		return
	}
	res.Registration, res.Epoch = c.Registration, c.Epoch
	res.Ended = m.endRegistration(slot, ReasonExpired)
}

func (m *Machine) close(c *Command, res *Result) {
	slot, ok := m.acting(c, res)
	if !ok {
		return
	}
	m.inForce(slot, res)
	reason := c.Reason
	if reason != ReasonRevoked {
		reason = ReasonClosed
	}
	res.Ended = m.endRegistration(slot, reason)
}

func (m *Machine) leave(c *Command, res *Result) {
	slot, ok := m.numbers[c.Registration]
	if !ok || !m.mayLeave(m.regs.at(slot), m.time) {
		res.Status = StatusNoEffect
		return
	}
	m.endRegistration(slot, ReasonLeft)
}

func (m *Machine) mayLeave(r *regRec, now int64) bool {
	return r.holds == 0 && r.waiting == 0 && now-r.lastUsed >= LeaveAfter
}

// endRegistration ends a registration with all that it has, in this entry:
// first every wait and every contended hold goes, then the names concerned
// pass on, in the order of the ended holds' tokens and then of the ended
// waits. Holds without waiters are free from here on by rule and are removed
// bit by bit (reap). It returns how many holds ended.
func (m *Machine) endRegistration(slot uint32, why Reason) int {
	r := m.regs.mut(&m.cow, slot)
	ended := int(r.holds)
	m.event(Event{Kind: EventRegistrationEnded, Session: r.session, Registration: r.number, Epoch: r.epoch, Reason: why})
	r.state, r.endedAt, r.reason = regEnded, m.time, why
	r.events = nil
	m.holds -= uint64(r.holds)
	m.waitN -= uint64(r.waiting)
	m.unenrol(slot)

	holds := m.gather(r.contended)
	touched := m.touched[:0]
	for _, h := range holds {
		touched = append(touched, m.acqs.at(h).lock)
	}
	for _, h := range holds {
		m.endContended(h, why)
	}
	waits := m.gather(m.regs.at(slot).waits)
	if mutantDeadWaiter {
		waits = nil
	}
	for _, h := range waits {
		touched = append(touched, m.acqs.at(h).lock)
		m.emitEnded(h, ReasonRegistrationEnded)
		m.dequeue(h)
		m.dropAcquire(h)
	}
	for _, lock := range touched {
		m.settle(lock)
	}
	m.touched = touched[:0]
	if !m.freeIfEmpty(slot) {
		m.leftovers = append(m.leftovers, endedReg{slot, m.regs.at(slot).number})
	}
	return ended
}

// endContended takes away one hold of an ending registration.
func (m *Machine) endContended(h uint32, why Reason) {
	a := m.acqs.at(h)
	lock, delay, token := a.lock, int64(a.delay)*1_000_000, Token(a.token)
	m.unhold(h)
	m.dropAcquire(h)
	if delay > 0 && delaysAfter(why) {
		m.delayLock(lock, m.time+delay, token)
	}
}

// gather returns a list's members in the order of their tokens, for waits in
// the order of their queueing. Valid until the next gather.
func (m *Machine) gather(l list) []uint32 {
	out := m.scratch[:0]
	for h := l.head; h != none; h = m.acqs.at(h).next {
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b uint32) int {
		if m.acqs.at(a).token < m.acqs.at(b).token {
			return -1
		}
		return 1
	})
	m.scratch = out
	return out
}

func (m *Machine) unenrol(slot uint32) {
	r := m.regs.at(slot)
	prev, next := r.prev, r.next
	if prev != none {
		m.regs.mut(&m.cow, prev).next = next
	} else {
		m.firstReg = next
	}
	if next != none {
		m.regs.mut(&m.cow, next).prev = prev
	} else {
		m.lastReg = prev
	}
	m.regN--
	if mutantReusedRegistration && uint64(r.number) == m.nextReg-1 {
		m.nextReg--
	}
	delete(m.sessions, r.session)
	delete(m.numbers, r.number)
	m.leaves.drop(slot)
}

// freeIfEmpty gives an ended registration's slot back once nothing refers to it.
func (m *Machine) freeIfEmpty(slot uint32) bool {
	r := m.regs.at(slot)
	if r.state != regEnded || r.plain.head != none || r.contended.head != none || r.waits.head != none ||
		r.outcomes[bySeqList].head != none || r.outcomes[byRIDList].head != none {
		return false
	}
	m.regs.remove(&m.cow, slot)
	return true
}

// reap removes up to budget leftovers of ended registrations.
func (m *Machine) reap(budget int) {
	for len(m.leftovers) > 0 {
		e := m.leftovers[0]
		for {
			r := m.regs.at(e.slot)
			if r.state != regEnded || r.number != e.number {
				break
			}
			if budget == 0 {
				return
			}
			budget--
			switch {
			case r.plain.head != none:
				m.bury(r.plain.head)
			case r.outcomes[bySeqList].head != none:
				m.forget(r.outcomes[bySeqList].head)
			default:
				m.forget(r.outcomes[byRIDList].head)
			}
		}
		m.leftovers = m.leftovers[1:]
	}
	m.leftovers = nil
}

// bury removes one uncontended hold of an ended registration. What is left of
// it by rule, a lock-delay, becomes a record of its own.
func (m *Machine) bury(h uint32) {
	a := m.acqs.at(h)
	lock, slot, token := a.lock, a.reg, Token(a.token)
	until := m.delayOf(a, m.regs.at(slot))
	l := m.locks.mut(&m.cow, lock)
	l.holder, l.mode = none, 0
	m.dropAcquire(h)
	m.freeIfEmpty(slot)
	if until > 0 {
		m.delayLock(lock, until, token)
	} else {
		m.removeLock(lock)
	}
}
