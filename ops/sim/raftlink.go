package sim

import (
	"github.com/mortise-lock/mortise/node/worker"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Classes of traffic between nodes; each has a stream of its own, so that
// messages of different classes overtake each other.
const (
	classControl = iota
	classAppend
	classes
)

// raftLink is one node's stream to a peer for one class. While it is down,
// messages are dropped, as the transport does.
type raftLink struct {
	n        *node
	to       *node
	class    int
	up       bool
	redial   Time
	told     bool // PeersDown was told since it broke
	inc      uint64
	pipe     pipe
	dialling bool
}

// raftBatch is a frame between nodes.
type raftBatch struct {
	inc  uint64 // of the receiver that the stream was opened to
	msgs []worker.RaftMessage
}

func newRaftLink(n, to *node, class int) *raftLink {
	l := &raftLink{n: n, to: to, class: class}
	l.pipe = pipe{w: n.w, from: n.p, to: to.p, patience: 13 * second}
	l.pipe.sink = func(body any) { l.arrive(body.(*raftBatch)) }
	l.pipe.broken = l.broken
	return l
}

// open dials at the start of a node.
func (l *raftLink) open() {
	l.up, l.told, l.redial = false, true, 50*ms
	l.pipe.purge()
	l.dialSoon(l.n.w.upTo(20 * ms))
}

func (l *raftLink) dialSoon(d Time) {
	if l.dialling {
		return
	}
	l.dialling = true
	inc := l.n.p.inc
	l.n.w.after(d, func() {
		if l.n.p.inc != inc {
			return
		}
		l.n.p.whenAwake(true, func() { l.dialling = false; l.dial() })
	})
}

func (l *raftLink) dial() {
	w := l.n.w
	switch {
	case l.up || !l.n.p.up:
	case w.net.isCut(l.n.p.id, l.to.p.id) || w.net.isCut(l.to.p.id, l.n.p.id) || l.to.p.paused:
		l.dialSoon(second) // no answer
	case l.to.p.up && l.to.running():
		l.up, l.inc, l.redial = true, l.to.p.inc, 50*ms
	default:
		if !l.told {
			l.told = true
			for _, o := range l.n.loops {
				o.in.PeersDown = append(o.in.PeersDown, l.to.id)
				o.wake()
			}
		}
		l.dialSoon(l.redial)
		l.redial = min(2*l.redial, second)
	}
}

// broken: the stream ended, or frames were stuck for too long.
func (l *raftLink) broken() {
	l.pipe.purge()
	if !l.up || !l.n.p.up {
		return
	}
	l.up, l.told = false, false
	l.n.p.whenAwake(false, func() {
		l.n.unreachable(l.to.id)
		l.dialSoon(l.n.w.upTo(20 * ms))
	})
}

func (l *raftLink) send(msgs []worker.RaftMessage) {
	w := l.n.w
	if !l.up || w.cfg.RaftDrop > 0 && w.chance(w.cfg.RaftDrop) {
		if l.up {
			w.count(FaultRaftDrop)
		}
		l.n.unreachable(l.to.id)
		return
	}
	b := w.newBatch(l.inc)
	for i := range msgs {
		m := msgs[i]
		m.Peer = l.n.id
		if w.cfg.Encode {
			m.Msg = recode(m.Msg)
		}
		b.msgs = append(b.msgs, m)
	}
	l.pipe.send(b)
	if w.cfg.RaftDup > 0 && w.chance(w.cfg.RaftDup) {
		w.count(FaultRaftDup)
		c := w.newBatch(l.inc)
		c.msgs = append(c.msgs, b.msgs...)
		l.duplicate(c)
	}
}

// duplicate lets a second copy come later, out of order.
func (l *raftLink) duplicate(b *raftBatch) {
	w := l.n.w
	w.after(w.net.delay(l.n.p, l.to.p)+w.upTo(50*ms), func() {
		if !w.net.isCut(l.n.p.id, l.to.p.id) {
			l.arrive(b)
		}
	})
}

func recode(m *raftpb.Message) *raftpb.Message {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	out := new(raftpb.Message)
	if err := proto.Unmarshal(b, out); err != nil {
		panic(err)
	}
	return out
}

func (l *raftLink) arrive(b *raftBatch) {
	t := l.to
	if !t.p.up || t.p.inc != b.inc || !t.running() {
		// The kernel there knows no such connection, and says so.
		l.n.w.after(l.n.w.net.delay(t.p, l.n.p), func() {
			if l.up && l.inc == b.inc && !l.n.w.net.isCut(t.p.id, l.n.p.id) {
				l.broken()
			}
		})
		return
	}
	if t.p.paused {
		t.p.whenAwake(false, func() { t.deliver(b) })
		return
	}
	t.deliver(b)
}

func (w *World) newBatch(inc uint64) *raftBatch {
	if n := len(w.batches); n > 0 {
		b := w.batches[n-1]
		w.batches = w.batches[:n-1]
		b.inc = inc
		return b
	}
	return &raftBatch{inc: inc, msgs: make([]worker.RaftMessage, 0, 16)}
}

func (w *World) freeBatch(b *raftBatch) {
	clear(b.msgs)
	b.msgs = b.msgs[:0]
	w.batches = append(w.batches, b)
}
