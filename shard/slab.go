package shard

import "sync/atomic"

// A slab is an array of records that are named by handles (uint32, never 0)
// and kept in pages. Pages are what snapshots share with the machine: taking a
// snapshot copies the list of pages, and the machine copies a page before the
// first write after that (copy on write). A page is never written by anyone
// but the machine, and never while an open snapshot shows it.
//
// mut returns a record for writing, at returns it for reading. A pointer from
// at must not be written through, and must not be used after a mut of the same
// slab, which may have replaced the page.

const (
	pageShift = 8
	pageSize  = 1 << pageShift
	pageMask  = pageSize - 1
)

type slab[T any] struct {
	pages []*[pageSize]T
	made  []uint64 // per page: cow.now when it was made or copied
	next  uint32   // handles from here on were never given out
	free  []uint32
}

// cow says which pages are shared with snapshots.
type cow struct {
	now    uint64 // number of the snapshot that will be taken next
	shared uint64 // pages made at or before this are shared with an open snapshot
	open   []*shareMark
}

// shareMark is one open snapshot's claim. Only closed is touched by other
// goroutines.
type shareMark struct {
	at     uint64
	closed atomic.Bool
}

func newCow() cow { return cow{now: 1} }

// take begins a snapshot.
func (c *cow) take() *shareMark {
	m := &shareMark{at: c.now}
	c.shared = c.now
	c.now++
	c.open = append(c.open, m)
	return m
}

// isShared reports whether a page made at that number may be shown by an open
// snapshot; it forgets the snapshots that were closed meanwhile.
func (c *cow) isShared(made uint64) bool {
	if made > c.shared {
		return false
	}
	keep := c.open[:0]
	c.shared = 0
	for _, m := range c.open {
		if !m.closed.Load() {
			keep = append(keep, m)
			c.shared = max(c.shared, m.at)
		}
	}
	clear(c.open[len(keep):])
	c.open = keep
	return made <= c.shared
}

func (s *slab[T]) at(h uint32) *T { return &s.pages[h>>pageShift][h&pageMask] }

func (s *slab[T]) mut(c *cow, h uint32) *T {
	k := h >> pageShift
	if made := s.made[k]; made <= c.shared && c.isShared(made) {
		p := new([pageSize]T)
		*p = *s.pages[k]
		s.pages[k], s.made[k] = p, c.now
	}
	return &s.pages[k][h&pageMask]
}

// add gives out a handle whose record is zero.
func (s *slab[T]) add(c *cow) uint32 {
	if n := len(s.free); n > 0 {
		h := s.free[n-1]
		s.free = s.free[:n-1]
		return h
	}
	if s.next == 0 {
		s.next = 1
	}
	h := s.next
	s.next++
	if int(h>>pageShift) == len(s.pages) {
		s.pages = append(s.pages, new([pageSize]T))
		s.made = append(s.made, c.now)
	}
	return h
}

// remove zeroes a record and takes its handle back.
func (s *slab[T]) remove(c *cow, h uint32) {
	var zero T
	*s.mut(c, h) = zero
	s.free = append(s.free, h)
}

// view is the slab as it is now, for reading by a snapshot.
func (s *slab[T]) view() slab[T] {
	return slab[T]{pages: append([]*[pageSize]T(nil), s.pages...), next: s.next}
}

// Names are kept in cells whose size is a multiple of nameGrain, one family of
// pages per size, so that a freed cell fits the next name of about its length
// and nothing ever needs to be compacted.

const (
	nameGrain   = 4
	namePage    = 16 << 10
	nameClasses = MaxName / nameGrain
)

type namePageT struct {
	made uint64
	b    []byte
}

type nameClass struct {
	pages []*namePageT
	next  uint32
	free  []uint32
}

type names struct {
	class [nameClasses]nameClass
}

// nameOf returns the bytes of a name; they change under the reader unless it
// is a snapshot.
func (n *names) at(cell uint32, length uint16) []byte {
	k := int(length-1) / nameGrain
	size := (k + 1) * nameGrain
	per := uint32(namePage / size)
	off := int(cell%per) * size
	return n.class[k].pages[cell/per].b[off : off+int(length)]
}

func (n *names) add(c *cow, name string) uint32 {
	k := (len(name) - 1) / nameGrain
	size := (k + 1) * nameGrain
	per := uint32(namePage / size)
	cl := &n.class[k]
	var cell uint32
	if f := len(cl.free); f > 0 {
		cell = cl.free[f-1]
		cl.free = cl.free[:f-1]
	} else {
		cell = cl.next
		cl.next++
		if int(cell/per) == len(cl.pages) {
			cl.pages = append(cl.pages, &namePageT{made: c.now, b: make([]byte, namePage)})
		}
	}
	p := cl.pages[cell/per]
	if p.made <= c.shared && c.isShared(p.made) {
		p = &namePageT{made: c.now, b: append([]byte(nil), p.b...)}
		cl.pages[cell/per] = p
	}
	copy(p.b[int(cell%per)*size:], name)
	return cell
}

func (n *names) remove(cell uint32, length uint16) {
	k := int(length-1) / nameGrain
	n.class[k].free = append(n.class[k].free, cell)
}

func (n *names) view() *names {
	v := new(names)
	for k := range n.class {
		v.class[k].pages = append([]*namePageT(nil), n.class[k].pages...)
	}
	return v
}

// live is the number of records in use.
func (s *slab[T]) live() int { return max(int(s.next)-1, 0) - len(s.free) }
