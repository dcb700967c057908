package shard

import (
	"bytes"
	"container/heap"
	"slices"
)

// Stats are figures about a shard's state.
type Stats struct {
	Holds         uint64
	Waits         uint64
	Registrations uint64
	// Bytes is the approximate memory that the state takes, with what is over
	// by rule but not yet removed.
	Bytes uint64
}

// Owns reports whether the shard owns the name.
func (m *Machine) Owns(name string) bool { return m.ownsName(name, HashName(name)) }

// holderView shows a hold to others.
func (m *Machine) holderView(a *acqRec) HolderView {
	return HolderView{
		Client: m.regs.at(a.reg).client, Token: Token(a.token), Mode: a.mode, Permits: a.permits,
		HeldFor: m.time - a.at, GrantedMS: a.wall,
	}
}

// holdersOf shows the first MaxHoldersShown holds of a name.
func (m *Machine) holdersOf(l *lockRec) []HolderView { return m.holders(l, MaxHoldersShown) }

func (m *Machine) holders(l *lockRec, most int) []HolderView {
	v, ok := m.look(l)
	if !ok || v.holder == none {
		return nil
	}
	out := make([]HolderView, 0, min(int(v.holders), most))
	for h := v.holder; h != none && len(out) < most; h = m.acqs.at(h).lnext {
		out = append(out, m.holderView(m.acqs.at(h)))
	}
	return out
}

// maxHoldersDescribed bounds the holders that Describe and List name.
const maxHoldersDescribed = 1000

// Describe shows a name. One that is free has only its Name set. Of the holders
// at most 1,000 are shown.
func (m *Machine) Describe(name string) LockView {
	h := m.findLock(name, HashName(name))
	if h == none {
		return LockView{Name: name}
	}
	return m.describe(name, m.locks.at(h), maxHoldersDescribed, MaxQueueShown)
}

func (m *Machine) describe(name string, l *lockRec, holders, queue int) LockView {
	out := LockView{Name: name}
	v, ok := m.look(l)
	if !ok {
		return out
	}
	out.Mode, out.Limit, out.Waiters = v.mode, v.limit, int(v.waiters)
	out.Holders = m.holders(l, holders)
	if v.delayUntil > m.time {
		out.Delayed = v.delayUntil - m.time
	}
	for h := v.waiter; h != none && len(out.Queue) < queue; {
		a := m.acqs.at(h)
		out.Queue = append(out.Queue, WaiterView{Client: m.regs.at(a.reg).client, Mode: a.mode, Permits: a.permits, Waiting: m.time - a.at})
		h = a.lnext
	}
	return out
}

// nameHeap keeps the smallest names, the largest of them on top.
type nameHeap []nameHeapItem

type nameHeapItem struct {
	name []byte
	lock uint32
}

func (h nameHeap) Len() int           { return len(h) }
func (h nameHeap) Less(i, j int) bool { return bytes.Compare(h[i].name, h[j].name) > 0 }
func (h nameHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *nameHeap) Push(x any)        { *h = append(*h, x.(nameHeapItem)) }
func (h *nameHeap) Pop() any {
	x := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return x
}

// List returns, in order of name, the first max locks in use or delayed whose
// names begin with prefix and are greater than after, and whether there are
// more. Holders are limited to MaxHoldersShown per lock and queues are not
// shown. There is no index by order of name (it would cost memory for every
// held lock): each call reads all names of the shard once, some tens of
// milliseconds per million.
func (m *Machine) List(prefix, after string, max int) (locks []LockView, more bool) {
	if max <= 0 {
		return nil, false
	}
	var top nameHeap
	p, low := []byte(prefix), []byte(after)
	for h := uint32(1); h < m.locks.next; h++ {
		l := m.locks.at(h)
		if l.length == 0 {
			continue
		}
		name := m.nameOf(l)
		if !bytes.HasPrefix(name, p) || bytes.Compare(name, low) <= 0 {
			continue
		}
		if len(top) == max && bytes.Compare(name, top[0].name) > 0 {
			if !more {
				_, more = m.look(l)
			}
			continue
		}
		if _, inUse := m.look(l); !inUse {
			continue
		}
		if len(top) == max {
			more = true
			top[0] = nameHeapItem{name, h}
			heap.Fix(&top, 0)
			continue
		}
		heap.Push(&top, nameHeapItem{name, h})
	}
	slices.SortFunc(top, func(a, b nameHeapItem) int { return bytes.Compare(a.name, b.name) })
	for _, t := range top {
		locks = append(locks, m.describe(string(t.name), m.locks.at(t.lock), MaxHoldersShown, 0))
	}
	return locks, more
}

// Inventory lists what a live registration holds, in order of token, and waits
// for, in order of queueing.
func (m *Machine) Inventory(r Registration) (epoch uint64, holds []InventoryHold, waits []InventoryWait, ok bool) {
	slot, ok := m.numbers[r]
	if !ok {
		return 0, nil, nil, false
	}
	g := m.regs.at(slot)
	for _, l := range []list{g.plain, g.contended} {
		for h := l.head; h != none; {
			a := m.acqs.at(h)
			holds = append(holds, InventoryHold{Acquire: m.acquireID(a), Name: string(m.nameOf(m.locks.at(a.lock))), Token: Token(a.token)})
			h = a.next
		}
	}
	slices.SortFunc(holds, func(a, b InventoryHold) int {
		if a.Token < b.Token {
			return -1
		}
		return 1
	})
	for _, h := range m.gather(g.waits) {
		a := m.acqs.at(h)
		waits = append(waits, InventoryWait{Acquire: m.acquireID(a), Name: string(m.nameOf(m.locks.at(a.lock)))})
	}
	return g.epoch, holds, waits, true
}

// Events returns the epoch events of a live registration after epoch since,
// oldest first; dropped says that some of them are not known any more. A since
// below the registration's first epoch (0, say) means all.
func (m *Machine) Events(r Registration, since uint64) (epoch uint64, events []EpochEvent, dropped bool, ok bool) {
	slot, ok := m.numbers[r]
	if !ok {
		return 0, nil, false, false
	}
	g := m.regs.at(slot)
	since = max(since, m.epoch0)
	if since >= g.epoch {
		return g.epoch, nil, false, true
	}
	n := g.epoch - since
	if n > uint64(len(g.events)) {
		n, dropped = uint64(len(g.events)), true
	}
	return g.epoch, slices.Clone(g.events[uint64(len(g.events))-n:]), dropped, true
}

// Lookup finds the live registration of a session.
func (m *Machine) Lookup(s SessionID) (RegistrationView, bool) {
	slot, ok := m.sessions[s]
	if !ok {
		return RegistrationView{}, false
	}
	return m.registrationView(slot), true
}

// Get finds a live registration by number.
func (m *Machine) Get(r Registration) (RegistrationView, bool) {
	slot, ok := m.numbers[r]
	if !ok {
		return RegistrationView{}, false
	}
	return m.registrationView(slot), true
}

// Registrations calls yield for the live registrations in order of number
// until it returns false.
func (m *Machine) Registrations(yield func(RegistrationView) bool) {
	for slot := m.firstReg; slot != none; slot = m.regs.at(slot).next {
		if !yield(m.registrationView(slot)) {
			return
		}
	}
}

func (m *Machine) registrationView(slot uint32) RegistrationView {
	r := m.regs.at(slot)
	return RegistrationView{
		Session: r.session, Client: r.client, TTL: r.ttl, Registration: r.number, Epoch: r.epoch,
		Attachment: r.attachment, Holds: int(r.holds), Waits: int(r.waiting),
	}
}

// CheckToken reports whether a present hold of the name has that token.
func (m *Machine) CheckToken(name string, t Token) bool {
	h := m.findLock(name, HashName(name))
	if h == none || t == 0 {
		return false
	}
	if a, _ := m.dead(m.locks.at(h)); a != nil {
		return false
	}
	return m.holdWith(h, t) != none
}

// Stats returns figures about the state.
func (m *Machine) Stats() Stats {
	b := len(m.locks.pages)*pageSize*20 + len(m.extras.pages)*pageSize*72 + len(m.acqs.pages)*pageSize*64 +
		len(m.waits.pages)*pageSize*24 + len(m.rids.pages)*pageSize*16 + len(m.regs.pages)*pageSize*240 +
		4*(cap(m.locks.free)+cap(m.acqs.free)+cap(m.extras.free)+cap(m.waits.free)+cap(m.rids.free)) +
		m.byName.bytes() + m.byID.bytes() + m.byToken.bytes() +
		m.deadlines.bytes() + m.delays.bytes() + m.idle.bytes() + m.leaves.bytes() +
		int(m.regN)*64
	for k := range m.names.class {
		b += len(m.names.class[k].pages)*namePage + 4*cap(m.names.class[k].free)
	}
	return Stats{Holds: m.holds, Waits: m.waitN, Registrations: m.regN, Bytes: uint64(b)}
}
