package shard

import (
	"github.com/cespare/xxhash/v2"
)

// lockRec is one name that is held, waited for, delayed, or held by a
// registration that has ended. 20 bytes. A name that is held exclusively by
// one acquire needs no more; everything else has an extra.
type lockRec struct {
	cell   uint32 // of the name
	hash   uint32 // lower half of HashName
	holder uint32 // first hold in order of grant, an acqRec
	extra  uint32
	length uint16 // of the name
	mode   Mode   // of the holds; of the first waiter if there are only waiters; 0 if neither
}

// extraRec is what a name needs beyond one exclusive hold.
type extraRec struct {
	lastHolder  uint32
	holders     uint32
	used        uint32 // permits in use
	limit       uint32 // counted: permits in all
	firstWaiter uint32
	lastWaiter  uint32
	waiters     uint32
	lock        uint32
	enqueued    uint64 // waits ever queued since this record was made
	delayUntil  int64  // 0: no lock-delay
	delayToken  Token
}

// acqState is the state of an acquire.
type acqState uint8

const (
	acqFree acqState = iota
	acqGranted
	acqWaiting
	acqOutcome
)

// acqRec is one acquire: a hold, a wait, or a remembered outcome. 64 bytes;
// some fields serve another purpose in each state.
type acqRec struct {
	// token of the hold. Waiting: the wait's number in the order of all waits
	// of the shard. Outcome: the token it once had, or 0.
	token uint64
	// id is the seq, or a handle of rids if byRequest.
	id uint64
	// at is the leader time of the grant; of the queueing; of the end.
	at int64
	// wall is the granting leader's wall clock in ms. Waiting: a handle of
	// waits. Outcome: HashName of the name.
	wall int64
	// lock is the name held or waited for; none for an outcome.
	lock uint32
	reg  uint32
	// next and prev link the registration's lists: plain holds, contended
	// holds, waits in order, outcomes in order.
	next, prev uint32
	// lnext and lprev link the name's holds in order of grant, the name's
	// queue, or all outcomes of the shard in order of their end.
	lnext, lprev uint32
	// permits taken or wanted. Outcome: reason, status<<8, limitCode<<16.
	permits uint32
	delay   uint16 // lock-delay in ms
	mode    Mode   // 0: the outcome of an acquire that was never seen
	bits    uint8  // acqState, byRequest, contended
}

const (
	stateBits = 0x03
	byRequest = 0x04 // id is a handle of rids
	contended = 0x08 // hold is in its registration's contended list
)

func (a *acqRec) state() acqState { return acqState(a.bits & stateBits) }

func (a *acqRec) setState(s acqState) { a.bits = a.bits&^stateBits | uint8(s) }

func (a *acqRec) reason() Reason   { return Reason(a.permits) }
func (a *acqRec) status() Status   { return Status(a.permits >> 8) }
func (a *acqRec) limit() limitCode { return limitCode(a.permits >> 16) }

// waitRec is the part of a wait that holds have no use for.
type waitRec struct {
	deadline int64  // leader time of the wait limit
	place    uint64 // its number in the name's queue
	acq      uint32
}

// list is a doubly linked list of acquires of one registration.
type list struct{ head, tail uint32 }

// outcomeKinds: outcomes of seqs and of request ids are listed apart, because
// only the former end with done_below.
const (
	bySeqList = 0
	byRIDList = 1
)

type regState uint8

const (
	regFree regState = iota
	regLive
	// regEnded: over, but some of its uncontended holds are still in their
	// slabs. They are free by rule; only a lock-delay can follow from them.
	regEnded
)

// regRec is one registration.
type regRec struct {
	number     Registration
	session    SessionID
	client     string
	ttl        int64
	epoch      uint64
	attachment uint64
	doneBelow  uint64
	lastUsed   int64
	endedAt    int64
	events     []EpochEvent // newest last; never written below its length
	plain      list         // exclusive holds without waiters, no order
	contended  list         // the other holds, no order
	waits      list         // in no particular order
	outcomes   [2]list      // in order of their end
	remembered [2]uint32    // lengths of outcomes
	next, prev uint32       // registrations in order of number
	holds      uint32
	contends   uint32
	waiting    uint32
	state      regState
	reason     Reason // why it ended
}

// state is all that the shard's replicas agree on, in slabs. A snapshot is a
// copy of it that shares the pages.
type state struct {
	id      ID
	owns    []Selector
	limits  Limits
	index   uint64
	term    uint64
	time    int64
	wallMS  int64
	nextTok uint64
	nextReg uint64
	epoch0  uint64 // first epoch of a registration
	nextOrd uint64 // order number of the next wait

	locks  slab[lockRec]
	extras slab[extraRec]
	acqs   slab[acqRec]
	waits  slab[waitRec]
	rids   slab[[16]byte]
	regs   slab[regRec]
	names  *names

	firstReg, lastReg uint32 // live registrations in order of number
	outcomes          list   // all outcomes in order of their end, by lnext

	holds uint64 // of live registrations
	waitN uint64
	regN  uint64
}

func (s *state) nameOf(l *lockRec) []byte { return s.names.at(l.cell, l.length) }

func (s *state) acquireID(a *acqRec) AcquireID {
	if a.bits&byRequest != 0 {
		return AcquireID{RequestID: *s.rids.at(uint32(a.id))}
	}
	return AcquireID{Seq: a.id}
}

// ownsName reports whether the shard owns the name.
func (s *state) ownsName(name string, hash uint64) bool {
	for i := range s.owns {
		if s.owns[i].contains(name, hash) {
			return true
		}
	}
	return false
}

// delayOf is the lock-delay that an ended registration's uncontended hold left
// behind, by rule: until which time, or 0.
func (s *state) delayOf(a *acqRec, r *regRec) int64 {
	if a.delay == 0 || !delaysAfter(r.reason) {
		return 0
	}
	until := r.endedAt + int64(a.delay)*1_000_000
	if until <= s.time {
		return 0
	}
	return until
}

// delaysAfter reports whether a lock-delay follows an end for that reason: the
// holder may still be running and nobody vouched for it.
func delaysAfter(r Reason) bool { return r == ReasonExpired || r == ReasonRevoked }

// dead returns the hold that is in the way only physically: the single hold of
// a registration that has ended. Such a name has no waiters and no other hold.
func (s *state) dead(l *lockRec) (*acqRec, *regRec) {
	if l.holder == none {
		return nil, nil
	}
	a := s.acqs.at(l.holder)
	r := s.regs.at(a.reg)
	if r.state != regEnded {
		return nil, nil
	}
	return a, r
}

// lockView is one name as it is by rule, whatever has been removed so far.
type lockState struct {
	holder     uint32
	holders    uint32
	waiter     uint32
	waiters    uint32
	mode       Mode
	limit      uint32
	used       uint32
	delayUntil int64
	delayToken Token
	enqueued   uint64
}

// look returns the name's state by rule; ok is false if it is free.
func (s *state) look(l *lockRec) (v lockState, ok bool) {
	if a, r := s.dead(l); a != nil {
		until := s.delayOf(a, r)
		if until == 0 {
			return v, false
		}
		return lockState{delayUntil: until, delayToken: Token(a.token)}, true
	}
	if l.extra == none {
		return lockState{holder: l.holder, holders: 1, mode: l.mode, used: 1}, true
	}
	x := s.extras.at(l.extra)
	v = lockState{
		holder: l.holder, holders: x.holders, waiter: x.firstWaiter, waiters: x.waiters,
		mode: l.mode, limit: x.limit, used: x.used,
		delayUntil: x.delayUntil, delayToken: x.delayToken, enqueued: x.enqueued,
	}
	if x.waiters == 0 {
		v.enqueued = 0
		if x.delayUntil <= s.time {
			v.delayUntil, v.delayToken = 0, 0
		}
		if x.holders == 0 && v.delayUntil == 0 {
			return lockState{}, false
		}
	}
	return v, true
}

// nameHash32 is the hash by which names are indexed.
func nameHash32(hash uint64) uint32 { return uint32(hash) }

// idHash is the hash by which acquires are indexed.
func idHash(reg uint32, id AcquireID) uint32 {
	if mutantMixedRequests {
		clear(id.RequestID[:])
	}
	var b [20]byte
	b[0], b[1], b[2], b[3] = byte(reg), byte(reg>>8), byte(reg>>16), byte(reg>>24)
	if id.Seq != 0 {
		for i := range 8 {
			b[4+i] = byte(id.Seq >> (8 * i))
		}
		return uint32(xxhash.Sum64(b[:12]))
	}
	copy(b[4:], id.RequestID[:])
	return uint32(xxhash.Sum64(b[:]))
}

func tokenHash(t Token) uint32 {
	x := uint64(t) * 0x9e3779b97f4a7c15
	return uint32(x >> 32)
}
