package gateway

import (
	"sync"
	"time"

	"github.com/mortise-lock/mortise/gateway/core"
)

// inboxMax bounds the inputs that wait for the loop; posters wait beyond it.
const inboxMax = 1 << 16

// loop runs the core. post may be called by anybody but the loop itself.
type loop struct {
	g     *Gateway
	start time.Time

	mu     sync.Mutex
	room   sync.Cond // signalled when the inbox was emptied or the loop ended
	inbox  []core.Input
	closed bool
	wake   chan struct{}
}

func newLoop(g *Gateway) *loop {
	l := &loop{g: g, start: time.Now(), wake: make(chan struct{}, 1)}
	l.room.L = &l.mu
	return l
}

// now is the core's clock.
func (l *loop) now() core.Time { return time.Since(l.start) }

// post hands an input to the loop. After the loop's end it does nothing.
func (l *loop) post(in core.Input) {
	l.mu.Lock()
	for len(l.inbox) >= inboxMax && !l.closed {
		l.room.Wait()
	}
	if l.closed {
		l.mu.Unlock()
		return
	}
	first := len(l.inbox) == 0
	l.inbox = append(l.inbox, in)
	l.mu.Unlock()
	if first {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// run steps the core until stop is closed.
func (l *loop) run(stop <-chan struct{}) {
	defer func() {
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		l.room.Broadcast()
	}()
	var (
		batch []core.Input
		out   core.Output
		tick  = core.Input{Kind: core.Tick}
		timer = time.NewTimer(time.Hour)
	)
	defer timer.Stop()
	for {
		l.mu.Lock()
		batch, l.inbox = l.inbox, batch[:0]
		l.mu.Unlock()
		if len(batch) > 0 {
			l.room.Broadcast()
			l.g.metrics.batch.Observe(float64(len(batch)))
		}
		for i := range batch {
			l.g.core.Step(&batch[i], l.now(), &out)
		}
		clear(batch)
		if at, ok := l.g.core.Next(); ok && at <= l.now() {
			l.g.core.Step(&tick, l.now(), &out)
		}
		l.g.carryOut(&out)
		out.Reset()

		d := time.Hour
		if at, ok := l.g.core.Next(); ok {
			d = at - l.now()
		}
		if d <= 0 {
			select {
			case <-stop:
				return
			default:
				continue
			}
		}
		timer.Reset(d)
		select {
		case <-stop:
			return
		case <-l.wake:
		case <-timer.C:
		}
	}
}
