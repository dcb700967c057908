package shard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"
)

// Restore reads a snapshot to its end. Errors wrap ErrCorrupt or
// ErrNewerFormat, or are the reader's own. Either the whole state is loaded,
// checked record by record, or none.
func Restore(r io.Reader) (*Machine, error) {
	rd := chunkReader{r: r}
	l := loader{m: newMachine()}
	if err := rd.head(); err != nil {
		return nil, err
	}
	for {
		payload, err := rd.chunk()
		if err != nil {
			return nil, err
		}
		if payload == nil {
			break
		}
		if err := l.records(payload); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	}
	if !l.done {
		return nil, fmt.Errorf("%w: the end record is missing", ErrCorrupt)
	}
	if mutantRebuiltToken {
		l.m.nextTok = max(l.m.index, 1)
	}
	return l.m, nil
}

// chunkReader checks the frame of a snapshot.
type chunkReader struct {
	r   io.Reader
	crc uint32
	buf []byte
}

// read fills b. An end of the input within it is corruption.
func (k *chunkReader) read(b []byte) error {
	if _, err := io.ReadFull(k.r, b); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("%w: it ends too early", ErrCorrupt)
		}
		return err
	}
	return nil
}

func (k *chunkReader) head() error {
	b := make([]byte, len(snapshotMagic)+4)
	if err := k.read(b); err != nil {
		return err
	}
	if string(b[:len(snapshotMagic)]) != snapshotMagic {
		return fmt.Errorf("%w: it does not begin like a snapshot of a lock shard", ErrCorrupt)
	}
	switch v := binary.LittleEndian.Uint32(b[len(snapshotMagic):]); {
	case v > snapshotFormat:
		return fmt.Errorf("%w: format %d, known up to %d", ErrNewerFormat, v, snapshotFormat)
	case v == 0:
		return fmt.Errorf("%w: format 0", ErrCorrupt)
	}
	k.crc = crc32.Checksum(b, castagnoli)
	return nil
}

// chunk returns the next payload, or nil at the end.
func (k *chunkReader) chunk() ([]byte, error) {
	var head [8]byte
	if err := k.read(head[:]); err != nil {
		return nil, err
	}
	n, sum := binary.LittleEndian.Uint32(head[:]), binary.LittleEndian.Uint32(head[4:])
	if n == 0 {
		if crc32.Update(k.crc, castagnoli, head[:4]) != sum {
			return nil, fmt.Errorf("%w: the checksum of the whole differs", ErrCorrupt)
		}
		switch extra, err := io.ReadFull(k.r, head[:1]); {
		case extra > 0:
			return nil, fmt.Errorf("%w: bytes behind the end", ErrCorrupt)
		case !errors.Is(err, io.EOF):
			return nil, err
		}
		return nil, nil
	}
	if n > maxChunk {
		return nil, fmt.Errorf("%w: a chunk of %d bytes", ErrCorrupt, n)
	}
	k.buf = slices.Grow(k.buf[:0], int(n))[:n]
	if err := k.read(k.buf); err != nil {
		return nil, err
	}
	if crc32.Checksum(k.buf, castagnoli) != sum {
		return nil, fmt.Errorf("%w: the checksum of a chunk differs", ErrCorrupt)
	}
	k.crc = crc32.Update(crc32.Update(k.crc, castagnoli, head[:]), castagnoli, k.buf)
	return k.buf, nil
}

// loader builds a machine from records.
type loader struct {
	m       *Machine
	n       endRecord
	stage   recordKind
	current uint32 // lock whose holds and waits are being read
	last    uint64 // token of its last hold
	lastOrd uint64
	lastPl  uint64
	done    bool
}

func (l *loader) records(payload []byte) error {
	c := coder{in: string(payload), reading: true}
	for len(c.in) > 0 {
		k := recordKind(c.byte())
		if l.done {
			return errors.New("records behind the end record")
		}
		if (l.stage == 0) != (k == recHeader) {
			return errors.New("the header is not the first record, or not the only one")
		}
		if err := l.order(k); err != nil {
			return err
		}
		if err := l.record(k, &c); err != nil {
			return err
		}
		if c.err != nil {
			return c.err
		}
	}
	return nil
}

// order checks that the kinds come in order, and finishes the lock before.
func (l *loader) order(k recordKind) error {
	rank := k
	if k == recHold || k == recWait {
		if l.stage != recLock || l.current == none {
			return errors.New("a hold or wait outside a lock")
		}
		return nil
	}
	if rank < l.stage {
		return errors.New("records out of order")
	}
	l.stage = rank
	if l.current != none {
		lock := l.current
		l.current = none
		return l.finishLock(lock)
	}
	return nil
}

func (l *loader) record(k recordKind, c *coder) error {
	switch k {
	case recHeader:
		var x headerRecord
		c.header(&x)
		if c.err != nil {
			return c.err
		}
		return l.header(&x)
	case recRegistration:
		var x regRec
		c.registration(&x)
		if c.err != nil {
			return c.err
		}
		return l.registration(&x)
	case recLock:
		var x lockRecord
		c.lock(&x)
		if c.err != nil {
			return c.err
		}
		return l.lock(&x)
	case recHold, recWait, recOutcome:
		var x acquireRecord
		c.acquireRecord(k, &x)
		if c.err != nil {
			return c.err
		}
		return l.acquire(k, &x)
	case recEnd:
		var x endRecord
		c.end(&x)
		if c.err != nil {
			return c.err
		}
		if x != l.n {
			return errors.New("the counts of the end record differ")
		}
		l.done = true
		return nil
	}
	return fmt.Errorf("unknown kind of record %d", k)
}

func counterOK(v uint64) bool { return v >= 1 && v <= 2*MaxCounter }

func (l *loader) header(x *headerRecord) error {
	if x.id > 1<<32-1 || x.time < 0 || x.time > maxTime ||
		!counterOK(x.nextTok) || !counterOK(x.nextReg) || !counterOK(x.epoch0) || x.order < 1 {
		return errors.New("a value of the header is out of range")
	}
	m := l.m
	m.id, m.index, m.term, m.time = ID(x.id), x.index, x.term, x.time
	m.nextTok, m.nextReg, m.epoch0, m.nextOrd = x.nextTok, x.nextReg, x.epoch0, x.order
	m.limits = x.limits
	for _, s := range x.owns {
		s.Prefix = strings.Clone(s.Prefix)
		for i := range s.Excluded {
			s.Excluded[i] = strings.Clone(s.Excluded[i])
		}
		m.owns = append(m.owns, s)
	}
	return nil
}

func (l *loader) registration(x *regRec) error {
	m := l.m
	if x.number < 1 || uint64(x.number) >= m.nextReg || m.lastReg != none && m.regs.at(m.lastReg).number >= x.number {
		return errors.New("registrations are not in order of number")
	}
	if _, twice := m.sessions[x.session]; twice || x.session == (SessionID{}) {
		return errors.New("a session is registered twice, or has no id")
	}
	if validateText("client", x.client, MaxClient) != nil || x.ttl < MinTTL || x.ttl > MaxTTL ||
		x.lastUsed < 0 || x.lastUsed > m.time || x.epoch < m.epoch0 {
		return errors.New("a value of a registration is out of range")
	}
	if uint64(len(x.events)) > min(uint64(m.limits.EventsPerRegistration), x.epoch-m.epoch0) {
		return errors.New("a registration has too many epoch events")
	}
	for i := range x.events {
		e := &x.events[i]
		if e.Epoch != x.epoch-uint64(len(x.events)-1-i) {
			return errors.New("epoch events are not numbered one by one")
		}
		e.Name = strings.Clone(e.Name)
	}
	x.client = strings.Clone(x.client)
	x.state = regLive
	slot := m.regs.add(&m.cow)
	*m.regs.mut(&m.cow, slot) = *x
	m.enrol(slot)
	l.n.registrations++
	return nil
}

func (l *loader) lock(x *lockRecord) error {
	m := l.m
	if ValidateName(x.name) != nil {
		return errors.New("a lock's name breaks the rules")
	}
	hash := HashName(x.name)
	if !m.ownsName(x.name, hash) {
		return errors.New("a lock whose name the shard does not own")
	}
	if m.findLock(x.name, hash) != none {
		return errors.New("a name has two records")
	}
	if x.mode > Counted || (x.mode == Counted) != (x.limit > 0) {
		return errors.New("a lock's mode and limit disagree")
	}
	if x.delayUntil < 0 || x.delayUntil > m.time+MaxLockDelay || (x.delayUntil == 0) != (x.delayToken == 0) || uint64(x.delayToken) >= m.nextTok {
		return errors.New("a lock-delay is out of range")
	}
	h := m.addLock(x.name, hash)
	m.locks.mut(&m.cow, h).mode = x.mode
	if x.mode != Exclusive || x.delayUntil != 0 || x.enqueued != 0 {
		e := m.extra(h)
		e.limit, e.enqueued = x.limit, x.enqueued
		e.delayUntil, e.delayToken = x.delayUntil, x.delayToken
	}
	l.current, l.last, l.lastOrd, l.lastPl = h, 0, 0, 0
	l.n.locks++
	return nil
}

func (l *loader) acquire(k recordKind, x *acquireRecord) error {
	m := l.m
	slot, ok := m.numbers[x.reg]
	if !ok {
		return errors.New("an acquire of an unknown registration")
	}
	if !oneID(x.id) || m.findAcquire(slot, x.id) != none {
		return errors.New("an acquire without an id, or with one that is known already")
	}
	if x.at < 0 || x.at > m.time || x.delay > MaxLockDelay/1_000_000 || x.mode > Counted {
		return errors.New("a value of an acquire is out of range")
	}
	if k == recOutcome {
		return l.outcome(slot, x)
	}
	if x.mode == 0 || x.permits == 0 || x.mode != Counted && x.permits != 1 {
		return errors.New("an acquire's mode and permits disagree")
	}
	h := m.newAcquire(slot, x.id)
	a := m.acqs.mut(&m.cow, h)
	a.token, a.at, a.permits, a.mode, a.delay, a.lock = x.token, x.at, x.permits, x.mode, uint16(x.delay), l.current
	if k == recHold {
		return l.hold(h, x)
	}
	return l.wait(h, x)
}

func (l *loader) hold(h uint32, x *acquireRecord) error {
	m := l.m
	lk := m.locks.mut(&m.cow, l.current)
	if x.token <= l.last || x.token >= m.nextTok {
		return errors.New("the tokens of a lock's holds do not rise, or were never issued")
	}
	l.last = x.token
	if x.mode != lk.mode || lk.mode == Exclusive && lk.holder != none {
		return errors.New("holds that exclude each other")
	}
	a := m.acqs.mut(&m.cow, h)
	a.wall = x.wall
	a.setState(acqGranted)
	if lk.extra == none {
		lk.holder = h
	} else {
		e := m.extras.mut(&m.cow, lk.extra)
		if e.waiters > 0 {
			return errors.New("a hold behind a wait")
		}
		if lk.mode == Counted && uint64(e.used)+uint64(x.permits) > uint64(e.limit) {
			return errors.New("more permits in use than the limit")
		}
		m.appendHolder(lk, e, h)
		if x.mode != Exclusive {
			a.bits |= contended
		}
	}
	if x.mode != Exclusive {
		m.byToken.insert(tokenHash(Token(x.token)), h)
	}
	m.enlist(h)
	m.holds++
	l.n.holds++
	return nil
}

func (l *loader) wait(h uint32, x *acquireRecord) error {
	m := l.m
	lk := m.locks.at(l.current)
	if lk.extra == none {
		return errors.New("a wait in a lock without a queue")
	}
	e := m.extras.mut(&m.cow, lk.extra)
	if x.token <= l.lastOrd || x.token >= m.nextOrd || x.place >= e.enqueued || e.waiters > 0 && x.place <= l.lastPl {
		return errors.New("waits out of order")
	}
	l.lastOrd, l.lastPl = x.token, x.place
	if x.deadline <= x.at || x.deadline > x.at+MaxWait {
		return errors.New("a wait limit out of range")
	}
	if (x.mode == Counted) != (lk.mode == Counted) || x.mode == Counted && x.permits > e.limit {
		return errors.New("a wait in a mode that its lock can't have")
	}
	w := m.waits.add(&m.cow)
	*m.waits.mut(&m.cow, w) = waitRec{deadline: x.deadline, place: x.place, acq: h}
	a := m.acqs.mut(&m.cow, h)
	a.wall = int64(w)
	a.setState(acqWaiting)
	m.appendWaiter(e, h)
	m.enlist(h)
	m.waitN++
	m.deadlines.set(w, x.deadline)
	l.n.waits++
	return nil
}

func (l *loader) outcome(slot uint32, x *acquireRecord) error {
	m := l.m
	st, code := Status(x.permits>>8), limitCode(x.permits>>16)
	okStatus := st == StatusOK || st == StatusModeConflict || st == StatusLimitDisagrees || st == StatusLimit
	if !okStatus || code >= limitCodes || x.permits>>24 != 0 || x.token >= m.nextTok || Reason(x.permits) > ReasonLeft {
		return errors.New("an outcome with an unknown end")
	}
	if x.at <= m.time-OutcomeRetention || m.outcomes.tail != none && m.acqs.at(m.outcomes.tail).at > x.at {
		return errors.New("outcomes out of order, or too old")
	}
	if x.id.Seq != 0 && x.id.Seq < m.regs.at(slot).doneBelow {
		return errors.New("an outcome below done_below")
	}
	h := m.newAcquire(slot, x.id)
	a := m.acqs.mut(&m.cow, h)
	a.token, a.mode = x.token, x.mode
	m.remember(h, uint64(x.wall), Reason(x.permits), st, code)
	m.acqs.mut(&m.cow, h).at = x.at
	l.n.outcomes++
	return nil
}

// finishLock checks what holds and waits of a lock must be together, and
// derives what records do not say.
func (l *loader) finishLock(lock uint32) error {
	m := l.m
	lk := m.locks.at(lock)
	if lk.extra == none {
		if lk.holder == none {
			return errors.New("a lock record of a free name")
		}
		return nil
	}
	e := m.extras.at(lk.extra)
	if e.waiters == 0 && e.enqueued != 0 {
		return errors.New("a queue that counts but is empty")
	}
	switch {
	case e.holders == 0 && e.waiters == 0:
		if e.delayUntil <= m.time || lk.mode != 0 {
			return errors.New("a lock record of a free name")
		}
	case e.waiters > 0:
		w := m.acqs.at(e.firstWaiter)
		if e.holders == 0 && w.mode != lk.mode {
			return errors.New("a lock's mode is not that of its first waiter")
		}
		if m.fits(lk, e, w.mode, w.permits) {
			return errors.New("a waiter that should have been granted")
		}
	case e.delayUntil != 0 && e.delayUntil <= m.time:
		return errors.New("a lock-delay that is over")
	}
	if e.holders > 0 && lk.mode == Exclusive {
		if e.delayUntil != 0 {
			return errors.New("an exclusive hold during a lock-delay")
		}
		m.setContended(lk.holder, e.waiters > 0)
	}
	m.retime(lock)
	for h := lk.holder; h != none; h = m.acqs.at(h).lnext {
		if r := m.regs.at(m.acqs.at(h).reg); r.contends+r.waiting > m.limits.ContendedPerRegistration {
			return errors.New("a registration with too many contended holds")
		}
	}
	return nil
}
