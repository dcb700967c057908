// Package fakeservice is a model of the service as one client sees it: session
// streams of one gateway or several, over one truth that never fails. It is
// for tests. It is simple on purpose (linear searches, one map per thing), and
// its clock is an argument, so that tests can let it run fast or slow.
package fakeservice

import (
	"fmt"
	"slices"
	"strings"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"google.golang.org/grpc/codes"
)

// Time is the model's own clock.
type Time = time.Duration

// Hold is one hold.
type Hold struct {
	Session *Session
	Shard   uint32
	Reg     uint64
	Seq     uint64
	Name    string
	Token   uint64
	Mode    lockv1.Mode
	Permits uint32
	Limit   uint32
	delay   time.Duration
}

// wait is a queued acquire.
type wait struct {
	Hold
	until Time
}

// Session is what the model knows of one.
type Session struct {
	ID         string
	Client     string
	TTL        time.Duration
	attachment uint64
	stream     uint64 // 0: none
	regs       map[uint32]*reg
}

type reg struct {
	number   uint64
	deadline Time
	epoch    uint64
	events   []*lockv1.EpochEvent
	over     map[uint64]lockv1.EndReason // outcomes by seq
}

// Model is the service. Not safe for concurrent use.
type Model struct {
	Shards  uint32
	Send    func(stream uint64, events ...*lockv1.SessionEvent)
	OnGrant func(h *Hold, now Time)
	// Refuse, if set, may refuse an acquire.
	Refuse func(op *lockv1.AcquireOp) *lockv1.Failure

	sessions map[string]*Session
	order    []*Session
	streams  map[uint64]*Session
	holds    []*Hold
	waits    []*wait
	delayed  map[string]Time
	next     uint64 // tokens, registrations, epochs
}

// New makes a model with that many shards.
func New(shards uint32, send func(stream uint64, events ...*lockv1.SessionEvent)) *Model {
	return &Model{Shards: shards, Send: send, sessions: map[string]*Session{}, streams: map[uint64]*Session{}, delayed: map[string]Time{}, next: 1000}
}

// Holds lists what is held.
func (m *Model) Holds() []*Hold { return m.holds }

// Waits counts what waits.
func (m *Model) Waits() int { return len(m.waits) }

func (m *Model) shard(name string) uint32 {
	return 1 + uint32(len(name)+int(name[len(name)-1]))%m.Shards
}

// Frame takes a frame of a stream.
func (m *Model) Frame(stream uint64, f *lockv1.SessionRequest, now Time) {
	m.Tick(now)
	for _, op := range f.Ops {
		m.op(stream, op, now)
	}
}

// Hangup: a stream ended. Nothing is cancelled.
func (m *Model) Hangup(stream uint64) {
	if s := m.streams[stream]; s != nil && s.stream == stream {
		s.stream = 0
	}
	delete(m.streams, stream)
}

func ev(e *lockv1.SessionEvent) *lockv1.SessionEvent { return e }

func (m *Model) op(stream uint64, op *lockv1.SessionOp, now Time) {
	s := m.streams[stream]
	switch o := op.Op.(type) {
	case *lockv1.SessionOp_Open:
		m.next++
		s = &Session{ID: fmt.Sprintf("s_%d", m.next), Client: o.Open.Client, TTL: time.Duration(o.Open.GetTtlMs()) * time.Millisecond,
			attachment: 1, stream: stream, regs: map[uint32]*reg{}}
		m.sessions[s.ID], m.streams[stream] = s, s
		m.order = append(m.order, s)
		m.Send(stream, ev(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Opened{Opened: &lockv1.OpenedEvent{SessionId: s.ID, TtlMs: o.Open.GetTtlMs()}}}))
	case *lockv1.SessionOp_Resume:
		m.resume(stream, o.Resume, now)
	case nil:
	default:
		if s == nil || s.stream != stream {
			return // superseded
		}
		m.sessionOp(s, op, now)
	}
}

func (m *Model) resume(stream uint64, r *lockv1.ResumeOp, now Time) {
	s := m.sessions[r.SessionId]
	if s == nil {
		m.failed(stream, codes.FailedPrecondition, "SESSION_INVALID")
		return
	}
	if r.Attachment <= s.attachment {
		m.failed(stream, codes.Aborted, "ATTACHMENT_SUPERSEDED")
		return
	}
	if s.stream != 0 {
		m.failed(s.stream, codes.Aborted, "ATTACHMENT_SUPERSEDED")
	}
	s.attachment, s.stream = r.Attachment, stream
	m.streams[stream] = s
	m.Send(stream, ev(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Resumed{Resumed: &lockv1.ResumedEvent{TtlMs: uint64(s.TTL / time.Millisecond), Registrations: uint32(len(s.regs))}}}))
	m.inventory(s)
}

func (m *Model) failed(stream uint64, code codes.Code, reason string) {
	m.Send(stream, ev(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Failed{Failed: &lockv1.FailedEvent{
		Failure: &lockv1.Failure{Code: int32(code), Message: reason, Detail: &lockv1.ErrorDetail{Reason: reason}}}}}))
}

func (m *Model) inventory(s *Session) {
	for id := uint32(1); id <= m.Shards; id++ {
		r := s.regs[id]
		if r == nil {
			continue
		}
		inv := &lockv1.InventoryEvent{Shard: id, Registration: r.number, Epoch: r.epoch}
		for _, h := range m.holds {
			if h.Session == s && h.Shard == id {
				inv.Holds = append(inv.Holds, &lockv1.InventoryHold{Seq: h.Seq, Name: h.Name, Token: h.Token})
			}
		}
		for _, w := range m.waits {
			if w.Session == s && w.Shard == id {
				inv.Waits = append(inv.Waits, &lockv1.InventoryWait{Seq: w.Seq, Name: w.Name})
			}
		}
		m.Send(s.stream, ev(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Inventory{Inventory: inv}}))
	}
}

func (m *Model) at(s *Session, shard uint32, now Time) *reg {
	r := s.regs[shard]
	if r == nil {
		m.next++
		r = &reg{number: m.next, epoch: m.next, deadline: now + s.TTL, over: map[uint64]lockv1.EndReason{}}
		s.regs[shard] = r
	}
	return r
}

func (m *Model) sessionOp(s *Session, op *lockv1.SessionOp, now Time) {
	switch o := op.Op.(type) {
	case *lockv1.SessionOp_Renew:
		e := &lockv1.RenewedEvent{Number: o.Renew.Number}
		for id := uint32(1); id <= m.Shards; id++ {
			r := s.regs[id]
			if r == nil {
				continue
			}
			r.deadline = max(r.deadline, now+s.TTL)
			c := &lockv1.Covered{Shard: id, Registration: r.number, Epoch: r.epoch}
			var known uint64
			for _, k := range o.Renew.Known {
				if k.Shard == id && k.Registration == r.number {
					known = k.Epoch
				}
			}
			for _, ev := range r.events {
				if ev.Epoch > known {
					c.Events = append(c.Events, ev)
				}
			}
			e.Covered = append(e.Covered, c)
		}
		m.Send(s.stream, ev(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Renewed{Renewed: e}}))
	case *lockv1.SessionOp_Acquire:
		m.acquire(s, o.Acquire, now)
	case *lockv1.SessionOp_Cancel:
		r := m.at(s, m.shard(o.Cancel.Name), now)
		r.over[o.Cancel.Seq] = lockv1.EndReason_END_REASON_CANCELLED
		m.drop(s, o.Cancel.Seq, now)
		m.Send(s.stream, ev(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Cancelled{Cancelled: &lockv1.CancelledEvent{Seq: o.Cancel.Seq}}}))
	case *lockv1.SessionOp_Release:
		r := m.at(s, m.shard(o.Release.Name), now)
		e := &lockv1.ReleasedEvent{Seq: o.Release.Seq}
		if !m.drop(s, o.Release.Seq, now) && r.over[o.Release.Seq] != lockv1.EndReason_END_REASON_HOLD_OVER {
			e.Failure = &lockv1.Failure{Code: int32(codes.FailedPrecondition), Message: "not current", Detail: &lockv1.ErrorDetail{Reason: "TOKEN_NOT_CURRENT"}}
		}
		r.over[o.Release.Seq] = lockv1.EndReason_END_REASON_HOLD_OVER
		m.Send(s.stream, ev(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Released{Released: e}}))
	case *lockv1.SessionOp_Inventory:
		m.inventory(s)
	case *lockv1.SessionOp_Close:
		stream := s.stream
		s.stream = 0
		for id := uint32(1); id <= m.Shards; id++ {
			m.endReg(s, id, lockv1.LostReason_LOST_REASON_CLOSED, now)
		}
		m.Send(stream, ev(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Closed{Closed: &lockv1.ClosedEvent{}}}))
	}
}

func (m *Model) acquire(s *Session, a *lockv1.AcquireOp, now Time) {
	id := m.shard(a.Name)
	r := m.at(s, id, now)
	for _, h := range m.holds {
		if h.Session == s && h.Seq == a.Seq {
			m.tellGranted(h, r, now)
			return
		}
	}
	for _, w := range m.waits {
		if w.Session == s && w.Seq == a.Seq {
			m.tellWaiting(w)
			return
		}
	}
	if why, ok := r.over[a.Seq]; ok {
		m.ended(s, a.Seq, why, nil)
		return
	}
	if m.Refuse != nil {
		if f := m.Refuse(a); f != nil {
			m.ended(s, a.Seq, lockv1.EndReason_END_REASON_REFUSED, f)
			return
		}
	}
	w := &wait{Hold: Hold{Session: s, Shard: id, Reg: r.number, Seq: a.Seq, Name: a.Name, Mode: a.Mode, Permits: a.GetPermits(), Limit: a.GetLimit(),
		delay: time.Duration(a.GetLockDelayMs()) * time.Millisecond}, until: now + time.Duration(a.GetWaitMs())*time.Millisecond}
	m.waits = append(m.waits, w)
	m.advance(a.Name, now)
	if !slices.Contains(m.waits, w) {
		return
	}
	if a.GetWaitMs() == 0 {
		m.waits = slices.DeleteFunc(m.waits, func(x *wait) bool { return x == w })
		r.over[a.Seq] = lockv1.EndReason_END_REASON_BUSY
		m.ended(s, a.Seq, lockv1.EndReason_END_REASON_BUSY, nil)
		return
	}
	m.tellWaiting(w)
}

func (m *Model) holders(name string) (list []*lockv1.Holder) {
	for _, h := range m.holds {
		if h.Name == name {
			list = append(list, &lockv1.Holder{Client: h.Session.Client, Token: h.Token, Mode: h.Mode, Permits: max(h.Permits, 1)})
		}
	}
	return list
}

func (m *Model) ended(s *Session, seq uint64, why lockv1.EndReason, f *lockv1.Failure) {
	e := &lockv1.EndedEvent{Seq: seq, Reason: why, Failure: f}
	m.Send(s.stream, ev(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Ended{Ended: e}}))
}

func (m *Model) tellWaiting(w *wait) {
	pos := 0
	for _, x := range m.waits {
		if x == w {
			break
		}
		if x.Name == w.Name {
			pos++
		}
	}
	m.Send(w.Session.stream, ev(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Waiting{Waiting: &lockv1.WaitingEvent{Seq: w.Seq, Position: uint64(pos),
		Shard: w.Shard, Registration: w.Reg, Holders: m.holders(w.Name)}}}))
}

func (m *Model) tellGranted(h *Hold, r *reg, now Time) {
	m.Send(h.Session.stream, ev(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Granted{Granted: &lockv1.GrantedEvent{Seq: h.Seq, Token: h.Token,
		LeaseMs: uint64(max(r.deadline-now, 0) / time.Millisecond), Shard: h.Shard, Registration: r.number, Epoch: r.epoch}}}))
}

// fits reports whether a waiter may hold beside the present holders.
func (m *Model) fits(w *wait) bool {
	used := w.Permits
	for _, h := range m.holds {
		if h.Name != w.Name {
			continue
		}
		if h.Mode != w.Mode || h.Mode == lockv1.Mode_MODE_EXCLUSIVE {
			return false
		}
		used += h.Permits
	}
	return w.Mode != lockv1.Mode_MODE_COUNTED || used <= w.Limit
}

// advance grants what can be granted, in order.
func (m *Model) advance(name string, now Time) {
	for m.delayed[name] <= now {
		i := slices.IndexFunc(m.waits, func(w *wait) bool { return w.Name == name })
		if i < 0 || !m.fits(m.waits[i]) {
			return
		}
		w := m.waits[i]
		m.waits = slices.Delete(m.waits, i, i+1)
		m.next++
		h := w.Hold
		h.Token = m.next
		m.holds = append(m.holds, &h)
		if m.OnGrant != nil {
			m.OnGrant(&h, now)
		}
		m.tellGranted(&h, h.Session.regs[h.Shard], now)
	}
}

// drop removes the hold or wait of a seq.
func (m *Model) drop(s *Session, seq uint64, now Time) bool {
	m.waits = slices.DeleteFunc(m.waits, func(w *wait) bool {
		return w.Session == s && w.Seq == seq
	})
	for i, h := range m.holds {
		if h.Session == s && h.Seq == seq {
			m.holds = slices.Delete(m.holds, i, i+1)
			m.advance(h.Name, now)
			return true
		}
	}
	m.advanceAll(now)
	return false
}

func (m *Model) advanceAll(now Time) {
	var names []string
	for _, w := range m.waits {
		if !slices.Contains(names, w.Name) {
			names = append(names, w.Name)
		}
	}
	for _, n := range names {
		m.advance(n, now)
	}
}

// endReg ends a registration with everything that it holds.
func (m *Model) endReg(s *Session, id uint32, why lockv1.LostReason, now Time) {
	r := s.regs[id]
	if r == nil {
		return
	}
	delete(s.regs, id)
	m.waits = slices.DeleteFunc(m.waits, func(w *wait) bool { return w.Session == s && w.Shard == id })
	var gone []*Hold
	m.holds = slices.DeleteFunc(m.holds, func(h *Hold) bool {
		if h.Session == s && h.Shard == id {
			gone = append(gone, h)
			return true
		}
		return false
	})
	m.Send(s.stream, ev(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_RegistrationEnded{RegistrationEnded: &lockv1.RegistrationEndedEvent{
		Shard: id, Registration: r.number, Reason: why}}}))
	for _, h := range gone {
		if h.delay > 0 && why == lockv1.LostReason_LOST_REASON_EXPIRED {
			m.delayed[h.Name] = now + h.delay
		}
	}
	m.advanceAll(now)
}

// Tick expires what is due.
func (m *Model) Tick(now Time) {
	for _, s := range m.order {
		for id := uint32(1); id <= m.Shards; id++ {
			if r := s.regs[id]; r != nil && r.deadline < now {
				m.endReg(s, id, lockv1.LostReason_LOST_REASON_EXPIRED, now)
			}
		}
	}
	for _, w := range slices.Clone(m.waits) {
		if w.until < now && slices.Contains(m.waits, w) {
			m.waits = slices.DeleteFunc(m.waits, func(x *wait) bool { return x == w })
			w.Session.regs[w.Shard].over[w.Seq] = lockv1.EndReason_END_REASON_WAIT_OVER
			m.ended(w.Session, w.Seq, lockv1.EndReason_END_REASON_WAIT_OVER, nil)
		}
	}
	m.advanceAll(now)
}

// Force ends every hold of a name, as an operator would.
func (m *Model) Force(name string, now Time) {
	for _, h := range slices.Clone(m.holds) {
		if h.Name != name {
			continue
		}
		r := h.Session.regs[h.Shard]
		r.epoch++
		lost := &lockv1.LostHold{Name: name, Token: h.Token, Seq: h.Seq, Reason: lockv1.LostReason_LOST_REASON_FORCED}
		r.events = append(r.events, &lockv1.EpochEvent{Epoch: r.epoch, Kind: &lockv1.EpochEvent_Lost{Lost: lost}})
		r.over[h.Seq] = lockv1.EndReason_END_REASON_HOLD_OVER
		m.Send(h.Session.stream, ev(&lockv1.SessionEvent{Event: &lockv1.SessionEvent_Lost{Lost: &lockv1.LostEvent{Shard: h.Shard, Registration: r.number, Epoch: r.epoch, Hold: lost}}}))
		m.holds = slices.DeleteFunc(m.holds, func(x *Hold) bool { return x == h })
	}
	m.advanceAll(now)
}

// Describe tells who holds a name.
func (m *Model) Describe(name string) *lockv1.DescribeResponse {
	d := &lockv1.DescribeResponse{Name: name, Holders: m.holders(name), Shard: m.shard(name)}
	for _, h := range d.Holders {
		d.Mode = h.Mode
	}
	for _, w := range m.waits {
		if w.Name == name {
			d.Waiters++
		}
	}
	return d
}

// Current reports whether a token is that of a present hold.
func (m *Model) Current(name string, token uint64) bool {
	return slices.ContainsFunc(m.holds, func(h *Hold) bool { return h.Name == name && h.Token == token })
}

// String lists the state for failure messages.
func (m *Model) String() string {
	var b strings.Builder
	for _, h := range m.holds {
		fmt.Fprintf(&b, "hold %s token %d by %s seq %d\n", h.Name, h.Token, h.Session.Client, h.Seq)
	}
	for _, w := range m.waits {
		fmt.Fprintf(&b, "wait %s by %s seq %d\n", w.Name, w.Session.Client, w.Seq)
	}
	return b.String()
}
