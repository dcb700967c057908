package crash

import (
	"fmt"
	"io"

	"github.com/mortise-lock/mortise/node/worker"
	"github.com/mortise-lock/mortise/placement"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
)

const milli = worker.Time(1_000_000)

// restarted is the cluster that starts after a crash: the nodes' workers on one
// thread and virtual time, over a network and disks that take 1 ms.
type restarted struct {
	now     worker.Time
	nodes   map[worker.NodeID]*restartedNode
	order   []*restartedNode
	answers map[uint64]*nodev1.Response
	asked   uint64
	err     error // the first that ended a node
}

type restartedNode struct {
	*recovered
	c        *restarted
	w        *worker.Worker
	in, next worker.Input // next arrives in the next millisecond
	out      worker.Output
	tickAt   worker.Time
	received int // snapshots
	// machines are all that the worker was ever handed; one is in use.
	machines map[shard.ID][]*shard.Machine
}

func restart(all []*recovered) (*restarted, error) {
	c := &restarted{now: 1000 * milli, nodes: map[worker.NodeID]*restartedNode{}, answers: map[uint64]*nodev1.Response{}}
	for i, r := range all {
		cfg, err := r.config()
		if err != nil {
			return nil, err
		}
		n := &restartedNode{recovered: r, c: c, tickAt: c.now + worker.Time(i)*30*milli, machines: map[shard.ID][]*shard.Machine{}}
		for _, rep := range cfg.Replicas {
			if rep.Machine != nil {
				n.machines[rep.Shard] = []*shard.Machine{rep.Machine}
			}
		}
		if n.w, err = worker.New(cfg); err != nil {
			return nil, fmt.Errorf("node %d: %w", r.node, err)
		}
		c.nodes[r.node] = n
		c.order = append(c.order, n)
	}
	return c, nil
}

// until runs for at most 30 s.
func (c *restarted) until(what string, ok func() bool) error {
	for end := c.now + 30_000*milli; !ok(); c.now += milli {
		if c.now >= end {
			return fmt.Errorf("%s: not within 30 s", what)
		}
		for _, n := range c.order {
			n.in, n.next = n.next, worker.Input{}
			for ; n.tickAt <= c.now; n.tickAt += 100 * milli {
				n.in.Ticks++
			}
			n.step()
		}
		if c.err != nil {
			return c.err
		}
	}
	return nil
}

func (n *restartedNode) step() {
	i := &n.in
	if len(i.Messages)+i.Ticks+len(i.Requests)+len(i.Synced)+len(i.SnapshotsWritten)+len(i.SnapshotsSent) == 0 && (n.out.Next == 0 || n.out.Next > n.c.now) {
		return
	}
	i.Now = n.c.now
	n.w.Step(i, &n.out)
	o := &n.out
	if o.Fatal != nil {
		n.c.fail(n, o.Fatal)
	}
	n.next.Synced = append(n.next.Synced, o.Appends...)
	for _, m := range o.Messages {
		if err := n.send(m); err != nil {
			n.c.fail(n, err)
		}
	}
	for _, s := range o.Snapshots {
		n.next.SnapshotsWritten = append(n.next.SnapshotsWritten, n.write(s))
	}
	for _, f := range o.RemoveFiles {
		if err := n.folder.Remove(f); err != nil {
			n.c.fail(n, err)
		}
	}
	for _, r := range o.Replies {
		if r.Response != nil && n.c.answers[r.Response.Id] == nil {
			n.c.answers[r.Response.Id] = r.Response
		}
	}
}

func (c *restarted) fail(n *restartedNode, err error) {
	if c.err == nil {
		c.err = fmt.Errorf("node %d: %w", n.node, err)
	}
}

func (n *restartedNode) write(s worker.WriteSnapshot) worker.SnapshotWritten {
	defer s.Snapshot.Close()
	done := worker.SnapshotWritten{Shard: s.Shard, File: s.File, Index: s.Index}
	w, err := n.folder.Create(s.File, s.Shard, s.Index)
	if err == nil {
		defer w.Abort()
		if _, err = s.Snapshot.WriteSnapshot(w); err == nil {
			done.Bytes, err = w.Commit()
		}
	}
	done.Err = err
	return done
}

// send takes a message to its node, with the snapshot that it speaks of.
func (n *restartedNode) send(m worker.RaftMessage) error {
	to := n.c.nodes[m.Peer]
	m.Peer = n.node
	if m.SnapshotFile != "" {
		from := m.SnapshotFile
		to.received++
		m.SnapshotFile = fmt.Sprintf("%d-received-%d.snap", m.Shard, to.received)
		if err := to.receive(n, from, &m); err != nil {
			return err
		}
		n.next.SnapshotsSent = append(n.next.SnapshotsSent, worker.SnapshotSent{Shard: m.Shard, Replica: m.Msg.GetTo()})
	}
	to.next.Messages = append(to.next.Messages, m)
	return nil
}

func (n *restartedNode) receive(from *restartedNode, file string, m *worker.RaftMessage) error {
	in, err := from.folder.OpenFile(file)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := n.folder.Receive(m.SnapshotFile, m.Shard, m.Msg.GetSnapshot().GetMetadata().GetIndex())
	if err != nil {
		return err
	}
	defer out.Abort()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	if _, err := out.Commit(); err != nil {
		return err
	}
	f, err := n.folder.Open(m.SnapshotFile)
	if err != nil {
		return err
	}
	defer f.Close()
	if m.Shard == 0 {
		m.RestoredMap, err = placement.Restore(f)
		return err
	}
	m.Restored, err = shard.Restore(f)
	n.machines[m.Shard] = append(n.machines[m.Shard], m.Restored)
	return err
}

// leader of the shard that is ready; nil if there is none.
func (c *restarted) leader(id shard.ID) *restartedNode {
	var best *restartedNode
	var term uint64
	for _, n := range c.order {
		if st, ok := n.w.Status(id); ok && st.Ready && st.Term > term {
			best, term = n, st.Term
		}
	}
	return best
}

// settled: each shard has a leader that serves, and all its replicas have
// applied the same.
func (c *restarted) settled() bool {
	for id := range c.order[0].states {
		l := c.leader(id)
		if l == nil {
			return false
		}
		for _, n := range c.order {
			if st, _ := n.w.Status(id); st.Applied != l.w.Applied(id) || st.LastIndex != st.Applied {
				return false
			}
		}
	}
	return true
}

// equal: replicas that have applied the same are in the same state.
func (c *restarted) equal() error {
	for id := range c.order[0].states {
		_, want, _ := c.order[0].w.Hash(id)
		for _, n := range c.order[1:] {
			if at, h, _ := n.w.Hash(id); h != want {
				return fmt.Errorf("shard %d: nodes %d and %d differ at index %d", id, c.order[0].node, n.node, at)
			}
		}
	}
	return nil
}

// machine is the state that the node's worker has now.
func (n *restartedNode) machine(id shard.ID) (*shard.Machine, error) {
	at, hash, _ := n.w.Hash(id)
	for _, m := range n.machines[id] {
		if m.Applied() == at && m.Hash() == hash {
			return m, nil
		}
	}
	return nil, fmt.Errorf("node %d shard %d: none of its machines is in use", n.node, id)
}

// ask sends a request to the shard's leader; its answer will be in answers.
func (c *restarted) ask(id shard.ID, r *nodev1.Request) (uint64, error) {
	n := c.leader(id)
	if n == nil {
		return 0, fmt.Errorf("shard %d has lost its leader", id)
	}
	c.asked++
	r.Id, r.Shard = c.asked, uint32(id)
	n.next.Requests = append(n.next.Requests, worker.Request{Stream: 1, Req: r})
	return r.Id, nil
}

// answered waits for the answers to all requests.
func (c *restarted) answered() error {
	return c.until("answers to all requests", func() bool { return uint64(len(c.answers)) == c.asked })
}
