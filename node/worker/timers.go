package worker

// timerHeap orders replicas by the time at which they next have something to
// do of themselves; ties by shard, so that the order is the same in every run.
type timerHeap struct{ h []*replica }

// set moves or removes (at 0) a replica's timer.
func (t *timerHeap) set(r *replica, at Time) {
	if at == r.wake {
		return
	}
	in := r.wake != 0
	r.wake = at
	switch {
	case at == 0:
		last := len(t.h) - 1
		moved := t.h[last]
		i := r.timerPos
		t.h[last] = nil
		t.h = t.h[:last]
		if moved != r {
			t.h[i] = moved
			moved.timerPos = i
			t.fix(i)
		}
	case in:
		t.fix(r.timerPos)
	default:
		r.timerPos = len(t.h)
		t.h = append(t.h, r)
		t.fix(r.timerPos)
	}
}

// due takes out one replica whose time has come, nil if none has.
func (t *timerHeap) due(now Time) *replica {
	if len(t.h) == 0 || t.h[0].wake > now {
		return nil
	}
	r := t.h[0]
	t.set(r, 0)
	return r
}

func (t *timerHeap) next() Time {
	if len(t.h) == 0 {
		return 0
	}
	return t.h[0].wake
}

func (t *timerHeap) less(i, j int) bool {
	a, b := t.h[i], t.h[j]
	return a.wake < b.wake || a.wake == b.wake && a.shard < b.shard
}

func (t *timerHeap) swap(i, j int) {
	t.h[i], t.h[j] = t.h[j], t.h[i]
	t.h[i].timerPos, t.h[j].timerPos = i, j
}

func (t *timerHeap) fix(i int) {
	for i > 0 && t.less(i, (i-1)/2) {
		t.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		c := 2*i + 1
		if c >= len(t.h) {
			return
		}
		if c+1 < len(t.h) && t.less(c+1, c) {
			c++
		}
		if !t.less(c, i) {
			return
		}
		t.swap(i, c)
		i = c
	}
}
