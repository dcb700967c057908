package worker

import (
	"encoding/binary"
	"fmt"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
)

// client is one session in one shard, as the gateway and SDK would act for it.
type client struct {
	s       *sim
	shard   shard.ID
	session [16]byte
	ttl     uint64 // ms
	reg     uint64
	seq     uint64
	number  uint64
	stream  StreamID
	attach  uint64
	sent    map[uint64]Time // renewal number -> when sent
	epoch   uint64
	covered Time // send time of the newest acknowledged renewal
}

var clientSeq uint64

func (s *sim) client(id shard.ID, ttlMS uint64) *client {
	clientSeq++
	c := &client{s: s, shard: id, ttl: ttlMS, attach: 1, stream: StreamID(clientSeq), sent: map[uint64]Time{}}
	binary.BigEndian.PutUint64(c.session[8:], clientSeq)
	c.register()
	return c
}

func (c *client) register() {
	resp := c.s.do(c.shard, c.stream, &nodev1.Request{Op: &nodev1.Request_Register{Register: &nodev1.Register{
		SessionId: c.session[:], Client: fmt.Sprintf("c%d", c.stream), TtlMs: c.ttl, Attachment: c.attach}}})
	c.reg = resp.GetRegister().GetRegistration()
	if c.reg == 0 {
		c.s.t.Fatalf("register: %v", resp)
	}
}

// send gives a request to a node and returns its id.
func (s *sim) send(n *simNode, stream StreamID, id shard.ID, req *nodev1.Request) uint64 {
	s.nextID++
	req.Id, req.Shard = s.nextID, uint32(id)
	n.in.Requests = append(n.in.Requests, Request{Stream: stream, Req: req})
	return req.Id
}

// do asks until there is a final answer or the present state of a wait.
func (s *sim) do(id shard.ID, stream StreamID, req *nodev1.Request) *nodev1.Response {
	s.t.Helper()
	for end := s.now + 30*second; s.now < end; {
		n := s.leader(id)
		if n == nil {
			s.run(10 * milli)
			continue
		}
		rid := s.send(n, stream, id, req)
		for end := s.now + 3*second; len(s.responses[rid]) == 0 && s.now < end && n.up; {
			s.run(milli)
		}
		if rs := s.responses[rid]; len(rs) > 0 {
			switch rs[0].GetFailure().GetDetail().GetReason() {
			case ReasonNotLeader, ReasonOutcomeUnknown:
			default:
				return rs[0]
			}
		}
		s.run(10 * milli)
	}
	s.t.Fatalf("no answer to %v", req)
	return nil
}

func (c *client) acquireReq(seq uint64, name string, waitMS uint64) *nodev1.Request {
	return &nodev1.Request{Op: &nodev1.Request_Acquire{Acquire: &nodev1.Acquire{Acting: &nodev1.Acting{Registration: c.reg, Attachment: c.attach},
		Id: &nodev1.AcquireId{Seq: seq}, Name: name, Mode: lockv1.Mode_MODE_EXCLUSIVE, WaitMs: waitMS}}}
}

func (c *client) acquire(name string, waitMS uint64) *nodev1.Response {
	c.s.t.Helper()
	c.seq++
	return c.s.do(c.shard, c.stream, c.acquireReq(c.seq, name, waitMS))
}

// mustAcquire returns the token.
func (c *client) mustAcquire(name string) uint64 {
	c.s.t.Helper()
	resp := c.acquire(name, 0)
	g := resp.GetAcquire().GetGranted()
	if g == nil {
		c.s.t.Fatalf("acquire %s: %v", name, resp)
	}
	return g.Token
}

func (c *client) release(seq uint64, name string, token uint64) *nodev1.Response {
	c.s.t.Helper()
	return c.s.do(c.shard, c.stream, &nodev1.Request{Op: &nodev1.Request_Release{Release: &nodev1.Release{
		Acting: &nodev1.Acting{Registration: c.reg, Attachment: c.attach}, Id: &nodev1.AcquireId{Seq: seq}, Name: name, Token: token}}})
}

// renew sends one heartbeat to the nodes given, or to all that are up.
func (c *client) renew(nodes ...*simNode) uint64 {
	c.number++
	c.sent[c.number] = c.s.now
	if len(nodes) == 0 {
		nodes = c.s.nodes
	}
	for _, n := range nodes {
		if n.up {
			n.in.Renewals = append(n.in.Renewals, Renewals{Stream: c.stream, Batch: &nodev1.RenewBatch{Renewals: []*nodev1.Renew{{
				SessionId: c.session[:], Number: c.number, Attachment: c.attach,
				Known: []*lockv1.KnownEpoch{{Shard: uint32(c.shard), Registration: c.reg, Epoch: c.epoch}}}}}})
		}
	}
	return c.number
}

// acks collects what the workers say of renewals and pushes, by stream.
type acks struct {
	covered map[StreamID]uint64 // newest number acknowledged
	ended   map[StreamID]bool
	lost    map[StreamID]int
	coverAt map[StreamID]Time
	byNode  map[NodeID]int
}

func (s *sim) watch() *acks {
	a := &acks{map[StreamID]uint64{}, map[StreamID]bool{}, map[StreamID]int{}, map[StreamID]Time{}, map[NodeID]int{}}
	prev := s.onReply
	s.onReply = func(n *simNode, r Reply) {
		if prev != nil {
			prev(n, r)
		}
		if r.Renewed != nil && len(r.Renewed.Covered) > 0 {
			a.covered[r.Stream] = max(a.covered[r.Stream], r.Renewed.Number)
			a.coverAt[r.Stream] = s.now
			a.byNode[n.id]++
		}
		if r.Push.GetRegistrationEnded() != nil {
			a.ended[r.Stream] = true
		}
		if r.Push.GetLost() != nil {
			a.lost[r.Stream]++
		}
	}
	return a
}

// live tells whether the registration is live at the shard's leader.
func (c *client) live() bool {
	n := c.s.leader(c.shard)
	if n == nil {
		return true
	}
	_, ok := n.w.byShard[c.shard].m.Get(shard.Registration(c.reg))
	return ok
}

// nameIn returns a name that the shard owns.
func (s *sim) nameIn(id shard.ID, i int) string {
	for k := i * 1000; ; k++ {
		name := fmt.Sprintf("job/%d", k)
		for _, n := range s.nodes {
			if n.up {
				if n.w.byShard[id].m.Owns(name) {
					return name
				}
				break
			}
		}
	}
}
