package shard

// Due returns at most max commands whose time has come at now: WaitOver, Wake
// and Leave, in no particular order. They stay due until they have applied, so
// the caller remembers what it has proposed. Due changes no state that replicas
// share.
func (m *Machine) Due(now LeaderTime, max int) []Command {
	var out []Command
	if max <= 0 {
		return nil
	}
	m.deadlines.due(int64(now), func(w uint32) bool {
		a := m.acqs.at(m.waits.at(w).acq)
		out = append(out, Command{
			Kind: KindWaitOver, Registration: m.regs.at(a.reg).number,
			Acquire: m.acquireID(a), Name: string(m.nameOf(m.locks.at(a.lock))),
		})
		return len(out) < max
	})
	if len(out) >= max {
		return out
	}
	m.delays.due(int64(now), func(h uint32) bool {
		x := m.extras.at(h)
		out = append(out, Command{Kind: KindWake, Name: string(m.nameOf(m.locks.at(x.lock))), Token: x.delayToken})
		return len(out) < max
	})
	// The times in leaves are the earliest possible ones: look, and put off.
	var again []uint32
	for len(out) < max {
		t, ok := m.leaves.first()
		if !ok || t.at > int64(now) {
			break
		}
		r := m.regs.at(t.h)
		switch {
		case m.mayLeave(r, int64(now)):
			out = append(out, Command{Kind: KindLeave, Registration: r.number})
			m.leaves.drop(t.h)
			again = append(again, t.h)
		case r.holds == 0 && r.waiting == 0:
			m.leaves.set(t.h, r.lastUsed+LeaveAfter)
		default:
			m.leaves.set(t.h, int64(now)+LeaveAfter)
		}
	}
	for _, h := range again {
		m.leaves.set(h, m.regs.at(h).lastUsed+LeaveAfter)
	}
	return out
}

// NextDue is the earliest time at which Due may return something. It may be
// early for registrations that could leave, never late for waits and
// lock-delays.
func (m *Machine) NextDue() (LeaderTime, bool) {
	at, found := int64(never), false
	for _, t := range []*timers{&m.deadlines, &m.delays, &m.leaves} {
		if f, ok := t.first(); ok && f.at < at {
			at, found = f.at, true
		}
	}
	if !found {
		return 0, false
	}
	return LeaderTime(at), true
}
