package shard

import (
	"slices"
	"sort"
)

// model is a naive lock shard: maps and slices, everything removed at once,
// written from the rules of doc.go and not from the machine.
type model struct {
	limits  Limits
	owns    Selector
	term    uint64
	time    int64
	wall    int64
	tok     uint64
	reg     uint64
	epoch0  uint64
	locks   map[string]*mLock
	regs    map[Registration]*mReg
	results []Result
	events  []Event
}

type mLock struct {
	name       string
	limit      uint32
	holds      []*mAcq
	queue      []*mAcq
	delayUntil int64
	delayToken Token
}

type mReg struct {
	view      RegistrationView
	doneBelow uint64
	lastUsed  int64
	events    []EpochEvent
	acqs      map[AcquireID]*mAcq
	order     []*mAcq
}

type mAcq struct {
	reg      *mReg
	id       AcquireID
	name     string
	mode     Mode
	permits  uint32
	delay    int64
	state    AcquireState
	status   Status
	reason   Reason
	limit    string
	limitVal uint64
	token    Token
	at       int64 // of grant, queueing or end
	wall     int64
	deadline int64
}

func newModel(cfg Config) *model {
	return &model{
		limits: cfg.Limits, owns: cfg.Owns[0], tok: cfg.Floor, reg: cfg.Floor, epoch0: cfg.Floor,
		locks: map[string]*mLock{}, regs: map[Registration]*mReg{},
	}
}

func (m *model) apply(term uint64, b Batch) {
	m.results, m.events = nil, nil
	m.term = term
	m.time = max(m.time, int64(b.Time))
	m.wall = b.WallMS
	for _, c := range b.Commands {
		m.results = append(m.results, m.command(c))
	}
}

// clean drops what time has ended; the model does it before every command.
func (m *model) clean() {
	for _, r := range m.regs {
		for id, a := range r.acqs {
			if a.state == AcquireEnded && (a.at+OutcomeRetention <= m.time || id.Seq != 0 && id.Seq < r.doneBelow) {
				delete(r.acqs, id)
			}
		}
	}
	for n, l := range m.locks {
		if len(l.queue) == 0 && l.delayUntil <= m.time {
			l.delayUntil, l.delayToken = 0, 0
		}
		if len(l.holds)+len(l.queue) == 0 {
			l.limit = 0
			if l.delayUntil == 0 {
				delete(m.locks, n)
			}
		}
	}
}

func (r *mReg) count(st AcquireState, f func(*mAcq) bool) (n uint32) {
	for _, a := range r.acqs {
		if a.state == st && (f == nil || f(a)) {
			n++
		}
	}
	return n
}

// contends counts holds that are not simply exclusive, and waits.
func (m *model) contends(r *mReg) uint32 {
	return r.count(AcquireWaiting, nil) + r.count(AcquireGranted, func(a *mAcq) bool {
		return a.mode != Exclusive || len(m.locks[a.name].queue) > 0
	})
}

func (m *model) acting(c Command, res *Result) *mReg {
	r := m.regs[c.Registration]
	if r == nil {
		res.Status = StatusNoRegistration
		return nil
	}
	defer m.inForce(r, res)
	if c.Attachment != 0 && c.Attachment < r.view.Attachment {
		res.Status = StatusOldAttachment
		return nil
	}
	r.view.Attachment = max(r.view.Attachment, c.Attachment)
	r.doneBelow = max(r.doneBelow, c.DoneBelow)
	r.lastUsed = m.time
	m.clean()
	return r
}

func (m *model) inForce(r *mReg, res *Result) {
	res.Registration, res.Epoch, res.Attachment = r.view.Registration, r.view.Epoch, r.view.Attachment
}

func (m *model) command(c Command) (res Result) {
	m.clean()
	defer m.clean()
	switch c.Kind {
	case KindRegister:
		for _, r := range m.regs {
			if r.view.Session == c.Session {
				c.Registration = r.view.Registration
				m.acting(c, &res)
				return res
			}
		}
		if uint32(len(m.regs)) >= m.limits.Registrations {
			return Result{Status: StatusLimit, LimitName: "registrations", LimitValue: uint64(m.limits.Registrations)}
		}
		r := &mReg{acqs: map[AcquireID]*mAcq{}, doneBelow: c.DoneBelow, lastUsed: m.time}
		r.view = RegistrationView{Session: c.Session, Client: c.Client, TTL: c.TTL, Registration: Registration(m.reg), Epoch: m.epoch0, Attachment: c.Attachment}
		m.reg++
		m.regs[r.view.Registration] = r
		m.inForce(r, &res)
		m.events = append(m.events, Event{Kind: EventRegistered, Session: c.Session, Registration: res.Registration, Epoch: res.Epoch, TTL: c.TTL})
	case KindAttach:
		m.acting(c, &res)
	case KindAcquire:
		m.acquire(c, &res)
	case KindWaitOver:
		res.Status = StatusNoEffect
		r := m.regs[c.Registration]
		if r == nil {
			return res
		}
		a := r.acqs[c.Acquire]
		if a == nil || a.state != AcquireWaiting || a.name != c.Name || a.deadline > m.time {
			return res
		}
		m.endWait(a, ReasonWaitOver)
		m.inForce(r, &res)
		res.Status = StatusOK
	case KindCancel:
		m.cancel(c, &res)
	case KindRelease:
		m.release(c, &res)
	case KindExpire:
		r := m.regs[c.Registration]
		if r == nil || r.view.Epoch != c.Epoch || c.Term != m.term {
			return Result{Status: StatusNoEffect}
		}
		res.Registration, res.Epoch = c.Registration, c.Epoch
		res.Ended = m.end(r, ReasonExpired)
	case KindClose:
		if r := m.acting(c, &res); r != nil {
			why := ReasonClosed
			if c.Reason == ReasonRevoked {
				why = ReasonRevoked
			}
			res.Ended = m.end(r, why)
		}
	case KindLeave:
		r := m.regs[c.Registration]
		if r == nil || r.count(AcquireGranted, nil)+r.count(AcquireWaiting, nil) > 0 || m.time-r.lastUsed < LeaveAfter {
			return Result{Status: StatusNoEffect}
		}
		m.end(r, ReasonLeft)
	case KindWake:
		l := m.locks[c.Name]
		if l == nil || l.delayUntil == 0 || l.delayToken != c.Token || l.delayUntil > m.time {
			return Result{Status: StatusNoEffect}
		}
		l.delayUntil, l.delayToken = 0, 0
		m.pass(l)
	case KindForceRelease:
		m.force(c, &res)
	case KindHandover:
		m.events = append(m.events, Event{Kind: EventHandover, Handover: c.Handover})
	}
	return res
}

func (l *mLock) fits(a *mAcq) bool {
	if l.delayUntil != 0 {
		return false
	}
	sum := uint64(a.permits)
	for _, h := range l.holds {
		if a.mode == Exclusive || h.mode == Exclusive {
			return false
		}
		sum += uint64(h.permits)
	}
	return a.mode != Counted || sum <= uint64(l.limit)
}

func (m *model) acquire(c Command, res *Result) {
	r := m.acting(c, res)
	if r == nil {
		return
	}
	if c.Acquire.Seq != 0 && c.Acquire.Seq < r.doneBelow {
		res.Status = StatusStale
		return
	}
	if a := r.acqs[c.Acquire]; a != nil {
		if a.name != c.Name || a.mode != 0 && a.mode != c.Mode {
			res.Status = StatusMismatch
			return
		}
		m.present(a, res)
		return
	}
	if !m.owns.Contains(c.Name) {
		res.Status = StatusNotOwner
		return
	}
	a := &mAcq{reg: r, id: c.Acquire, name: c.Name, mode: c.Mode, permits: max(c.Permits, 1), delay: c.LockDelay, at: m.time}
	refuse := func(st Status, why Reason, limit string, v uint32) {
		a.state, a.status, a.reason, a.limit, a.limitVal = AcquireEnded, st, why, limit, uint64(v)
		if limit != "outcomes_per_registration" || r.count(AcquireEnded, nil) < 2*m.limits.OutcomesPerRegistration {
			r.acqs[a.id] = a
		}
		m.present(a, res)
	}
	m.clean()
	l := m.locks[c.Name]
	in := l
	if in == nil {
		in = &mLock{name: c.Name}
	}
	inUse := len(in.holds)+len(in.queue) > 0
	lim := m.limits
	switch {
	case r.count(AcquireEnded, nil) >= lim.OutcomesPerRegistration:
		refuse(StatusLimit, 0, "outcomes_per_registration", lim.OutcomesPerRegistration)
		return
	case r.count(AcquireGranted, nil)+r.count(AcquireWaiting, nil) >= lim.HoldsPerRegistration:
		refuse(StatusLimit, 0, "holds_per_registration", lim.HoldsPerRegistration)
		return
	case m.contends(r) >= lim.ContendedPerRegistration && c.Mode != Exclusive:
		refuse(StatusLimit, 0, "contended_per_registration", lim.ContendedPerRegistration)
		return
	case inUse && (in.mode() == Counted) != (c.Mode == Counted):
		refuse(StatusModeConflict, 0, "", 0)
		return
	case inUse && c.Mode == Counted && in.limit != c.Limit:
		refuse(StatusLimitDisagrees, 0, "", 0)
		return
	}
	if !inUse {
		in.limit = c.Limit
	}
	if len(in.queue) == 0 && in.fits(a) {
		m.locks[c.Name] = in
		r.acqs[a.id] = a
		m.grant(in, a)
		m.present(a, res)
		return
	}
	if c.Wait == 0 {
		refuse(StatusOK, ReasonBusy, "", 0)
		return
	}
	switch {
	case uint32(len(in.queue)) >= lim.WaitersPerName:
		refuse(StatusLimit, 0, "waiters_per_name", lim.WaitersPerName)
		return
	case r.count(AcquireWaiting, nil) >= lim.WaitsPerRegistration:
		refuse(StatusLimit, 0, "waits_per_registration", lim.WaitsPerRegistration)
		return
	case m.contends(r) >= lim.ContendedPerRegistration:
		refuse(StatusLimit, 0, "contended_per_registration", lim.ContendedPerRegistration)
		return
	}
	if len(in.queue) == 0 && len(in.holds) == 1 && in.holds[0].mode == Exclusive {
		n := m.contends(in.holds[0].reg)
		if in.holds[0].reg == r {
			n++
		}
		if n >= lim.ContendedPerRegistration {
			refuse(StatusLimit, 0, "contended_per_registration", lim.ContendedPerRegistration)
			return
		}
	}
	a.state, a.deadline = AcquireWaiting, m.time+c.Wait
	r.acqs[a.id] = a
	r.order = append(r.order, a)
	in.queue = append(in.queue, a)
	m.present(a, res)
}

func (l *mLock) mode() Mode {
	switch {
	case len(l.holds) > 0:
		return l.holds[0].mode
	case len(l.queue) > 0:
		return l.queue[0].mode
	}
	return 0
}

func (m *model) grant(l *mLock, a *mAcq) {
	a.state, a.token, a.at, a.wall = AcquireGranted, Token(m.tok), m.time, m.wall
	m.tok++
	l.holds = append(l.holds, a)
	a.reg.order = without(a.reg.order, a)
}

func (m *model) pass(l *mLock) {
	for len(l.queue) > 0 && l.fits(l.queue[0]) {
		a := l.queue[0]
		l.queue = l.queue[1:]
		m.grant(l, a)
		m.emit(EventGranted, a, 0)
	}
	m.clean()
}

func (m *model) emit(k EventKind, a *mAcq, why Reason) {
	e := Event{Kind: k, Session: a.reg.view.Session, Registration: a.reg.view.Registration, Epoch: a.reg.view.Epoch, Acquire: a.id, Name: a.name, Reason: why}
	if k != EventEnded {
		e.Token = a.token
	} else if why == ReasonWaitOver {
		e.Holders = m.holders(a.name)
	}
	m.events = append(m.events, e)
}

func (m *model) present(a *mAcq, res *Result) {
	res.State, res.Status, res.Reason, res.LimitName, res.LimitValue = a.state, a.status, a.reason, a.limit, a.limitVal
	l := m.locks[a.name]
	switch {
	case a.state == AcquireGranted:
		res.Token = a.token
	case a.state == AcquireWaiting:
		res.Position = slices.Index(l.queue, a)
		res.Holders = m.holders(a.name)
	case a.status == StatusModeConflict || a.status == StatusLimitDisagrees:
		res.Holders = m.holders(a.name)
		if l != nil {
			res.Mode, res.Limit = l.mode(), l.limit
		}
	case a.reason == ReasonBusy || a.reason == ReasonWaitOver:
		res.Holders = m.holders(a.name)
	}
}

func (m *model) holders(name string) (out []HolderView) {
	l := m.locks[name]
	if l == nil {
		return nil
	}
	for _, a := range l.holds {
		out = append(out, HolderView{Client: a.reg.view.Client, Token: a.token, Mode: a.mode, Permits: a.permits, HeldFor: m.time - a.at, GrantedMS: a.wall})
	}
	return out
}

func without(s []*mAcq, a *mAcq) []*mAcq {
	return slices.DeleteFunc(slices.Clone(s), func(x *mAcq) bool { return x == a })
}

// over ends a hold or a wait without passing the name on.
func (m *model) over(a *mAcq, why Reason, news bool) *mLock {
	l := m.locks[a.name]
	if a.state == AcquireGranted && news {
		v := &a.reg.view
		v.Epoch++
		a.reg.events = append(a.reg.events, EpochEvent{Epoch: v.Epoch, Name: a.name, Token: a.token, Acquire: a.id, Reason: why})
		m.emit(EventLost, a, why)
	}
	l.holds, l.queue = without(l.holds, a), without(l.queue, a)
	a.reg.order = without(a.reg.order, a)
	a.state, a.reason, a.at = AcquireEnded, why, m.time
	return l
}

func (m *model) endWait(a *mAcq, why Reason) {
	m.emit(EventEnded, a, why)
	m.pass(m.over(a, why, false))
}

func (m *model) cancel(c Command, res *Result) {
	r := m.acting(c, res)
	if r == nil {
		return
	}
	defer m.inForce(r, res)
	a := r.acqs[c.Acquire]
	switch {
	case a == nil && c.Acquire.Seq != 0 && c.Acquire.Seq < r.doneBelow:
	case a == nil && !m.owns.Contains(c.Name):
		res.Status = StatusNotOwner
	case a == nil && r.count(AcquireEnded, nil) >= 2*m.limits.OutcomesPerRegistration:
		res.Status, res.LimitName, res.LimitValue = StatusLimit, "outcomes_per_registration", uint64(m.limits.OutcomesPerRegistration)
	case a == nil:
		r.acqs[c.Acquire] = &mAcq{reg: r, id: c.Acquire, name: c.Name, state: AcquireEnded, reason: ReasonCancelled, at: m.time}
	case a.name != c.Name:
		res.Status = StatusMismatch
	case a.state == AcquireGranted:
		res.Ended = 1
		m.pass(m.over(a, ReasonCancelled, c.Attachment != r.view.Attachment))
	case a.state == AcquireWaiting:
		m.endWait(a, ReasonCancelled)
	}
}

func (m *model) release(c Command, res *Result) {
	var r *mReg
	if c.Registration != 0 {
		if r = m.acting(c, res); r == nil {
			return
		}
		defer m.inForce(r, res)
	}
	if r == nil || c.Acquire == (AcquireID{}) {
		if !m.owns.Contains(c.Name) {
			res.Status = StatusNotOwner
			return
		}
		if l := m.locks[c.Name]; l != nil {
			for _, h := range l.holds {
				if h.token == c.Token && r != nil && h.reg == r && c.Attachment == 0 && r.view.Attachment == 0 {
					m.pass(m.over(h, ReasonReleased, false))
					return
				}
				if h.token == c.Token {
					m.pass(m.over(h, ReasonReleasedByToken, true))
					return
				}
			}
		}
		if r != nil {
			for _, a := range r.acqs {
				if a.id.Seq == 0 && a.state == AcquireEnded && a.name == c.Name && a.token != 0 && a.token == c.Token && releasedFor(a.reason) {
					return
				}
			}
		}
		res.Status = StatusTokenNotCurrent
		return
	}
	a := r.acqs[c.Acquire]
	right := a != nil && (c.Token == 0 || c.Token == a.token)
	switch {
	case a == nil && !m.owns.Contains(c.Name):
		res.Status = StatusNotOwner
	case a == nil:
		if c.Acquire.Seq == 0 || c.Acquire.Seq >= r.doneBelow {
			res.Status = StatusTokenNotCurrent
		}
	case a.name != c.Name:
		res.Status = StatusMismatch
	case a.state == AcquireGranted && right:
		if c.Attachment == r.view.Attachment {
			m.pass(m.over(a, ReasonReleased, false))
		} else {
			m.pass(m.over(a, ReasonReleasedByToken, true))
		}
	case a.state == AcquireEnded && right && a.token != 0 &&
		(a.reason == ReasonReleased || a.reason == ReasonReleasedByToken || a.reason == ReasonCancelled):
	default:
		res.Status = StatusTokenNotCurrent
		if a.state == AcquireEnded {
			res.Reason = a.reason
		}
	}
}

func (m *model) force(c Command, res *Result) {
	if !m.owns.Contains(c.Name) {
		res.Status = StatusNotOwner
		return
	}
	l := m.locks[c.Name]
	if l != nil {
		views := m.holders(c.Name)
		for i, h := range slices.Clone(l.holds) {
			if c.Token == 0 || c.Token == h.token {
				res.EndedHolds = append(res.EndedHolds, views[i])
				res.Ended++
				m.over(h, ReasonForced, true)
			}
		}
		m.pass(l)
	}
	if c.Token != 0 && res.Ended == 0 {
		res.Status = StatusTokenNotCurrent
	}
}

func (m *model) end(r *mReg, why Reason) int {
	m.events = append(m.events, Event{Kind: EventRegistrationEnded, Session: r.view.Session, Registration: r.view.Registration, Epoch: r.view.Epoch, Reason: why})
	var holds []*mAcq
	for _, a := range r.acqs {
		if a.state == AcquireGranted {
			holds = append(holds, a)
		}
	}
	sort.Slice(holds, func(i, j int) bool { return holds[i].token < holds[j].token })
	var names []*mLock
	for _, a := range r.order {
		m.emit(EventEnded, a, ReasonRegistrationEnded)
	}
	for _, a := range holds {
		l := m.over(a, why, false)
		if a.delay > 0 && (why == ReasonExpired || why == ReasonRevoked) && m.time+a.delay >= l.delayUntil {
			l.delayUntil, l.delayToken = m.time+a.delay, a.token
		}
		names = append(names, l)
	}
	for _, a := range slices.Clone(r.order) {
		names = append(names, m.over(a, why, false))
	}
	delete(m.regs, r.view.Registration)
	for _, l := range names {
		m.pass(l)
	}
	return len(holds)
}
