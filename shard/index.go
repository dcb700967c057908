package shard

// index finds records by a 32-bit hash: extendible hashing over small segments
// of handles with linear probing. It grows one segment at a time, so that no
// single apply pays for a large table, and holds about six bytes per record.
// It is derived from the slabs and is not part of the state: neither its
// layout nor its order is ever observable.
type index struct {
	dir   []*segment // 1 << depth, by the hash's upper bits
	depth uint8
	n     int
	// hashOf returns the hash of a record; needed when a segment splits.
	hashOf func(h uint32) uint32
}

type segment struct {
	depth uint8
	n     int
	slot  []uint32
}

const (
	segmentSlots = 512
	// maxDepth bounds the directory. Segments whose records agree in that many
	// bits grow instead of splitting.
	maxDepth = 20
)

func newIndex(hashOf func(h uint32) uint32) index {
	return index{dir: []*segment{{slot: make([]uint32, segmentSlots)}}, hashOf: hashOf}
}

func (x *index) seg(hash uint32) *segment { return x.dir[hash>>(32-x.depth)] }

// find returns the record with that hash for which eq is true, or none.
func (x *index) find(hash uint32, eq func(h uint32) bool) uint32 {
	s := x.seg(hash)
	mask := uint32(len(s.slot) - 1)
	for i := hash & mask; s.slot[i] != none; i = (i + 1) & mask {
		if eq(s.slot[i]) {
			return s.slot[i]
		}
	}
	return none
}

// insert adds a record that is not there yet.
func (x *index) insert(hash, h uint32) {
	for {
		s := x.seg(hash)
		if s.n < len(s.slot)*7/8 {
			s.put(hash, h)
			x.n++
			return
		}
		x.split(s, hash)
	}
}

func (s *segment) put(hash, h uint32) {
	mask := uint32(len(s.slot) - 1)
	i := hash & mask
	for s.slot[i] != none {
		i = (i + 1) & mask
	}
	s.slot[i] = h
	s.n++
}

func (x *index) split(s *segment, hash uint32) {
	old := s.slot
	if s.depth >= maxDepth {
		s.slot, s.n = make([]uint32, 2*len(old)), 0
		for _, h := range old {
			if h != none {
				s.put(x.hashOf(h), h)
			}
		}
		return
	}
	if s.depth == x.depth {
		dir := make([]*segment, 2*len(x.dir))
		for i, s := range x.dir {
			dir[2*i], dir[2*i+1] = s, s
		}
		x.dir = dir
		x.depth++
	}
	d := s.depth + 1
	low := &segment{depth: d, slot: make([]uint32, segmentSlots)}
	high := &segment{depth: d, slot: make([]uint32, segmentSlots)}
	for _, h := range old {
		if h == none {
			continue
		}
		if g := x.hashOf(h); g>>(32-d)&1 == 0 {
			low.put(g, h)
		} else {
			high.put(g, h)
		}
	}
	// The directory entries of s are those that share its depth upper bits.
	width := uint32(1) << (x.depth - s.depth)
	first := hash >> (32 - x.depth) &^ (width - 1)
	for i := uint32(0); i < width; i++ {
		if i < width/2 {
			x.dir[first+i] = low
		} else {
			x.dir[first+i] = high
		}
	}
}

// remove takes a record out; it must be there.
func (x *index) remove(hash, h uint32) {
	s := x.seg(hash)
	mask := uint32(len(s.slot) - 1)
	i := hash & mask
	for s.slot[i] != h {
		if s.slot[i] == none {
			panic("shard: index: a record that is not indexed was removed")
		}
		i = (i + 1) & mask
	}
	// Close the gap: move back what would no longer be found behind it.
	for j := (i + 1) & mask; s.slot[j] != none; j = (j + 1) & mask {
		want := x.hashOf(s.slot[j]) & mask
		if (j-want)&mask >= (j-i)&mask {
			s.slot[i] = s.slot[j]
			i = j
		}
	}
	s.slot[i] = none
	s.n--
	x.n--
}

func (x *index) bytes() int { return x.n*6 + len(x.dir)*8 }
