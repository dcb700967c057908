package core

import (
	"fmt"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
	"google.golang.org/grpc/codes"
)

// shardState is what the gateway knows of one shard.
type shardState struct {
	id       shard.ID
	replicas []uint64 // nodes, from the map

	// Leader cache (G5). leader 0: unknown, or suspected not to lead.
	leader uint64
	term   uint64

	// Outstanding requests in order of acceptance.
	first, last *request
	count       int

	// blocked until the timer fires or a leader is learned.
	backoff Time     // the next backoff
	hops    int      // leaders tried since the last success
	probe   int      // the next replica to ask when no leader is known
	asking  *request // the question that is out; it may be over
	unblock timer
}

// request is one outstanding request to a shard (or, for Locate, to a node).
type request struct {
	id    uint64 // of its present sending
	ord   uint64
	shard *shardState
	node  uint64 // where it is in flight; 0: parked
	from  uint64 // who answered last
	term  uint64 // the shard's term as known when it was sent
	sent  Time
	waits bool // it was answered that it waits
	pb    nodev1.Request
	// doubt: an earlier sending may have been applied although its answer was
	// not heard.
	doubt bool
	owner owner

	prev, next *request // list of the shard
	sess       *session // nil for requests of no session
	sessPos    int
}

// owner gets a request's answer: final, but for an acquire that waits. It is
// never a refusal that is worth a retry; those stay in here.
type owner interface {
	answered(c *Core, r *request, resp *nodev1.Response, now Time, out *Output)
	// again routes anew after a shard said that it does not own the name.
	again(c *Core, now Time, out *Output)
}

func (s *shardState) push(r *request) {
	r.shard = s
	r.prev = s.last
	if s.last != nil {
		s.last.next = r
	} else {
		s.first = r
	}
	s.last = r
	s.count++
}

func (s *shardState) unlink(r *request) {
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		s.first = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		s.last = r.prev
	}
	r.prev, r.next = nil, nil
	s.count--
}

// start accepts a request for a shard and sends it when it can be sent.
func (c *Core) start(s *shardState, r *request, now Time, out *Output) {
	c.lastOrd++
	r.ord = c.lastOrd
	s.push(r)
	if r.sess != nil {
		r.sessPos = len(r.sess.reqs)
		r.sess.reqs = append(r.sess.reqs, r)
	}
	if n := c.ready(s); n != nil {
		c.send(n, r, now, out)
		return
	}
	if s.unblock.pos == 0 {
		// No backoff is running: look for the leader at once.
		c.dispatch(s, now, out)
	}
}

// forget ends a request without telling anybody (G1).
func (c *Core) forget(r *request) {
	c.unsend(r)
	if r.shard != nil {
		r.shard.unlink(r)
		r.shard = nil
	}
	if s := r.sess; s != nil {
		last := len(s.reqs) - 1
		s.reqs[r.sessPos] = s.reqs[last]
		s.reqs[r.sessPos].sessPos = r.sessPos
		s.reqs[last] = nil
		s.reqs = s.reqs[:last]
		r.sess = nil
	}
}

func (c *Core) unsend(r *request) {
	if r.node == 0 {
		return
	}
	delete(c.byID, r.id)
	r.node = 0
}

// ready returns the node to send a shard's requests to, or nil.
func (c *Core) ready(s *shardState) *node {
	if s.leader == 0 || s.unblock.pos != 0 {
		return nil
	}
	if n := c.nodes[s.leader]; n != nil && n.up {
		return n
	}
	return nil
}

// send puts a request on a node's stream under a fresh id.
func (c *Core) send(n *node, r *request, now Time, out *Output) {
	c.unsend(r)
	c.lastID++
	r.id, r.node, r.sent, r.waits = c.lastID, n.id, now, false
	c.byID[r.id] = r
	pb := &nodev1.Request{Id: r.id, MapGeneration: c.generation, Op: r.pb.Op}
	if r.shard != nil {
		pb.Shard, r.term = uint32(r.shard.id), r.shard.term
	}
	o := c.nodeOut(n, out)
	o.Requests = append(o.Requests, pb)
}

// dispatch sends all of a shard's requests that are not in flight at its
// leader; without a leader, one of them as a question to the next replica.
func (c *Core) dispatch(s *shardState, now Time, out *Output) {
	if s.first == nil {
		return
	}
	if n := c.ready(s); n != nil {
		for r := s.first; r != nil; r = r.next {
			if r.node != n.id || r.term != s.term {
				r.doubt = r.doubt || r.node != 0
				c.send(n, r, now, out)
			}
		}
		return
	}
	if s.unblock.pos != 0 {
		return
	}
	c.ask(s, now, out) // no leader is known, or it can't be reached
	c.backOff(s, now, 0)
}

// ask sends the first parked request to the next replica, whose answer tells
// who leads. An earlier question gets a second before it is given up.
func (c *Core) ask(s *shardState, now Time, out *Output) {
	r := s.first
	for r != nil && r.node != 0 && (r != s.asking || now-r.sent < time.Second) {
		if r == s.asking {
			return
		}
		r = r.next
	}
	if r == nil {
		return
	}
	for range s.replicas {
		n := c.nodes[s.replicas[s.probe%len(s.replicas)]]
		s.probe++
		if n != nil && n.up {
			s.asking = r
			r.doubt = r.doubt || r.node != 0
			c.send(n, r, now, out)
			return
		}
	}
}

// backOff blocks a shard's sending for a while, which grows.
func (c *Core) backOff(s *shardState, now Time, atLeast time.Duration) {
	if s.backoff < backoffMin {
		s.backoff = backoffMin
	}
	d := s.backoff/2 + Time(c.cfg.Random()%uint64(s.backoff/2+1))
	s.backoff = min(s.backoff*2, backoffMax)
	d = max(d, min(atLeast, time.Second))
	if s.unblock.fire == nil {
		s.unblock.fire = func(now Time, out *Output) {
			s.hops = 0
			c.dispatch(s, now, out)
		}
	}
	if s.unblock.pos == 0 || s.unblock.at < now+d {
		c.timers.set(&s.unblock, now+d)
	}
}

// learn takes a leader hint from anywhere. The highest term wins (G5); of the
// same term, a known leader beats none.
func (c *Core) learn(h *nodev1.LeaderHint, now Time, out *Output) {
	if h == nil {
		return
	}
	s := c.shards[shard.ID(h.Shard)]
	if s == nil || h.Term < s.term || (h.Term == s.term && (h.Node == 0 || h.Node == s.leader)) {
		return
	}
	if h.Term == s.term && s.leader != 0 {
		return // two leaders of one term do not exist: one of them is a rumour
	}
	newTerm := h.Term > s.term
	c.routes++
	s.term, s.leader = h.Term, h.Node
	if h.Node == 0 {
		return
	}
	if newTerm {
		s.backoff, s.hops = 0, 0
		c.timers.stop(&s.unblock)
	} else if s.hops++; s.hops > maxHops {
		return // the same rumour again: wait for the backoff
	} else {
		c.timers.stop(&s.unblock)
	}
	c.dispatch(s, now, out)
	c.renewalsMoved(now)
}

// response handles one answer of a node.
func (c *Core) response(n *node, resp *nodev1.Response, now Time, out *Output) {
	r := c.byID[resp.Id]
	if r == nil || r.node != n.id {
		c.learn(resp.Leader, now, out)
		return // answer to an earlier sending, or to one that was forgotten
	}
	r.from = n.id
	s := r.shard
	if f := resp.Failure; f != nil && s != nil {
		// An overloaded shard is the caller's to hear of before it gets a lock;
		// what gives back or closes goes on until it is done.
		overloaded := reason(f) == reasonOverloaded && r.pb.GetAcquire() == nil
		if isRetryable(f) || reason(f) == reasonNotOwner || overloaded {
			c.refused(n, r, resp, now, out)
			return
		}
		if o, ok := r.owner.(*op); ok && r.doubt && o.kind == opAcquire && isNotAdmitted(f) {
			c.unsend(r)
			c.withdraw(o, f, now, out)
			return
		}
	}
	if s != nil {
		if s.leader == 0 && resp.Failure == nil {
			// It answered, so it leads.
			s.leader = n.id
			c.routes++
			c.timers.stop(&s.unblock)
			defer c.dispatch(s, now, out)
		}
		s.backoff, s.hops = 0, 0
	}
	if resp.GetAcquire().GetWaiting() == nil {
		c.forget(r)
	} else {
		r.waits = true
	}
	r.owner.answered(c, r, resp, now, out)
}

// refused handles an answer that asks for another try.
func (c *Core) refused(n *node, r *request, resp *nodev1.Response, now Time, out *Output) {
	s, f := r.shard, resp.Failure
	c.unsend(r)
	switch reason(f) {
	case reasonNotOwner:
		out.WantMap = true
		c.forget(r)
		c.homeless = append(c.homeless, r.owner)
		c.timers.setEarlier(&c.homing, now+backoffMax)
		return
	case reasonNotLeader, ReasonNoLeader:
		if s.leader == n.id {
			s.leader = 0 // suspected; a hint may restore it
			c.routes++
		}
	case reasonOverloaded, reasonTransferring:
		// Nothing was proposed.
	default:
		r.doubt = true
	}
	c.learn(resp.Leader, now, out)
	if r.node != 0 {
		return // the hint sent it on
	}
	if s.leader != n.id && c.ready(s) != nil {
		c.dispatch(s, now, out) // another is known to lead since
		return
	}
	if s.unblock.pos == 0 {
		c.backOff(s, now, time.Duration(f.GetDetail().GetRetryAfterMs())*time.Millisecond)
	}
}

// noLeader is what a caller is told whose time is over.
func (c *Core) noLeader(s *shardState) *lockv1.Failure {
	if s == nil {
		f := fail(codes.Unavailable, ReasonNoMap, "", "", "this gateway has no placement map yet: it reached no node of the cluster")
		f.Detail.RetryAfterMs = 250
		return f
	}
	who := "no leader is known"
	if s.leader != 0 {
		who = fmt.Sprintf("its leader, node %d, did not answer", s.leader)
	}
	f := fail(codes.Unavailable, ReasonNoLeader, "", "",
		fmt.Sprintf("shard %d did not answer in time: %s (term %d, map generation %d)", s.id, who, s.term, c.generation))
	f.Detail.Shard, f.Detail.MapGeneration, f.Detail.RetryAfterMs = uint32(s.id), c.generation, 250
	return f
}
