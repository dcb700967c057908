package sim

import "slices"

// network decides how long a frame is on its way between two hosts, and
// whether it gets there at all. Streams keep their order; what is sent into a
// partition waits in the sender's kernel and arrives after the partition, if
// the stream lives that long.
type network struct {
	w    *World
	cut  [][]int16 // from, to: how many faults cut this direction
	slow [][]Time  // from, to: added to every frame
	held []*pipe   // pipes that wait for a partition to end
}

func (n *network) grow(size int) {
	for len(n.cut) < size {
		n.cut, n.slow = append(n.cut, nil), append(n.slow, nil)
	}
	for i := range n.cut {
		for len(n.cut[i]) < size {
			n.cut[i], n.slow[i] = append(n.cut[i], 0), append(n.slow[i], 0)
		}
	}
}

func (n *network) isCut(from, to int) bool { return n.cut[from][to] > 0 }

// cutOneWay adds (1) or takes away (-1) a fault that swallows everything from
// one host to another.
func (n *network) cutOneWay(from, to int, by int16) {
	if from == to {
		return
	}
	n.cut[from][to] += by
	if by < 0 && n.cut[from][to] == 0 {
		n.release(func(p *pipe) bool { return p.from.id == from && p.to.id == to })
	}
}

// isolate cuts a host off from all others, both ways.
func (n *network) isolate(id int, by int16) {
	for o := range n.cut {
		n.cutOneWay(id, o, by)
		n.cutOneWay(o, id, by)
	}
}

func (n *network) release(which func(*pipe) bool) {
	n.held = slices.DeleteFunc(n.held, func(p *pipe) bool {
		if !which(p) {
			return false
		}
		p.held = false
		// The sender's kernel tries again at growing intervals.
		n.w.q.push(n.w.now+n.w.upTo(200*ms), p, 0)
		return true
	})
}

// delay draws how long a frame takes.
func (n *network) delay(from, to *proc) Time {
	w := n.w
	if from == to {
		return 10*us + w.upTo(20*us)
	}
	d := w.cfg.Latency + w.upTo(w.cfg.Jitter) + n.slow[from.id][to.id]
	if w.cfg.Spikes > 0 && w.chance(w.cfg.Spikes) {
		d += w.upTo(400 * ms)
	}
	return d
}

// pipe carries frames one way, in order.
type pipe struct {
	w        *World
	from, to *proc
	last     Time // when the newest frame arrives
	queue    []packet
	head     int
	armed    bool
	held     bool
	since    Time // held since
	sink     func(body any)
	// broken is called when frames were held for too long.
	broken   func()
	patience Time
}

type packet struct {
	at   Time
	body any
}

func (p *pipe) send(body any) { p.sendAfter(0, body) }

func (p *pipe) sendAfter(extra Time, body any) {
	at := max(p.w.now+extra+p.w.net.delay(p.from, p.to), p.last)
	p.last = at
	p.queue = append(p.queue, packet{at, body})
	if !p.armed {
		p.armed = true
		p.w.q.push(at, p, 0)
	}
}

func (p *pipe) fire(uint64) {
	for p.head < len(p.queue) {
		if at := p.queue[p.head].at; at > p.w.now {
			p.w.q.push(at, p, 0)
			return
		}
		if p.w.net.isCut(p.from.id, p.to.id) {
			if !p.held {
				p.held, p.since = true, p.w.now
				p.w.net.held = append(p.w.net.held, p)
			}
			return
		}
		body := p.queue[p.head].body
		p.queue[p.head] = packet{}
		p.head++
		p.sink(body)
	}
	p.queue, p.head, p.armed = p.queue[:0], 0, false
}

// purge drops everything on its way.
func (p *pipe) purge() {
	clear(p.queue)
	p.queue, p.head = p.queue[:0], 0
	if p.held {
		p.held = false
		p.w.net.held = slices.DeleteFunc(p.w.net.held, func(o *pipe) bool { return o == p })
		p.armed = false
	}
}

// impatient breaks what was held for too long. Called once a second.
func (n *network) impatient() {
	for _, p := range slices.Clone(n.held) {
		if p.held && p.patience > 0 && n.w.now-p.since > p.patience && p.broken != nil {
			p.broken()
		}
	}
}
