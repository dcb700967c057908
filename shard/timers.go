package shard

// timers is a heap of handles by time, with each handle's place kept beside
// it, so that removal costs the logarithm of the heap. It is derived from the
// state, never part of it.
type timers struct {
	heap []timer
	pos  []uint32 // handle -> place in heap plus 1; 0: not there
}

type timer struct {
	at int64
	h  uint32
}

func (t *timers) less(a, b timer) bool { return a.at < b.at || a.at == b.at && a.h < b.h }

// set adds the handle or changes its time.
func (t *timers) set(h uint32, at int64) {
	if int(h) >= len(t.pos) {
		if int(h) < cap(t.pos) {
			t.pos = t.pos[:h+1]
		} else {
			p := make([]uint32, h+1, 2*(int(h)+1))
			copy(p, t.pos)
			t.pos = p
		}
	}
	i := int(t.pos[h]) - 1
	if i < 0 {
		i = len(t.heap)
		t.heap = append(t.heap, timer{at, h})
		t.pos[h] = uint32(i + 1)
	}
	t.heap[i].at = at
	t.fix(i)
}

// drop removes the handle if it is there.
func (t *timers) drop(h uint32) {
	if int(h) >= len(t.pos) || t.pos[h] == 0 {
		return
	}
	i := int(t.pos[h]) - 1
	t.pos[h] = 0
	last := len(t.heap) - 1
	if i != last {
		t.heap[i] = t.heap[last]
		t.pos[t.heap[i].h] = uint32(i + 1)
	}
	t.heap = t.heap[:last]
	if i != last {
		t.fix(i)
	}
}

func (t *timers) fix(i int) {
	x := t.heap[i]
	for i > 0 {
		up := (i - 1) / 4
		if !t.less(x, t.heap[up]) {
			break
		}
		t.heap[i] = t.heap[up]
		t.pos[t.heap[i].h] = uint32(i + 1)
		i = up
	}
	for {
		best, first := -1, 4*i+1
		for j := first; j < first+4 && j < len(t.heap); j++ {
			if best < 0 || t.less(t.heap[j], t.heap[best]) {
				best = j
			}
		}
		if best < 0 || !t.less(t.heap[best], x) {
			break
		}
		t.heap[i] = t.heap[best]
		t.pos[t.heap[i].h] = uint32(i + 1)
		i = best
	}
	t.heap[i] = x
	t.pos[x.h] = uint32(i + 1)
}

// first returns the earliest.
func (t *timers) first() (timer, bool) {
	if len(t.heap) == 0 {
		return timer{}, false
	}
	return t.heap[0], true
}

// due calls yield for handles whose time has come, in no particular order,
// until it returns false.
func (t *timers) due(now int64, yield func(h uint32) bool) { t.visit(0, now, yield) }

func (t *timers) visit(i int, now int64, yield func(h uint32) bool) bool {
	if i >= len(t.heap) || t.heap[i].at > now {
		return true
	}
	if !yield(t.heap[i].h) {
		return false
	}
	for j := 4*i + 1; j <= 4*i+4; j++ {
		if !t.visit(j, now, yield) {
			return false
		}
	}
	return true
}

func (t *timers) bytes() int { return cap(t.heap)*16 + cap(t.pos)*4 }
