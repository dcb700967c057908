package core

import (
	"slices"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
)

// session is one session as this gateway uses it: by a stream, or by unary
// calls (stream nil, attachment 0). The two never share registrations' state,
// since what they send carries different attachments.
type session struct {
	id         shard.SessionID
	ttl        time.Duration
	client     string
	attachment uint64
	stream     *stream
	doneBelow  uint64
	regs       []*reg // in order of shard
	reqs       []*request
	renew      renewal

	// Unary only.
	calls   []*call // those that wait for something of this session
	idle    timer
	hadRegs bool
	lost    []*lockv1.LostHold
}

type regState uint8

const (
	regNone        regState = iota
	regRegistering          // Register is out
	regAttaching            // Attach is out
	regListing              // Inventory after a resume is out; the client hears nothing before it
	regLive
	regClosing // CloseRegistration is out
	regEnded
)

// reg is a session's presence in one shard.
type reg struct {
	sess  *session
	shard *shardState
	state regState
	num   uint64
	epoch uint64 // newest that the client, or this gateway for unary calls, knows
	queue []*op
	held  []*nodev1.Push // pushes that came before the inventory
	found *nodev1.Located

	// Renewals.
	sentNum   uint64 // newest number forwarded …
	sentNode  uint64 // … to this node …
	sentAt    Time   // … at this time
	covered   uint64 // newest number that was acknowledged
	coveredAt Time   // when that number was sent
}

func (s *session) index(id shard.ID) (int, bool) {
	return slices.BinarySearchFunc(s.regs, id, func(g *reg, id shard.ID) int { return int(g.shard.id) - int(id) })
}

func (s *session) find(id shard.ID) *reg {
	if i, ok := s.index(id); ok {
		return s.regs[i]
	}
	return nil
}

// at returns the registration record for a shard, making an empty one.
func (s *session) at(sh *shardState) *reg {
	i, ok := s.index(sh.id)
	if !ok {
		s.regs = slices.Insert(s.regs, i, &reg{sess: s, shard: sh})
	}
	return s.regs[i]
}

func (s *session) remove(g *reg) {
	if i, ok := s.index(g.shard.id); ok && s.regs[i] == g {
		s.regs = slices.Delete(s.regs, i, i+1)
	}
}

// register begins a registration unless one is under way (G4).
func (c *Core) register(g *reg, now Time, out *Output) {
	if g.state != regNone {
		return
	}
	g.state = regRegistering
	r := &request{owner: &regRequest{g}, sess: g.sess}
	r.pb.Op = &nodev1.Request_Register{Register: &nodev1.Register{SessionId: g.sess.id[:], Client: g.sess.client,
		TtlMs: uint64(g.sess.ttl / time.Millisecond), Attachment: g.sess.attachment}}
	c.start(g.shard, r, now, out)
}

// attach makes this stream's attachment the one in force (G3).
func (c *Core) attach(g *reg, now Time, out *Output) {
	g.state = regAttaching
	r := &request{owner: &regRequest{g}, sess: g.sess}
	r.pb.Op = &nodev1.Request_Attach{Attach: &nodev1.Attach{Registration: g.num, Attachment: g.sess.attachment}}
	c.start(g.shard, r, now, out)
}

// list reads the registration's inventory for the client.
func (c *Core) list(g *reg, now Time, out *Output) {
	r := &request{owner: &regRequest{g}, sess: g.sess}
	r.pb.Op = &nodev1.Request_Inventory{Inventory: &nodev1.Inventory{Registration: g.num}}
	c.start(g.shard, r, now, out)
}

// regRequest owns Register, Attach and Inventory of one registration.
type regRequest struct{ g *reg }

func (q *regRequest) again(c *Core, now Time, out *Output) {}

func (q *regRequest) answered(c *Core, r *request, resp *nodev1.Response, now Time, out *Output) {
	g := q.g
	if g.state == regEnded {
		return
	}
	if f := resp.Failure; f != nil {
		c.regRefused(g, r, f, now, out)
		return
	}
	switch {
	case resp.GetRegister() != nil:
		a := resp.GetRegister()
		if g.state != regRegistering {
			return
		}
		g.num, g.epoch = a.Registration, max(g.epoch, a.Epoch)
		if a.Attachment > g.sess.attachment && g.sess.stream != nil {
			c.endStream(g.sess.stream, superseded(), now, out)
			return
		}
		if a.Attachment < g.sess.attachment {
			c.attach(g, now, out)
			return
		}
		c.regOpen(g, now, out)
	case r.pb.GetAttach() != nil:
		c.regOpen(g, now, out)
	case resp.GetInventory() != nil:
		inv := resp.GetInventory()
		inv.Shard, inv.Registration = uint32(g.shard.id), g.num
		if st := g.sess.stream; st != nil {
			g.epoch = max(g.epoch, inv.Epoch)
			st.emit(c, now, out, &lockv1.SessionEvent{Event: &lockv1.SessionEvent_Inventory{Inventory: inv}})
		}
		if g.state == regListing {
			c.regLiveNow(g, now, out)
		}
	}
}

// regOpen: the attachment is in force. Unless the registration is this
// stream's own, the client gets its inventory first.
func (c *Core) regOpen(g *reg, now Time, out *Output) {
	st := g.sess.stream
	g.sess.hadRegs = true
	if st != nil && st.state == streamClosing {
		g.state = regLive
		c.closeStep(st, now, out)
		return
	}
	if st != nil && (g.found != nil || st.loc.missing(g.shard.id)) {
		g.state = regListing
		if st.state == streamResuming {
			c.resumeStep(st, now, out) // the inventory is asked for after Resumed
			return
		}
		c.list(g, now, out)
		return
	}
	c.regLiveNow(g, now, out)
}

func (c *Core) regLiveNow(g *reg, now Time, out *Output) {
	g.state = regLive
	g.sentNum = 0 // ask for its renewal
	held := g.held
	g.held = nil
	if st := g.sess.stream; st != nil {
		c.settle(st)
		for _, p := range held {
			st.pushed(c, p, now, out)
		}
		if g.state != regLive {
			return
		}
	}
	queue := g.queue
	g.queue = nil
	for _, o := range queue {
		if !o.over {
			c.sendOp(o, now, out)
		}
	}
	if g.sess.stream != nil && g.sess.renew.number != 0 {
		c.wantRenewal(g.sess, now)
	}
}

// regRefused: Register, Attach or Inventory was refused for good.
func (c *Core) regRefused(g *reg, r *request, f *lockv1.Failure, now Time, out *Output) {
	st := g.sess.stream
	switch {
	case isOldAttachment(f) && st != nil:
		c.endStream(st, superseded(), now, out)
	case isRegistrationGone(f):
		if r.pb.GetRegister() == nil && g.num != 0 {
			c.endRegistration(g, lockv1.LostReason_LOST_REASON_UNSPECIFIED, now, out)
		}
	case r.pb.GetInventory() != nil && g.state == regLive:
		// An inventory for comparison: the client will ask again.
	default:
		// No registration: everything queued behind it is refused likewise.
		g.state = regEnded
		g.sess.remove(g)
		queue := g.queue
		g.queue = nil // the end of a unary call takes its operations out of it
		for _, o := range queue {
			if !o.over {
				c.opRefused(o, f, now, out)
			}
		}
		if st != nil && st.state == streamResuming {
			c.resumeStep(st, now, out)
		} else if st != nil && st.state == streamClosing {
			c.closeStep(st, now, out)
		}
	}
}

// endRegistration: the registration is not live any more. Its acquires end;
// what comes next registers anew.
func (c *Core) endRegistration(g *reg, why lockv1.LostReason, now Time, out *Output) {
	if g.state == regEnded || g.state == regNone {
		return
	}
	g.state = regEnded
	s := g.sess
	s.remove(g)
	if st := s.stream; st != nil {
		st.emit(c, now, out, &lockv1.SessionEvent{Event: &lockv1.SessionEvent_RegistrationEnded{
			RegistrationEnded: &lockv1.RegistrationEndedEvent{Shard: uint32(g.shard.id), Registration: g.num, Reason: why}}})
	}
	// In order of acceptance, so that the client hears it in its own order.
	var ops []*op
	for _, r := range slices.Clone(s.reqs) {
		switch o := r.owner.(type) {
		case *op:
			if o.reg == g && o.num == g.num {
				c.forget(r)
				ops = append(ops, o)
			}
		case *regRequest:
			if o.g == g {
				c.forget(r)
			}
		}
	}
	slices.SortFunc(ops, func(a, b *op) int { return cmp64(a.ord, b.ord) })
	for _, o := range append(ops, g.queue...) {
		if !o.over {
			c.opRegistrationGone(o, now, out)
		}
	}
	g.queue = nil
	if st := s.stream; st != nil && st.state == streamResuming {
		c.resumeStep(st, now, out)
	} else if st != nil && st.state == streamClosing {
		c.closeStep(st, now, out)
	}
	c.checkSessionCalls(s, now, out)
}
