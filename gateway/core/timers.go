package core

// timer is one entry of the heap; owners embed it. Equal times fire in order
// of setting (G9).
type timer struct {
	at   Time
	ord  uint64
	pos  int // index in the heap plus 1; 0: not set
	fire func(now Time, out *Output)
}

type timers struct {
	heap []*timer
	ord  uint64
}

func (t *timers) less(a, b *timer) bool {
	return a.at < b.at || (a.at == b.at && a.ord < b.ord)
}

// set starts or moves a timer.
func (t *timers) set(x *timer, at Time) {
	if x.pos != 0 {
		t.stop(x)
	}
	t.ord++
	x.at, x.ord = at, t.ord
	t.heap = append(t.heap, x)
	x.pos = len(t.heap)
	t.up(len(t.heap) - 1)
}

// setEarlier starts a timer or moves it forward, never back.
func (t *timers) setEarlier(x *timer, at Time) {
	if x.pos == 0 || at < x.at {
		t.set(x, at)
	}
}

func (t *timers) stop(x *timer) {
	if x.pos == 0 {
		return
	}
	i, last := x.pos-1, len(t.heap)-1
	if i != last {
		t.swap(i, last)
	}
	t.heap[last] = nil
	t.heap = t.heap[:last]
	x.pos = 0
	if i < last {
		t.down(i)
		t.up(i)
	}
}

// pop returns the next timer that is due, or nil.
func (t *timers) pop(now Time) *timer {
	if len(t.heap) == 0 || t.heap[0].at > now {
		return nil
	}
	x := t.heap[0]
	t.stop(x)
	return x
}

func (t *timers) swap(i, j int) {
	t.heap[i], t.heap[j] = t.heap[j], t.heap[i]
	t.heap[i].pos, t.heap[j].pos = i+1, j+1
}

func (t *timers) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if !t.less(t.heap[i], t.heap[p]) {
			return
		}
		t.swap(i, p)
		i = p
	}
}

func (t *timers) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(t.heap) {
			return
		}
		if c+1 < len(t.heap) && t.less(t.heap[c+1], t.heap[c]) {
			c++
		}
		if !t.less(t.heap[c], t.heap[i]) {
			return
		}
		t.swap(i, c)
		i = c
	}
}
