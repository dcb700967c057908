package host

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortise-lock/mortise/node/worker"
)

// inboxMax bounds the requests that wait for one worker; gateway readers wait
// beyond it.
const inboxMax = 1 << 16

// loop runs one worker. post may be called by anybody but the loop itself.
type loop struct {
	n *Node
	w *worker.Worker

	mu     sync.Mutex
	room   sync.Cond // signalled when the inbox was emptied, or the loop ended
	inbox  *worker.Input
	calls  []func(*worker.Worker)
	ended  bool
	wake   chan struct{}
	stop   chan struct{}
	done   chan struct{}
	stalls atomic.Uint64
	// drained is what the last step said.
	drained atomic.Bool
}

func newLoop(n *Node, w *worker.Worker) *loop {
	l := &loop{n: n, w: w, inbox: new(worker.Input), wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	l.room.L = &l.mu
	return l
}

// post adds something to the inbox. After the loop's end it is dropped.
func (l *loop) post(add func(*worker.Input)) {
	l.mu.Lock()
	if !l.ended {
		add(l.inbox)
	}
	l.mu.Unlock()
	l.signal()
}

// postRequests waits for room.
func (l *loop) postRequests(rs []worker.Request) {
	l.mu.Lock()
	for len(l.inbox.Requests) >= inboxMax && !l.ended {
		l.room.Wait()
	}
	if !l.ended {
		l.inbox.Requests = append(l.inbox.Requests, rs...)
	}
	l.mu.Unlock()
	l.signal()
}

// call runs f between two steps and waits for it; false if the loop has ended.
func (l *loop) call(f func(*worker.Worker)) bool {
	ran := make(chan struct{})
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return false
	}
	l.calls = append(l.calls, func(w *worker.Worker) { f(w); close(ran) })
	l.mu.Unlock()
	l.signal()
	select {
	case <-ran:
		return true
	case <-l.done:
		return false
	}
}

func (l *loop) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// close ends the loop and waits for it.
func (l *loop) close() {
	close(l.stop)
	<-l.done
}

func (l *loop) run() {
	defer close(l.done)
	spare, out := new(worker.Input), new(worker.Output)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	last := now()
	for {
		select {
		case <-l.stop:
			l.mu.Lock()
			l.ended = true
			l.mu.Unlock()
			l.room.Broadcast()
			return
		case <-l.wake:
		case <-timer.C:
		}
		l.mu.Lock()
		in, calls := l.inbox, l.calls
		l.inbox, l.calls = spare, nil
		l.mu.Unlock()
		l.room.Broadcast()

		in.Now, in.WallMS = now(), time.Now().UnixMilli()
		if gap := time.Duration(in.Now - last); gap > stallAfter {
			in.Stalled = int64(gap - tickEvery)
			l.stalls.Add(1)
			l.n.log.Warn("this process stood still; leases are moved by it", "for", gap.Round(time.Millisecond))
		}
		last = in.Now
		in.Ticks = min(in.Ticks, ticksMax)
		in.Draining = l.n.draining.Load()
		l.w.Step(in, out)
		l.carryOut(out)
		for _, f := range calls {
			f(l.w)
		}
		resetInput(in)
		spare = in
		if out.Next != 0 {
			timer.Reset(max(time.Duration(out.Next-now()), 0))
		}
	}
}

func resetInput(in *worker.Input) {
	clear(in.Messages)
	clear(in.Requests)
	clear(in.Renewals)
	clear(in.Synced)
	clear(in.MapProposals)
	*in = worker.Input{Messages: in.Messages[:0], Requests: in.Requests[:0], Renewals: in.Renewals[:0],
		StreamsClosed: in.StreamsClosed[:0], Synced: in.Synced[:0]}
}

// carryOut does what the worker decided. Messages leave before anything is
// written: a leader's followers write while it does.
func (l *loop) carryOut(out *worker.Output) {
	n := l.n
	if len(out.Messages) > 0 {
		n.transport.Send(out.Messages)
	}
	if len(out.Appends) > 0 {
		// The store keeps them beyond the next step.
		n.store.Submit(slices.Clone(out.Appends))
	}
	if len(out.Replies) > 0 {
		n.streams.deliver(out.Replies)
	}
	if len(out.Leaders) > 0 {
		n.leadersChanged(out.Leaders)
	}
	for i := range out.Snapshots {
		n.writeSnapshot(l, out.Snapshots[i])
	}
	for _, f := range out.RemoveFiles {
		n.removeFile(f)
	}
	for _, t := range out.Transfers {
		n.waiting.end(t.ID, t)
	}
	for _, p := range out.MapProposed {
		n.waiting.end(p.ID, p)
	}
	if out.Map != nil {
		n.setMap(out.Map)
	}
	for _, g := range out.Logs {
		n.log.Log(context.Background(), slog.Level(g.Level), g.Message, append([]any{"shard", uint32(g.Shard)}, g.Args...)...)
	}
	l.drained.Store(out.Drained)
	if out.Fatal != nil {
		n.fatal(out.Fatal)
	}
}
