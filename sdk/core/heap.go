package core

// dueHeap orders acquires by the time at which they need attention. Each is in
// it once at most; times may move either way.
type dueHeap []*acquire

func (h dueHeap) less(i, j int) bool {
	return h[i].due < h[j].due || h[i].due == h[j].due && h[i].seq < h[j].seq
}

func (h dueHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].idx, h[j].idx = i, j
}

func (h dueHeap) up(i int) {
	for i > 0 && h.less(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h dueHeap) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h.less(c+1, c) {
			c++
		}
		if !h.less(c, i) {
			return
		}
		h.swap(i, c)
		i = c
	}
}

// set gives an acquire its due time; 0 takes it out.
func (h *dueHeap) set(a *acquire, due Time) {
	switch {
	case due == 0 && a.idx < 0:
		return
	case due == 0:
		i, last := a.idx, len(*h)-1
		h.swap(i, last)
		(*h)[last] = nil
		*h = (*h)[:last]
		a.idx = -1
		if i < last {
			h.up(i)
			h.down(i)
		}
	case a.idx < 0:
		a.due, a.idx = due, len(*h)
		*h = append(*h, a)
		h.up(a.idx)
	default:
		a.due = due
		h.up(a.idx)
		h.down(a.idx)
	}
	if due == 0 {
		a.due = 0
	}
}
