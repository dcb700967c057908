package sim

// handler is what an event wakes. arg is its own business.
type handler interface{ fire(arg uint64) }

// event is one thing that will happen. Equal times fire in the order in which
// they were scheduled.
type event struct {
	at  Time
	seq uint64
	h   handler
	arg uint64
}

// queue is a 4-ary heap of values: scheduling allocates nothing but its growth.
type queue struct {
	heap []event
	seq  uint64
}

func (q *queue) less(i, j int) bool {
	a, b := &q.heap[i], &q.heap[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (q *queue) push(at Time, h handler, arg uint64) {
	q.seq++
	q.heap = append(q.heap, event{at, q.seq, h, arg})
	i := len(q.heap) - 1
	for i > 0 {
		p := (i - 1) / 4
		if !q.less(i, p) {
			break
		}
		q.heap[i], q.heap[p] = q.heap[p], q.heap[i]
		i = p
	}
}

func (q *queue) pop() event {
	top := q.heap[0]
	last := len(q.heap) - 1
	q.heap[0] = q.heap[last]
	q.heap[last] = event{}
	q.heap = q.heap[:last]
	for i := 0; ; {
		best, first := i, 4*i+1
		for c := first; c < min(first+4, last); c++ {
			if q.less(c, best) {
				best = c
			}
		}
		if best == i {
			return top
		}
		q.heap[i], q.heap[best] = q.heap[best], q.heap[i]
		i = best
	}
}

// call is a handler that runs a function once.
type call func()

func (f call) fire(uint64) { f() }
