// Package lease keeps the deadlines of the sessions registered in one shard,
// in the memory of that shard's leader. It is pure: the caller hands the time
// in and carries out what follows.
//
// # Invariants
//
//	L1  A deadline only moves later, by Renew or Shift; Grant and Hand are for
//	    the moment a leader begins (or a registration does).
//	L2  A registration is in the heap exactly while it is in the map; its heap
//	    key is never later than its deadline, except while it is expiring.
//	L3  Expired names a registration once; again only after Undo.
//
// Renewals don't touch the heap: an entry whose deadline has moved is put back
// when its old key comes up. So a renewal is one map access, and every
// registration costs one heap operation per TTL.
package lease

import (
	"math"
	"slices"

	"github.com/mortise-lock/mortise/shard"
)

// Time is a point on the leader's monotonic clock, in nanoseconds.
type Time = int64

// Table holds the deadlines of one shard's registrations for as long as one
// leader is in office. Not safe for concurrent use.
type Table struct {
	entries map[shard.Registration]*entry
	heap    []*entry
	// shift is the sum of all stalls: stored times are less by it.
	shift int64
}

type entry struct {
	reg      shard.Registration
	ttl      int64
	deadline Time
	heard    Time // math.MinInt64: never
	key      Time
	pos      int
	expiring bool
}

const never = math.MinInt64

// NewTable returns an empty table; size is how many registrations to expect.
func NewTable(size int) *Table {
	return &Table{entries: make(map[shard.Registration]*entry, size), heap: make([]*entry, 0, size)}
}

// Len is the number of registrations.
func (t *Table) Len() int { return len(t.heap) }

// Grant gives a registration one full TTL from now on. It counts as not heard
// from yet.
func (t *Table) Grant(reg shard.Registration, ttl int64, now Time) {
	now -= t.shift
	if e := t.entries[reg]; e != nil {
		e.ttl, e.deadline, e.heard, e.expiring = ttl, now+ttl, never, false
		t.move(e, e.deadline)
		return
	}
	e := &entry{reg: reg, ttl: ttl, deadline: now + ttl, heard: never, pos: len(t.heap)}
	e.key = e.deadline
	t.entries[reg] = e
	t.heap = append(t.heap, e)
	t.up(e.pos)
}

// Hand sets what a former leader handed over as left, if that is less than
// what the registration has.
func (t *Table) Hand(reg shard.Registration, left int64, now Time) {
	e := t.entries[reg]
	if e == nil {
		return
	}
	if d := now - t.shift + max(left, 0); d < e.deadline {
		e.deadline = d
		t.move(e, d)
	}
}

// Renew moves the deadline to a full TTL from now; false if the registration
// is not in the table.
func (t *Table) Renew(reg shard.Registration, now Time) bool {
	e := t.entries[reg]
	if e == nil {
		return false
	}
	now -= t.shift
	e.deadline = max(e.deadline, now+e.ttl)
	e.heard = max(e.heard, now)
	return true
}

// Expired appends at most limit registrations whose deadline has passed to dst, the
// longest overdue first, and marks them as expiring.
func (t *Table) Expired(now Time, limit int, dst []shard.Registration) []shard.Registration {
	now -= t.shift
	for limit > 0 && len(t.heap) > 0 && t.heap[0].key <= now {
		e := t.heap[0]
		if e.deadline > now {
			t.move(e, e.deadline)
			continue
		}
		e.expiring = true
		t.move(e, math.MaxInt64)
		dst = append(dst, e.reg)
		limit--
	}
	return dst
}

// Undo takes the mark of Expired back: the proposal had no effect or was lost.
func (t *Table) Undo(reg shard.Registration) {
	if e := t.entries[reg]; e != nil && e.expiring {
		e.expiring = false
		t.move(e, e.deadline)
	}
}

// Expiring tells whether an expiry of reg is proposed: nothing of it may be
// acknowledged.
func (t *Table) Expiring(reg shard.Registration) bool {
	e := t.entries[reg]
	return e != nil && e.expiring
}

// Forget removes a registration that has ended.
func (t *Table) Forget(reg shard.Registration) {
	e := t.entries[reg]
	if e == nil {
		return
	}
	delete(t.entries, reg)
	last := len(t.heap) - 1
	moved := t.heap[last]
	t.heap[last] = nil
	t.heap = t.heap[:last]
	if moved != e {
		t.heap[e.pos] = moved
		moved.pos = e.pos
		t.down(moved.pos)
		t.up(moved.pos)
	}
}

// Remaining is what the deadline has left at now (0 if it has passed), and at
// most a TTL.
func (t *Table) Remaining(reg shard.Registration, now Time) (left int64, ok bool) {
	e := t.entries[reg]
	if e == nil {
		return 0, false
	}
	return min(max(e.deadline-(now-t.shift), 0), e.ttl), true
}

// Shift moves every deadline later by d, because the whole node stood still
// for that long.
func (t *Table) Shift(d int64) {
	if d > 0 {
		t.shift += d
	}
}

// Left is a registration and what its deadline has left.
type Left struct {
	Registration shard.Registration
	Left         int64
}

// Silent returns the registrations that were not heard from within a third of
// their TTL, in order of number.
func (t *Table) Silent(now Time) []Left {
	now -= t.shift
	var s []Left
	for _, e := range t.heap {
		if e.heard == never || now-e.heard > e.ttl/3 {
			s = append(s, Left{e.reg, max(e.deadline-now, 0)})
		}
	}
	slices.SortFunc(s, func(a, b Left) int {
		if a.Registration < b.Registration {
			return -1
		}
		return 1
	})
	return s
}

// Next is when Expired should be asked again; early is harmless. false: nothing
// can expire.
func (t *Table) Next() (Time, bool) {
	if len(t.heap) == 0 || t.heap[0].key == math.MaxInt64 {
		return 0, false
	}
	return t.heap[0].key + t.shift, true
}

func less(a, b *entry) bool {
	return a.key < b.key || a.key == b.key && a.reg < b.reg
}

func (t *Table) move(e *entry, key Time) {
	e.key = key
	t.down(e.pos)
	t.up(e.pos)
}

func (t *Table) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if !less(t.heap[i], t.heap[p]) {
			return
		}
		t.swap(i, p)
		i = p
	}
}

func (t *Table) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(t.heap) {
			return
		}
		if c+1 < len(t.heap) && less(t.heap[c+1], t.heap[c]) {
			c++
		}
		if !less(t.heap[c], t.heap[i]) {
			return
		}
		t.swap(i, c)
		i = c
	}
}

func (t *Table) swap(i, j int) {
	t.heap[i], t.heap[j] = t.heap[j], t.heap[i]
	t.heap[i].pos, t.heap[j].pos = i, j
}
