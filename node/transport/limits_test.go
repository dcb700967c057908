package transport

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mortise-lock/mortise/node/worker"
	"github.com/mortise-lock/mortise/shard"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Two leaders, of two terms, send the same shard at once: one is taken, the
// other is told and comes later.
func TestTwoSnapshotsOfOneShard(t *testing.T) {
	inBubble(t, func(t *testing.T, net *network, a, b *node) {
		c := newNode(t, net, 3)
		defer c.stop()
		put(t, a, 1, snapSize)
		put(t, c, 1, snapSize)
		pair(a, b)
		c.start()
		c.peer(b)
		hold := make(chan struct{})
		b.wrap = func(f File) File { return &watched{f, snapSize / 2, func() { <-hold }} }
		a.tr.Send([]worker.RaftMessage{snapshotOf(1, b)})
		settle(time.Second)
		c.tr.Send([]worker.RaftMessage{snapshotOf(1, b)})
		settle(time.Second)
		if got := c.sentSnapshots(); len(got) != 1 || status.Code(got[0].Err) != codes.ResourceExhausted {
			t.Errorf("the second was told %v", got)
		}
		if got := b.list(); len(got) != 1 {
			t.Errorf("files of both: %v", got)
		}
		close(hold)
		settle(time.Second)
		if got := a.sentSnapshots(); len(got) != 1 || got[0].Err != nil {
			t.Errorf("the first was told %v", got)
		}
		content(t, b, 1, snapSize)
		b.wrap = nil
		c.tr.Send([]worker.RaftMessage{snapshotOf(1, b)})
		settle(time.Second)
		if got := c.sentSnapshots(); len(got) != 2 || got[1].Err != nil {
			t.Errorf("the retry was told %v", got)
		}
		if got := b.list(); len(got) != 2 {
			t.Errorf("each has a file of its own: %v", got)
		}
	})
}

// Many shards at once: never more than the limit is received, each is answered
// once, and all come through as raft tries again.
func TestManySnapshotsAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, net *network, a, b *node) {
		var now, most atomic.Int32
		b.wrap = func(f File) File {
			most.Store(max(most.Load(), now.Add(1)))
			return &counted{File: f, now: &now}
		}
		b.start()
		senders := []*node{a}
		for id := range worker.NodeID(4) {
			n := newNode(t, net, 3+id)
			defer n.stop()
			senders = append(senders, n)
		}
		const each, size = 100, 5_000
		for i, n := range senders {
			n.start()
			n.peer(b)
			for s := range shard.ID(each) {
				s += shard.ID(each * i)
				put(t, n, s, size)
				n.tr.Send([]worker.RaftMessage{snapshotOf(s, b)})
			}
		}
		for round := 0; round < 100 && len(b.installs()) < each*len(senders); round++ {
			settle(500 * time.Millisecond)
			for _, n := range senders {
				n.mu.Lock()
				sent := n.sent
				n.sent = nil
				n.mu.Unlock()
				for _, s := range sent {
					if s.Err != nil {
						n.tr.Send([]worker.RaftMessage{snapshotOf(s.Shard, b)})
					}
				}
			}
		}
		for i := range senders {
			for s := range shard.ID(each) {
				content(t, b, s+shard.ID(each*i), size)
			}
		}
		if most.Load() > maxSnapshots {
			t.Errorf("%d at once, the limit is %d", most.Load(), maxSnapshots)
		}
	})
}

type counted struct {
	File
	now  *atomic.Int32
	done bool
}

func (c *counted) Abort() {
	c.File.Abort()
	if !c.done {
		c.done = true
		c.now.Add(-1)
	}
}

// Disk space is reserved by what is announced, also while it comes.
func TestRoomOnDisk(t *testing.T) {
	inBubble(t, func(t *testing.T, net *network, a, b *node) {
		b.room = snapSize*3/2 + 100
		c := newNode(t, net, 3)
		defer c.stop()
		put(t, a, 1, snapSize)
		put(t, c, 2, snapSize)
		pair(a, b)
		c.start()
		c.peer(b)
		hold := make(chan struct{})
		b.wrap = func(f File) File { return &watched{f, 1, func() { <-hold }} }
		a.tr.Send([]worker.RaftMessage{snapshotOf(1, b)})
		settle(time.Second)
		c.tr.Send([]worker.RaftMessage{snapshotOf(2, b)})
		settle(time.Second)
		got := c.sentSnapshots()
		if len(got) != 1 || status.Code(got[0].Err) != codes.ResourceExhausted || !strings.Contains(got[0].Err.Error(), "free disk space") {
			t.Errorf("told %v", got)
		}
		close(hold)
		settle(time.Second)
		content(t, b, 1, snapSize)
		b.wrap = nil
		c.tr.Send([]worker.RaftMessage{snapshotOf(2, b)})
		settle(time.Second)
		content(t, b, 2, snapSize)
	})
}

// A peer that stays dead is not asked again and again, and the log says so
// rarely. The sender here tries again as soon as it is told, as raft would.
func TestDeadPeerGetsFewSnapshots(t *testing.T) {
	inBubble(t, func(t *testing.T, net *network, a, b *node) {
		put(t, a, 1, snapSize)
		pair(a, b)
		net.set(b.addr, refusing)
		tries := 0
		for range 600 {
			if sent := a.sentSnapshots(); len(sent) == tries {
				tries++
				a.tr.Send([]worker.RaftMessage{snapshotOf(1, b)})
			}
			settle(time.Second)
		}
		if tries > 600/2+10 || tries < 100 {
			t.Errorf("%d tries in 10 minutes", tries)
		}
		net.set(b.addr, reachable)
		settle(2 * retryMax)
		if len(a.sentSnapshots()) == tries {
			a.tr.Send([]worker.RaftMessage{snapshotOf(1, b)})
		}
		settle(2 * time.Second)
		content(t, b, 1, snapSize)
	})
}

// T3, at every edge of a transport's life.
func TestEverySnapshotIsAnswered(t *testing.T) {
	inBubble(t, func(t *testing.T, net *network, a, b *node) {
		put(t, a, 1, snapSize)
		a.start()
		a.tr.Send([]worker.RaftMessage{snapshotOf(1, b)}) // nobody knows b
		net.set(b.addr, blackhole)
		a.peer(b)
		for range 5 {
			a.tr.Send([]worker.RaftMessage{snapshotOf(1, b)})
		}
		missing := snapshotOf(1, b)
		missing.SnapshotFile = "no-such.snap"
		a.tr.Send([]worker.RaftMessage{missing})
		settle(time.Millisecond)
		a.stop()
		a.tr.Send([]worker.RaftMessage{snapshotOf(1, b)})
		got := a.sentSnapshots()
		if len(got) != 8 {
			t.Errorf("%d answers to 8 snapshots", len(got))
		}
		for _, s := range got {
			if s.Err == nil || s.Shard != 1 || s.Replica != 7 {
				t.Errorf("answered %+v", s)
			}
		}
	})
}
