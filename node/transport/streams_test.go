package transport

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mortise-lock/mortise/node/worker"
	"go.etcd.io/raft/v3/raftpb"
)

// exchange checks that messages of both classes pass both ways.
func exchange(t *testing.T, a, b *node) {
	t.Helper()
	a.take()
	b.take()
	for _, d := range [][2]*node{{a, b}, {b, a}} {
		d[0].tr.Send([]worker.RaftMessage{control(d[1], 1), entries(d[1], 2, 100)})
	}
	synctest.Wait()
	for _, n := range []*node{a, b} {
		if got := n.take(); len(got) != 2 {
			t.Errorf("node %d got %d messages, want 2", n.id, len(got))
		}
	}
}

func TestPeerRestarts(t *testing.T) {
	inBubble(t, func(t *testing.T, net *network, a, b *node) {
		pair(a, b)
		exchange(t, a, b)
		for range 5 {
			b.stop()
			settle(10 * time.Second)
			b.start()
			b.peer(a)
			settle(time.Second)
			exchange(t, a, b)
		}
		b.stop()
		// Per class: one report of each break, one that it stayed away.
		if un, down := a.counts(b.id); un < 10 || down != 10 {
			t.Errorf("%d reports of unreachable, %d of down; want at least 10, and 10", un, down)
		}
	})
}

func TestPeerUnreachableThenBack(t *testing.T) {
	for name, mode := range map[string]linkMode{"refusing": refusing, "blackhole": blackhole} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, net *network, a, b *node) {
				pair(a, b)
				net.set(b.addr, mode)
				net.set(a.addr, mode)
				settle(5 * time.Second)
				if _, down := a.counts(b.id); down == 0 {
					t.Error("nobody was told that the peer is down")
				}
				un, _ := a.counts(b.id)
				a.tr.Send([]worker.RaftMessage{control(b, 1), entries(b, 2, 100)})
				settle(5 * time.Minute)
				if now, _ := a.counts(b.id); now == un {
					t.Error("messages were dropped and nobody was told")
				}
				if n := a.tr.Stats.Dropped.Load(); n < 2 {
					t.Errorf("%d messages count as dropped", n)
				}
				// Two streams, redialled each second at most.
				if n := net.dialled(b.addr); n > 2*850 {
					t.Errorf("%d dials in 5 minutes", n)
				}
				net.set(b.addr, reachable)
				net.set(a.addr, reachable)
				settle(3 * time.Second)
				b.take()
				exchange(t, a, b)
			})
		})
	}
}

// A connection that ends within a frame delivers nothing of that frame, and
// what follows comes over the next.
func TestCutWithinFrames(t *testing.T) {
	inBubble(t, func(t *testing.T, net *network, a, b *node) {
		cut := int64(0)
		net.fault = func(to string, l *link) {
			if to == "n2" {
				l.cutAfter = cut
			}
		}
		a.start()
		b.start()
		next := uint64(0)
		for at := int64(1); at < 5_000; at += 97 {
			cut = at
			net.set(b.addr, refusing)
			net.set(b.addr, reachable)
			a.peer(b)
			settle(2 * time.Second)
			for range 20 {
				next++
				a.tr.Send([]worker.RaftMessage{entries(b, next, 500)})
				settle(20 * time.Millisecond)
			}
			last := uint64(0)
			for _, m := range b.take() {
				if e := m.Msg.Entries; len(e) != 1 || len(e[0].Data) != 500 {
					t.Fatalf("cut at %d: half a message was delivered: %v", at, m.Msg)
				}
				if i := m.Msg.GetIndex(); i <= last {
					t.Fatalf("cut at %d: %d came after %d", at, i, last)
				} else {
					last = i
				}
			}
		}
		if un, _ := a.counts(b.id); un == 0 {
			t.Error("no break was reported")
		}
		cut = 0
		net.set(b.addr, refusing)
		net.set(b.addr, reachable)
		b.peer(a)
		settle(3 * time.Second)
		exchange(t, a, b)
	})
}

// A peer that takes no appends: they are bounded, dropped and reported, while
// heartbeats and a snapshot pass.
func TestClassesDontStarveEachOther(t *testing.T) {
	inBubble(t, func(t *testing.T, net *network, a, b *node) {
		release := make(chan struct{})
		b.deliver = func(ms []worker.RaftMessage) {
			if len(ms[0].Msg.GetEntries()) > 0 {
				<-release // nobody reads the stream of appends
			}
		}
		pair(a, b)
		put(t, a, 1, snapSize)
		const size = 256 << 10
		for i := range uint64(400) { // 100 MiB
			a.tr.Send([]worker.RaftMessage{entries(b, i, size)})
			a.tr.Send([]worker.RaftMessage{control(b, i)})
			settle(time.Millisecond)
		}
		a.tr.Send([]worker.RaftMessage{snapshotOf(1, b)})
		settle(2 * time.Second)
		if s := a.sentSnapshots(); len(s) != 1 || s[0].Err != nil {
			t.Errorf("snapshot: %v", s)
		}
		if got := b.take(); len(got) != 400 {
			t.Errorf("%d heartbeats of 400 came through", len(got))
		} else if got[0].Msg.GetType() != raftpb.MsgHeartbeat {
			t.Error(got[0].Msg)
		}
		o := a.tr.peers[b.id].out[classAppend]
		o.mu.Lock()
		queued, bytes := len(o.queue), o.bytes
		o.mu.Unlock()
		if bytes > maxQueue || queued*size > maxQueue {
			t.Errorf("%d messages of %d bytes wait, the limit is %d", queued, bytes, maxQueue)
		}
		if un, _ := a.counts(b.id); un == 0 || a.tr.Stats.Dropped.Load() == 0 {
			t.Errorf("%d reports, %d dropped", un, a.tr.Stats.Dropped.Load())
		}
		close(release)
		synctest.Wait()
	})
}

// Without a stream a queue keeps little, and one call reports a peer once.
func TestQueueWithoutStream(t *testing.T) {
	inBubble(t, func(t *testing.T, net *network, a, b *node) {
		net.set(b.addr, blackhole)
		a.start()
		a.peer(b)
		var batch []worker.RaftMessage
		for i := range uint64(1000) {
			batch = append(batch, entries(b, i, 1000))
		}
		a.tr.Send(batch)
		if un, _ := a.counts(b.id); un != 1 {
			t.Errorf("%d reports for one call, want 1", un)
		}
		if n := a.tr.Stats.Dropped.Load(); n < 700 || n == 1000 {
			t.Errorf("%d of 1000 dropped", n)
		}
		a.tr.Send([]worker.RaftMessage{control(&node{id: 9}, 1)}) // a node nobody knows
		if un, _ := a.counts(9); un != 1 {
			t.Errorf("%d reports of an unknown peer, want 1", un)
		}
		// Known under another address: what waited for the old one is lost.
		before, _ := a.counts(b.id)
		if err := a.tr.SetPeer(b.id, "elsewhere"); err != nil {
			t.Fatal(err)
		}
		if un, _ := a.counts(b.id); un != before+1 {
			t.Errorf("%d reports after the move, want %d", un, before+1)
		}
	})
}

// A peer that takes connections and streams but never answers.
func TestSilentPeer(t *testing.T) {
	inBubble(t, func(t *testing.T, net *network, a, b *node) {
		pair(a, b)
		net.fault = func(to string, l *link) {
			if to == "n2" {
				// The client's preface and settings pass, its first stream does not.
				l.stallAfter = 60
			}
		}
		net.set(b.addr, refusing)
		net.set(b.addr, reachable)
		settle(30 * time.Second)
		if _, down := a.counts(b.id); down == 0 {
			t.Error("nobody was told")
		}
		net.mu.Lock()
		net.fault = nil
		net.mu.Unlock()
		net.set(b.addr, refusing)
		net.set(b.addr, reachable)
		settle(10 * time.Second)
		exchange(t, a, b)
	})
}
