package core

import (
	"cmp"
	"slices"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"google.golang.org/grpc/codes"
)

// Session is the state of one session. Not safe for concurrent use.
type Session struct {
	cfg Config
	ttl time.Duration

	id         string // session string; "" before Opened
	attachment uint64
	over       bool
	closing    bool

	// Acquires.
	lastID    ID
	nextSeq   uint64
	doneBelow uint64
	bySeq     map[uint64]*acquire
	byID      map[ID]*acquire
	due       dueHeap
	backed    []*acquire

	// Leases.
	shards      map[uint32]*registration
	shardOrder  []uint32 // keys of shards, sorted
	lastRenew   uint64
	renewSent   [rememberedRenewals]Time
	renewAt     Time
	ackedAt     Time // when the newest acknowledged renewal was sent
	acked       bool
	inventoryAt Time // next comparison; 0: none planned
	inventoryOn Time // the last one

	// Streams.
	lastStream StreamID
	cur        *stream
	next       *stream
	endpoint   int // to dial next
	fails      int
	refusals   int // gateways in a row that did not know the session
	dialAt     Time
}

// New makes a session that wants a stream from now on.
func New(cfg Config, now Time) *Session {
	return &Session{cfg: cfg, ttl: cfg.TTL, nextSeq: 1, doneBelow: 1, bySeq: map[uint64]*acquire{}, byID: map[ID]*acquire{},
		shards: map[uint32]*registration{}, endpoint: cfg.First % cfg.Endpoints, dialAt: now}
}

// TTL returns the TTL in force.
func (s *Session) TTL() time.Duration { return s.ttl }

// DoneBelow is the done_below of the next frame.
func (s *Session) DoneBelow() uint64 { return s.doneBelow }

// Renewed returns when the newest acknowledged renewal was sent.
func (s *Session) Renewed() (Time, bool) { return s.ackedAt, s.acked }

// Live reports whether a stream is up and the session is open.
func (s *Session) Live() bool { return s.cur != nil && s.cur.established }

// Len counts the acquires that are not over, for tests and bounds.
func (s *Session) Len() int { return len(s.bySeq) }

// Margin is what a deadline is earlier than its lease.
func (s *Session) Margin() time.Duration {
	return s.ttl*time.Duration(s.cfg.DriftPPM)/1_000_000 + max(minAllowance, s.ttl/200)
}

// Tick serves what is due.
func (s *Session) Tick(now Time, out *Output) {
	s.tick(now, out)
	s.finish(now, out)
}

func (s *Session) tick(now Time, out *Output) {
	if s.over {
		return
	}
	for len(s.due) > 0 && s.due[0].due <= now && !s.over {
		a := s.due[0]
		s.due.set(a, 0)
		s.fire(a, now, out)
	}
	s.tickStreams(now, out)
	if s.ready() && now >= s.renewAt {
		s.renew(now, out)
	}
	if s.ready() && s.inventoryAt != 0 && now >= s.inventoryAt {
		s.askInventory(now, out)
	}
}

// finish fills in what every output has.
func (s *Session) finish(now Time, out *Output) {
	out.Stream, out.Wake = 0, 0
	if s.over {
		return
	}
	if s.cur != nil {
		out.Stream = s.cur.id
	}
	wake := s.streamWake(now)
	if s.ready() {
		wake = earlier(wake, s.renewAt)
		wake = earlier(wake, s.inventoryAt)
	}
	if len(s.due) > 0 {
		wake = earlier(wake, s.due[0].due)
	}
	out.Wake = wake
}

// earlier returns the smaller of two times of which 0 means never.
func earlier(a, b Time) Time {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// inOrder returns the acquires that fit, by seq (K9).
func (s *Session) inOrder(fits func(*acquire) bool) []*acquire {
	var list []*acquire
	for _, a := range s.bySeq {
		if fits(a) {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, func(a, b *acquire) int { return cmp.Compare(a.seq, b.seq) })
	return list
}

// Close ends the session: nothing is asked or believed any more; the service
// is told to free all.
func (s *Session) Close(now Time, out *Output) {
	if s.over || s.closing {
		s.finish(now, out)
		return
	}
	s.tick(now, out)
	s.closing = true
	for _, a := range s.inOrder(func(a *acquire) bool { return a.id != 0 }) {
		s.dismiss(a, LostClosed, nil, out)
	}
	if s.id == "" {
		s.end(LostSession, nil, out)
	} else if s.ready() {
		s.emit(out, &lockv1.SessionOp{Op: &lockv1.SessionOp_Close{Close: &lockv1.CloseOp{}}})
	}
	s.finish(now, out)
}

// dismiss tells the caller of an acquire that the session is over. What it
// released counts as released.
func (s *Session) dismiss(a *acquire, why LostReason, f *lockv1.Failure, out *Output) {
	switch a.phase {
	case phaseHeld:
		out.Results = append(out.Results, Result{ID: a.id, Kind: ResultLost, Token: a.token, Lost: why, Failure: f})
	case phaseReleasing:
		out.Results = append(out.Results, Result{ID: a.id, Kind: ResultReleased})
	case phaseQueued, phaseAsked, phaseWaiting, phasePaused, phaseBacked:
		out.Results = append(out.Results, Result{ID: a.id, Kind: ResultFailed, Failure: f,
			Reason: lockv1.EndReason_END_REASON_REGISTRATION_ENDED})
	}
	s.due.set(a, 0)
	delete(s.byID, a.id)
	a.id = 0
}

// end ends the session for good.
func (s *Session) end(why LostReason, f *lockv1.Failure, out *Output) {
	if s.over {
		return
	}
	for _, a := range s.inOrder(func(a *acquire) bool { return a.id != 0 }) {
		s.dismiss(a, why, f, out)
	}
	s.over = true
	s.due, s.backed = nil, nil
	clear(s.bySeq)
	if s.cur != nil {
		out.Drop = append(out.Drop, s.cur.id)
	}
	if s.next != nil {
		out.Drop = append(out.Drop, s.next.id)
	}
	s.cur, s.next = nil, nil
	out.Closed, out.Failure = true, f
}

// retryAfter says whether asking again makes sense, and when.
func (s *Session) retryAfter(f *lockv1.Failure, tries int) (time.Duration, bool) {
	hint := time.Duration(min(f.GetDetail().GetRetryAfterMs(), 60_000)) * time.Millisecond
	switch codes.Code(f.GetCode()) {
	case codes.Unavailable, codes.Aborted:
	case codes.ResourceExhausted:
		if hint == 0 {
			return 0, false // the refusal says that a retry is useless
		}
	default:
		return 0, false
	}
	if hint > 0 {
		return hint + s.jitter(hint/2), true
	}
	d := min(s.cfg.RetryBase<<min(tries, 16), s.cfg.RetryMax)
	return d/2 + s.jitter(d/2), true
}

// jitter returns 1 ns to d.
func (s *Session) jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 1
	}
	return 1 + time.Duration(s.cfg.Rand()%uint64(d))
}

// Abandon ends the session here without another word to the service.
func (s *Session) Abandon(now Time, out *Output) {
	s.end(LostSession, nil, out)
	s.finish(now, out)
}
