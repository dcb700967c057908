package core

import (
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"google.golang.org/grpc/codes"
)

// stream is one attempt: dialled (next), then in use (cur).
type stream struct {
	id          StreamID
	endpoint    int
	until       Time // the dial is given up then
	begunAt     Time
	heardAt     Time
	heard       bool
	established bool   // Opened or Resumed came
	leaving     bool   // the gateway asked us to go
	acked       uint64 // newest renewal acknowledged on it, or the one before its first
	ready       bool   // operations may be sent
}

// ready reports whether operations may be sent.
func (s *Session) ready() bool { return s.cur != nil && s.cur.ready && !s.over }

func (s *Session) emit(out *Output, op *lockv1.SessionOp) { out.Ops = append(out.Ops, op) }

// silentAt is when the stream in use is to be doubted: a third of a TTL after
// the oldest unacknowledged renewal if nothing at all was heard since, two
// thirds if something was (a shard may be without a leader). Attempts that
// failed before lengthen it, since a resume may have to wait for an election.
func (s *Session) silentAt() Time {
	c := s.cur
	first := c.acked + 1
	if first > s.lastRenew {
		return 0
	}
	since := c.begunAt
	if s.lastRenew-first < rememberedRenewals {
		since = s.renewSent[first%rememberedRenewals]
	}
	patience := max(s.interval(), 100*time.Millisecond)
	if !c.established {
		patience += patience * time.Duration(min(s.fails, 6)) / 2
	} else if c.heard && c.heardAt > since {
		patience *= 2
	}
	return since + patience
}

func (s *Session) doubted(now Time) bool {
	if s.cur.leaving {
		return true
	}
	at := s.silentAt()
	return at != 0 && now >= at
}

func (s *Session) tickStreams(now Time, out *Output) {
	if s.next != nil {
		if now < s.next.until {
			return
		}
		out.Drop = append(out.Drop, s.next.id)
		s.dialFailed(now)
	}
	if s.cur != nil && !s.doubted(now) || now < s.dialAt {
		return
	}
	s.lastStream++
	ep := s.endpoint
	fresh := false
	if s.cur != nil {
		if ep == s.cur.endpoint {
			ep = (ep + 1) % s.cfg.Endpoints
		}
		fresh = ep == s.cur.endpoint
	}
	s.endpoint = (ep + 1) % s.cfg.Endpoints
	s.next = &stream{id: s.lastStream, endpoint: ep, until: now + min(max(s.ttl/10, 250*time.Millisecond), 2*time.Second)}
	out.Dial = append(out.Dial, Dial{Stream: s.next.id, Endpoint: ep, Fresh: fresh || s.fails >= s.cfg.Endpoints})
}

// streamWake is when the streams need attention.
func (s *Session) streamWake(now Time) Time {
	switch {
	case s.next != nil:
		return s.next.until
	case s.cur == nil:
		return max(s.dialAt, 1)
	case s.cur.leaving:
		return max(s.dialAt, 1)
	}
	if at := s.silentAt(); at != 0 {
		return max(at, s.dialAt)
	}
	return 0
}

// dialFailed plans the next attempt: the other gateways at once, then rounds
// with growing delays.
func (s *Session) dialFailed(now Time) {
	s.next = nil
	s.fails++
	if s.fails%s.cfg.Endpoints != 0 {
		s.dialAt = now + s.jitter(10*time.Millisecond)
		return
	}
	d := min(25*time.Millisecond<<min(s.fails/s.cfg.Endpoints, 10), maxDialBackoff, max(s.ttl/5, 25*time.Millisecond))
	s.dialAt = now + d/2 + s.jitter(d/2)
}

// Connected: the dialled stream is up, as far as anybody can tell.
func (s *Session) Connected(now Time, id StreamID, out *Output) {
	s.tick(now, out)
	switch {
	case s.over || s.next == nil || s.next.id != id:
		out.Drop = append(out.Drop, id)
	case s.cur != nil && !s.doubted(now):
		// The old one has come back meanwhile.
		out.Drop = append(out.Drop, id)
		s.next = nil
	default:
		if s.cur != nil {
			out.Drop = append(out.Drop, s.cur.id)
			if !s.cur.established {
				s.fails++
			}
		}
		s.cur, s.next = s.next, nil
		out.Ops = out.Ops[:0] // of the stream before
		s.begin(now, out)
	}
	s.finish(now, out)
}

// begin opens or resumes on the new stream, and says again everything that may
// not have arrived.
func (s *Session) begin(now Time, out *Output) {
	c := s.cur
	c.begunAt, c.acked = now, s.lastRenew
	if s.id == "" {
		s.attachment = 1
		ttl := uint64(s.cfg.TTL / time.Millisecond)
		s.emit(out, &lockv1.SessionOp{Op: &lockv1.SessionOp_Open{Open: &lockv1.OpenOp{Client: s.cfg.Client, TtlMs: &ttl}}})
		s.renew(now, out)
		return // acquires wait for Opened: a session that we never hear of must hold nothing
	}
	s.attachment++
	s.emit(out, &lockv1.SessionOp{Op: &lockv1.SessionOp_Resume{Resume: &lockv1.ResumeOp{SessionId: s.id, Attachment: s.attachment}}})
	s.renew(now, out)
	c.ready = true
	if s.closing {
		s.emit(out, &lockv1.SessionOp{Op: &lockv1.SessionOp_Close{Close: &lockv1.CloseOp{}}})
		return
	}
	for _, id := range s.shardOrder {
		r := s.shards[id]
		r.asked, r.pending = now, true
	}
	s.inventoryOn = now
	s.sendAll(now, out)
}

// sendAll sends every operation that is not known to be answered.
func (s *Session) sendAll(now Time, out *Output) {
	for _, a := range s.inOrder(func(*acquire) bool { return true }) {
		switch a.phase {
		case phaseQueued, phaseAsked, phaseWaiting:
			s.ask(a, now, out)
		case phaseReleasing:
			s.due.set(a, 0)
			a.resent = true
			s.emitRelease(a, out)
		case phaseCancelling:
			s.due.set(a, 0)
			s.emitCancel(a, out)
		}
	}
}

// Heard: the gateway gave a sign of life that is not a frame.
func (s *Session) Heard(now Time, id StreamID, out *Output) {
	s.tick(now, out)
	if s.cur != nil && s.cur.id == id {
		s.cur.heard, s.cur.heardAt = true, now
	}
	s.finish(now, out)
}

// Broken: a stream or a dial ended. f is why, as far as it is known.
func (s *Session) Broken(now Time, id StreamID, f *lockv1.Failure, out *Output) {
	s.tick(now, out)
	switch {
	case s.over:
	case s.next != nil && s.next.id == id:
		if s.fatal(f) {
			s.end(LostSession, f, out)
		} else {
			s.dialFailed(now)
		}
	case s.cur != nil && s.cur.id == id:
		s.lose(f, now, out)
	}
	s.tick(now, out)
	s.finish(now, out)
}

// lose gives up the stream in use.
func (s *Session) lose(f *lockv1.Failure, now Time, out *Output) {
	c := s.cur
	out.Drop = append(out.Drop, c.id)
	out.Ops = out.Ops[:0]
	s.cur = nil
	if s.closing && f == nil && c.established {
		// An orderly end after Close.
		s.end(LostSession, nil, out)
		return
	}
	if s.fatal(f) {
		s.end(LostSession, f, out)
		return
	}
	if s.next != nil {
		return // another one is on its way
	}
	if c.established {
		s.dialAt = now + s.jitter(10*time.Millisecond)
		return
	}
	s.dialFailed(now)
}

// fatal: no gateway will ever take this session.
func (s *Session) fatal(f *lockv1.Failure) bool {
	switch f.GetDetail().GetReason() {
	case "SESSION_INVALID", "SESSION_ENDED":
		// One gateway may be misconfigured; all of them are not.
		s.refusals++
		return s.id == "" || s.refusals >= s.cfg.Endpoints
	}
	switch codes.Code(f.GetCode()) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented, codes.InvalidArgument:
		return s.id == ""
	}
	return false
}
