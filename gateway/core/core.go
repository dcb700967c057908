package core

import (
	"slices"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/mortise-lock/mortise/shard"
)

// Core is one gateway's decisions. Not safe for concurrent use.
type Core struct {
	cfg    Config
	timers timers

	router     Router
	generation uint64
	shards     map[shard.ID]*shardState
	shardList  []*shardState // in order of id
	nodes      map[uint64]*node
	nodeList   []*node // in order of id

	byID      map[uint64]*request
	lastID    uint64
	lastOrd   uint64
	lastRenew uint64

	homeless []owner // to be routed anew
	homing   timer

	streams   map[StreamID]*stream
	bySess    map[shard.SessionID]*stream // the newest stream of each session here
	unary     map[shard.SessionID]*session
	calls     map[CallID]*call
	acquiring map[acquireKey]*call // unary acquires in progress
	locates   []*locate

	renewList  []*session // sessions with renewals to forward
	renewTimer timer

	stopping bool
	routes   uint64
}

// node is one exchange stream.
type node struct {
	id        uint64
	up        bool
	heardTime uint64 // largest node_time_ms, to be echoed
	lastHeard Time
	lastSent  Time // last beat
	outAt     int  // where in Output.Nodes
	beat      timer
}

// New returns a Core that knows no map and no node.
func New(cfg Config) *Core {
	cfg.Limits.setDefaults()
	c := &Core{
		cfg:       cfg,
		shards:    map[shard.ID]*shardState{},
		nodes:     map[uint64]*node{},
		byID:      map[uint64]*request{},
		streams:   map[StreamID]*stream{},
		bySess:    map[shard.SessionID]*stream{},
		unary:     map[shard.SessionID]*session{},
		calls:     map[CallID]*call{},
		acquiring: map[acquireKey]*call{},
	}
	c.homing.fire = c.rehome
	c.renewTimer.fire = c.forwardRenewals
	return c
}

// Step takes one input. now never falls. Timers that are due fire first.
func (c *Core) Step(in *Input, now Time, out *Output) {
	c.fireDue(now, out)
	defer c.fireDue(now, out)
	switch in.Kind {
	case StreamOpened:
		c.streamOpened(in.Stream, now, out)
	case StreamFrame:
		if st := c.streams[in.Stream]; st != nil {
			c.streamFrame(st, in.Frame, now, out)
		}
	case StreamHalfClosed:
		if st := c.streams[in.Stream]; st != nil {
			st.half = true
			c.settle(st)
		}
	case StreamClosed:
		if st := c.streams[in.Stream]; st != nil {
			c.dropStream(st)
		}
	case CallStarted:
		c.callStarted(in, now, out)
	case CallGone:
		if cl := c.calls[in.Call]; cl != nil {
			c.callGone(cl, now, out)
		}
	case CallUndelivered:
		c.undelivered(in.Request.(*lockv1.AcquireRequest), now, out)
	case NodeUp:
		c.nodeUp(in.Node, now, out)
	case NodeDown:
		c.nodeDown(in.Node, now, out)
	case NodeFrame:
		if n := c.nodes[in.Node]; n != nil && n.up {
			c.nodeFrame(n, in.Response, now, out)
		}
	case MapUpdate:
		c.mapUpdate(in.Map, in.Router, now, out)
	case Shutdown:
		c.stopping = true
		ids := make([]StreamID, 0, len(c.streams))
		for id := range c.streams {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		for _, id := range ids {
			c.streams[id].emit(c, now, out, &lockv1.SessionEvent{Event: &lockv1.SessionEvent_GoAway{GoAway: &lockv1.GoAwayEvent{}}})
		}
		c.giveUpAcquires(now, out)
	}
}

func (c *Core) fireDue(now Time, out *Output) {
	for t := c.timers.pop(now); t != nil; t = c.timers.pop(now) {
		t.fire(now, out)
	}
}

// Next returns when the next Tick is due.
func (c *Core) Next() (Time, bool) {
	if len(c.timers.heap) == 0 {
		return 0, false
	}
	return c.timers.heap[0].at, true
}

// Stats are sizes of tables, for metrics and for tests of leaks.
type Stats struct {
	Streams, Calls, UnarySessions, InFlight, Outstanding, Locates, Homeless, Timers, Nodes int
}

// Stats counts.
func (c *Core) Stats() Stats {
	st := Stats{Streams: len(c.streams), Calls: len(c.calls), UnarySessions: len(c.unary), InFlight: len(c.byID),
		Locates: len(c.locates), Homeless: len(c.homeless), Timers: len(c.timers.heap)}
	for _, n := range c.nodeList {
		if n.up {
			st.Nodes++
		}
	}
	for _, s := range c.shardList {
		st.Outstanding += s.count
	}
	return st
}

// Routes changes whenever Ready may have.
func (c *Core) Routes() uint64 { return c.routes }

// Ready: a map is known and every shard's leader can be reached.
func (c *Core) Ready() (ok bool, shards, led int) {
	for _, s := range c.shardList {
		if n := c.nodes[s.leader]; n != nil && n.up {
			led++
		}
	}
	return c.router != nil && led == len(c.shardList), len(c.shardList), led
}

func (c *Core) nodeOut(n *node, out *Output) *NodeSend {
	if n.outAt < len(out.Nodes) && out.Nodes[n.outAt].Node == n.id {
		return &out.Nodes[n.outAt]
	}
	n.outAt = len(out.Nodes)
	out.Nodes = append(out.Nodes, NodeSend{Node: n.id, Echo: n.heardTime})
	return &out.Nodes[n.outAt]
}

func (c *Core) nodeUp(id uint64, now Time, out *Output) {
	c.routes++
	n := c.nodes[id]
	if n == nil {
		n = &node{id: id}
		c.nodes[id] = n
		i, _ := slices.BinarySearchFunc(c.nodeList, id, func(n *node, id uint64) int { return cmp64(n.id, id) })
		c.nodeList = slices.Insert(c.nodeList, i, n)
		n.beat.fire = func(now Time, out *Output) { c.nodeBeat(n, now, out) }
	}
	if n.up {
		c.nodeDown(id, now, out)
	}
	n.up, n.heardTime, n.lastHeard, n.lastSent = true, 0, now, now
	c.timers.set(&n.beat, now+time.Second)
	c.nodeOut(n, out) // the first frame makes the node tell its leaders
	for _, s := range c.shardList {
		if s.leader == id {
			c.timers.stop(&s.unblock)
			c.dispatch(s, now, out)
		}
	}
	c.locatesMoved(now, out)
}

func (c *Core) nodeBeat(n *node, now Time, out *Output) {
	if now-n.lastHeard > staleAfter || (now-n.lastHeard > deafAfter && c.owes(n, now)) {
		out.DropNodes = append(out.DropNodes, n.id)
		c.nodeDown(n.id, now, out)
		return
	}
	if now-n.lastSent >= beatEvery {
		c.nodeOut(n, out)
		n.lastSent = now
	}
	c.timers.set(&n.beat, now+time.Second)
}

// owes: the node has left a request unanswered for long. Waits owe nothing.
func (c *Core) owes(n *node, now Time) bool {
	for _, r := range c.byID {
		if r.node == n.id && now-r.sent > deafAfter && !r.waits {
			return true
		}
	}
	return false
}

func (c *Core) nodeDown(id uint64, now Time, out *Output) {
	c.routes++
	n := c.nodes[id]
	if n == nil || !n.up {
		return
	}
	n.up = false
	c.timers.stop(&n.beat)
	for _, s := range c.shardList {
		if s.leader == id {
			s.leader = 0
		}
		parked := false
		for r := s.first; r != nil; r = r.next {
			if r.node == id {
				c.unsend(r)
				r.doubt, parked = true, true
			}
		}
		if parked && s.unblock.pos == 0 {
			c.backOff(s, now, 0)
		}
	}
	c.locatesNodeDown(id, now, out)
}

func (c *Core) nodeFrame(n *node, f *nodev1.ExchangeResponse, now Time, out *Output) {
	n.lastHeard = now
	n.heardTime = max(n.heardTime, f.NodeTimeMs)
	for _, h := range f.Leaders {
		c.learn(h, now, out)
	}
	// News first: the end of a registration says why its waits ended, which
	// their own answers, in the same frame, do not.
	for _, p := range f.Pushes {
		c.pushed(p, now, out)
	}
	for _, resp := range f.Responses {
		c.response(n, resp, now, out)
	}
	for _, r := range f.Renewed {
		c.renewed(n, r, now, out)
	}
	if len(f.Leaders) > 0 {
		c.locatesMoved(now, out)
	}
}

func (c *Core) mapUpdate(m *placementv1.Map, r Router, now Time, out *Output) {
	c.routes++
	if m == nil || r == nil || (c.router != nil && m.Generation <= c.generation) {
		return
	}
	c.router, c.generation = r, m.Generation
	c.shardList = c.shardList[:0]
	for _, ms := range m.Shards {
		if ms.Id == 0 {
			continue // the meta shard owns no names and no sessions
		}
		s := c.shards[shard.ID(ms.Id)]
		if s == nil {
			s = &shardState{id: shard.ID(ms.Id)}
			c.shards[s.id] = s
		}
		s.replicas = s.replicas[:0]
		for _, rep := range ms.Replicas {
			if !rep.Learner {
				s.replicas = append(s.replicas, rep.Node)
			}
		}
		c.shardList = append(c.shardList, s)
	}
	slices.SortFunc(c.shardList, func(a, b *shardState) int { return int(a.id) - int(b.id) })
	c.rehome(now, out)
	c.locatesMoved(now, out)
}

// rehome routes anew what had no shard.
func (c *Core) rehome(now Time, out *Output) {
	c.timers.stop(&c.homing)
	list := c.homeless
	c.homeless = nil
	for _, o := range list {
		o.again(c, now, out)
	}
}

// route finds the shard of a name; without one the owner waits for a map.
func (c *Core) route(name string, o owner, now Time) *shardState {
	if c.router != nil {
		if id, ok := c.router.Route(name); ok {
			if s := c.shards[id]; s != nil {
				return s
			}
		}
	}
	c.homeless = append(c.homeless, o)
	c.timers.setEarlier(&c.homing, now+backoffMax)
	return nil
}

// pushed handles news of a session.
func (c *Core) pushed(p *nodev1.Push, now Time, out *Output) {
	id, ok := sessionID(p.SessionId)
	if !ok {
		return
	}
	if st := c.bySess[id]; st != nil {
		st.pushed(c, p, now, out)
	}
	if u := c.unary[id]; u != nil {
		if e := p.GetRegistrationEnded(); e != nil {
			if g := u.find(shard.ID(e.Shard)); g != nil && g.num == e.Registration {
				c.endRegistration(g, e.Reason, now, out)
			}
		}
	}
}

func (c *Core) note(out *Output, audit bool, msg string, attrs ...any) {
	out.Notes = append(out.Notes, Note{Audit: audit, Message: msg, Attrs: attrs})
}

func sessionID(b []byte) (id shard.SessionID, ok bool) {
	if len(b) != len(id) {
		return id, false
	}
	copy(id[:], b)
	return id, true
}

func cmp64(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
