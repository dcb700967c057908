package shard

import "github.com/cespare/xxhash/v2"

// recordKind is the kind of a record of a snapshot; stored, never renumber.
type recordKind uint8

const (
	recHeader       recordKind = 1
	recRegistration recordKind = 2
	recLock         recordKind = 3
	recHold         recordKind = 4 // of the lock before it, in order of grant
	recWait         recordKind = 5 // of the lock before it, in order of the queue
	recOutcome      recordKind = 6 // in order of their end
	recEnd          recordKind = 7
)

// The records below are the state by rule, in a form without handles: what is
// over but not yet removed is not in them, so that they, and the hash made of
// them, are equal on all replicas.

type headerRecord struct {
	id                              uint64
	index, term                     uint64
	time                            int64
	nextTok, nextReg, epoch0, order uint64
	limits                          Limits
	owns                            []Selector
}

func (c *coder) header(x *headerRecord) {
	c.uvarint(&x.id)
	c.uvarint(&x.index)
	c.uvarint(&x.term)
	c.varint(&x.time)
	c.uvarint(&x.nextTok)
	c.uvarint(&x.nextReg)
	c.uvarint(&x.epoch0)
	c.uvarint(&x.order)
	l := &x.limits
	for _, f := range []*uint32{
		&l.Registrations, &l.WaitersPerName, &l.WaitsPerRegistration, &l.HoldsPerRegistration,
		&l.ContendedPerRegistration, &l.OutcomesPerRegistration, &l.EventsPerRegistration,
	} {
		c.uvarint32(f)
	}
	n := c.count(len(x.owns))
	if c.reading && c.err == nil {
		x.owns = make([]Selector, n)
	}
	for i := range x.owns {
		s := &x.owns[i]
		c.text(&s.Prefix)
		k := c.count(len(s.Excluded))
		if c.reading && k > 0 && c.err == nil {
			s.Excluded = make([]string, k)
		}
		for j := range s.Excluded {
			c.text(&s.Excluded[j])
		}
		c.uvarint(&s.HashFirst)
		c.uvarint(&s.HashLast)
	}
}

// count codes the length of a list, each item of which takes at least a byte.
func (c *coder) count(n int) int {
	v := uint64(n)
	c.uvarint(&v)
	if c.reading && v > uint64(len(c.in)) {
		c.fail("more items than bytes")
		return 0
	}
	return int(v)
}

func (c *coder) registration(r *regRec) {
	c.uvarint((*uint64)(&r.number))
	c.raw16((*[16]byte)(&r.session))
	c.text(&r.client)
	c.varint(&r.ttl)
	c.uvarint(&r.epoch)
	c.uvarint(&r.attachment)
	c.uvarint(&r.doneBelow)
	c.varint(&r.lastUsed)
	n := c.count(len(r.events))
	if c.reading && n > 0 && c.err == nil {
		r.events = make([]EpochEvent, n)
	}
	for i := range r.events {
		e := &r.events[i]
		c.uvarint(&e.Epoch)
		c.text(&e.Name)
		c.uvarint((*uint64)(&e.Token))
		c.id(&e.Acquire)
		c.small((*uint8)(&e.Reason))
	}
}

type lockRecord struct {
	name       string
	mode       Mode
	limit      uint32
	delayUntil int64
	delayToken Token
	enqueued   uint64
}

func (c *coder) lock(x *lockRecord) {
	c.text(&x.name)
	c.small((*uint8)(&x.mode))
	c.uvarint32(&x.limit)
	c.varint(&x.delayUntil)
	c.uvarint((*uint64)(&x.delayToken))
	c.uvarint(&x.enqueued)
}

// acquireRecord is a hold, a wait or an outcome; the fields are those of
// acqRec, waitRec and, for outcomes, wall as the name's hash.
type acquireRecord struct {
	reg      Registration
	id       AcquireID
	token    uint64
	at       int64
	wall     int64
	permits  uint32
	delay    uint32
	mode     Mode
	deadline int64
	place    uint64
}

func (c *coder) acquireRecord(k recordKind, x *acquireRecord) {
	c.uvarint((*uint64)(&x.reg))
	c.id(&x.id)
	c.uvarint(&x.token)
	c.varint(&x.at)
	c.small((*uint8)(&x.mode))
	c.uvarint32(&x.permits)
	switch k {
	case recHold:
		c.varint(&x.wall)
		c.uvarint32(&x.delay)
	case recWait:
		c.uvarint32(&x.delay)
		c.varint(&x.deadline)
		c.uvarint(&x.place)
	case recOutcome:
		c.varint(&x.wall)
	}
}

type endRecord struct{ registrations, locks, holds, waits, outcomes uint64 }

func (c *coder) end(x *endRecord) {
	for _, f := range []*uint64{&x.registrations, &x.locks, &x.holds, &x.waits, &x.outcomes} {
		c.uvarint(f)
	}
}

func (c *coder) kind(k recordKind) { c.out = append(c.out, byte(k)) }

func (s *state) writeHeader(c *coder) {
	c.kind(recHeader)
	c.header(&headerRecord{
		id: uint64(s.id), index: s.index, term: s.term, time: s.time,
		nextTok: s.nextTok, nextReg: s.nextReg, epoch0: s.epoch0, order: s.nextOrd, limits: s.limits, owns: s.owns,
	})
}

func (s *state) writeRegistration(c *coder, slot uint32) {
	c.kind(recRegistration)
	c.registration(s.regs.at(slot))
}

// writeLock writes a name with its holds and waits; flush is called between
// records. It returns false if the name is free by rule.
func (s *state) writeLock(c *coder, h uint32, n *endRecord, flush func()) bool {
	l := s.locks.at(h)
	if l.length == 0 {
		return false
	}
	v, ok := s.look(l)
	if !ok {
		return false
	}
	c.kind(recLock)
	c.lock(&lockRecord{string(s.nameOf(l)), v.mode, v.limit, v.delayUntil, v.delayToken, v.enqueued})
	n.locks++
	flush()
	for h := v.holder; h != none; {
		a := s.acqs.at(h)
		c.kind(recHold)
		r := s.acquireRecord(a)
		c.acquireRecord(recHold, &r)
		n.holds++
		flush()
		if l.extra == none {
			break
		}
		h = a.lnext
	}
	for h := v.waiter; h != none; {
		a := s.acqs.at(h)
		c.kind(recWait)
		r := s.acquireRecord(a)
		w := s.waits.at(uint32(a.wall))
		r.wall, r.deadline, r.place = 0, w.deadline, w.place
		c.acquireRecord(recWait, &r)
		n.waits++
		flush()
		h = a.lnext
	}
	return true
}

func (s *state) acquireRecord(a *acqRec) acquireRecord {
	return acquireRecord{
		reg: s.regs.at(a.reg).number, id: s.acquireID(a), token: a.token, at: a.at, wall: a.wall,
		permits: a.permits, delay: uint32(a.delay), mode: a.mode,
	}
}

// writeOutcome writes an outcome; false if it is over by rule.
func (s *state) writeOutcome(c *coder, h uint32) bool {
	a := s.acqs.at(h)
	if !s.remembers(a) {
		return false
	}
	c.kind(recOutcome)
	r := s.acquireRecord(a)
	c.acquireRecord(recOutcome, &r)
	return true
}

// hash is a hash of the state by rule.
func (s *state) hash() uint64 {
	var c coder
	var n endRecord
	var sum uint64
	add := func() {
		sum += xxhash.Sum64(c.out)
		c.out = c.out[:0]
	}
	s.writeHeader(&c)
	add()
	for slot := s.firstReg; slot != none; slot = s.regs.at(slot).next {
		s.writeRegistration(&c, slot)
		add()
	}
	for h := uint32(1); h < s.locks.next; h++ {
		if s.writeLock(&c, h, &n, func() {}) {
			add()
		}
	}
	for h := s.outcomes.head; h != none; h = s.acqs.at(h).lnext {
		if s.writeOutcome(&c, h) {
			add()
		}
	}
	return sum
}

// Hash is equal on replicas with equal applied index, whatever they have
// removed of what is over, and whether or not they were restored from a
// snapshot. It reads the whole state, about half a second per million locks:
// where that stalls too much, use Snapshot.Hash on another goroutine.
func (m *Machine) Hash() uint64 { return m.hash() }
