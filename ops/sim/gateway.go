package sim

import (
	"maps"
	"slices"

	gwcore "github.com/mortise-lock/mortise/gateway/core"
	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"google.golang.org/grpc/codes"
)

// gateway is what package gateway is in production: the core, a stream to
// every node, the streams of clients, and unary calls.
type gateway struct {
	w   *World
	p   *proc
	idx int

	core    *gwcore.Core
	out     gwcore.Output
	inbox   []gwcore.Input
	batch   []gwcore.Input
	armed   bool
	wakeAt  Time
	started Time // on the clock that stands still
	inc     uint64
	lastID  uint64
	nodes   []*nodeConn
	streams map[gwcore.StreamID]*gwStream
	calls   map[gwcore.CallID]*gwCall
	order   []*gwStream // open, in order of opening
}

type (
	gwStep struct{ *gateway }
	gwWake struct{ *gateway }
)

func (w *World) newGateway(idx int, p *proc) *gateway {
	g := &gateway{w: w, p: p, idx: idx}
	p.accept[sessionConn] = g.acceptSession
	return g
}

// start makes a gateway that knows nothing yet; it gets the map from a node.
func (g *gateway) start() {
	w := g.w
	g.inc, g.started = g.p.inc, g.p.mono()
	g.core = gwcore.New(gwcore.Config{Sessions: w.codec, Random: w.rng.Uint64, WallMS: g.p.wallMS})
	g.inbox, g.armed, g.wakeAt = nil, false, 0
	g.streams, g.calls, g.order = map[gwcore.StreamID]*gwStream{}, map[gwcore.CallID]*gwCall{}, nil
	g.nodes = nil
	for _, n := range w.nodes {
		g.nodes = append(g.nodes, &nodeConn{g: g, n: n, wait: 50 * ms})
	}
	g.p.later(5*ms+w.upTo(200*ms), func() {
		g.post(gwcore.Input{Kind: gwcore.MapUpdate, Map: w.placed, Router: w.router})
		for _, nc := range g.nodes {
			nc.dial()
		}
	})
	w.note(g.p, "gateway runs")
}

// die kills a gateway that has a process of its own.
func (g *gateway) die(silent bool) {
	g.w.note(g.p, "gateway dies")
	g.p.die(silent)
	g.gone()
}

// gone: the process died. Who waits for an answer hears so.
func (g *gateway) gone() {
	for _, id := range slices.Sorted(maps.Keys(g.calls)) {
		g.calls[id].call.back(g, nil, resetFailure)
	}
	g.core, g.streams, g.calls, g.order, g.nodes = nil, nil, nil, nil, nil
}

func (g *gateway) now() gwcore.Time { return g.p.mono() - g.started }

func (g *gateway) post(in gwcore.Input) {
	g.inbox = append(g.inbox, in)
	g.wake()
}

func (g *gateway) wake() {
	if g.armed {
		return
	}
	g.armed = true
	g.w.q.push(g.w.now+10*us+g.w.upTo(g.w.cfg.StepTime), gwStep{g}, g.inc)
}

func (e gwStep) fire(inc uint64) {
	g := e.gateway
	if g.inc != inc || g.p.inc != inc {
		return
	}
	if g.p.paused {
		g.p.whenAwake(true, g.step)
		return
	}
	g.step()
}

func (e gwWake) fire(inc uint64) {
	g := e.gateway
	if g.inc != inc || g.p.inc != inc || g.wakeAt == 0 || g.w.now < g.wakeAt {
		return
	}
	g.wakeAt = 0
	g.wake()
}

func (g *gateway) step() {
	g.armed = false
	g.batch, g.inbox = g.inbox, g.batch[:0]
	for i := range g.batch {
		g.core.Step(&g.batch[i], g.now(), &g.out)
	}
	clear(g.batch)
	if at, ok := g.core.Next(); ok && at <= g.now() {
		g.core.Step(&gwcore.Input{Kind: gwcore.Tick}, g.now(), &g.out)
	}
	g.w.stats.Steps++
	g.w.mix(1<<63 ^ uint64(g.idx)<<56 ^ uint64(len(g.out.Nodes))<<40 ^ uint64(len(g.out.Streams))<<20 ^ uint64(len(g.out.Answers)))
	g.carryOut()
	g.out.Reset()
	if at, ok := g.core.Next(); ok {
		// mono and local differ by a constant while nothing sleeps.
		when := max(g.p.at(at+g.started+g.p.slept), g.w.now)
		if g.wakeAt == 0 || when < g.wakeAt {
			g.wakeAt = when
			g.w.q.push(when, gwWake{g}, g.inc)
		}
	}
}

func (g *gateway) carryOut() {
	out := &g.out
	for i := range out.Nodes {
		s := &out.Nodes[i]
		g.nodes[s.Node-1].send(s)
	}
	for _, id := range out.DropNodes {
		g.nodes[id-1].reset()
	}
	for i := range out.Streams {
		g.toClient(&out.Streams[i])
	}
	for i := range out.Answers {
		g.answer(&out.Answers[i])
	}
	if out.WantMap {
		g.p.later(ms+g.w.upTo(20*ms), func() {
			g.post(gwcore.Input{Kind: gwcore.MapUpdate, Map: g.w.placed, Router: g.w.router})
		})
	}
}

func (g *gateway) toClient(s *gwcore.StreamSend) {
	st := g.streams[s.Stream]
	if st == nil {
		return
	}
	f := &lockv1.SessionResponse{ServerTimeMs: s.Time, Events: s.Events}
	s.Events = nil // the core gives it away
	if g.w.cfg.Encode {
		f = clone(f)
	}
	st.c.send(st, f)
	if s.End {
		f := s.Failure
		if f == nil {
			f = endOK
		}
		st.c.close(st, f)
		st.forget()
	}
}

// endOK marks the end of a stream with status OK.
var endOK = &lockv1.Failure{}

// gwStream is one client's session stream at a gateway.
type gwStream struct {
	g  *gateway
	c  *conn
	id gwcore.StreamID
}

func (g *gateway) acceptSession(c *conn) (side, *refusal) {
	if g.core == nil {
		return nil, &refusal{resetFailure}
	}
	g.lastID++
	st := &gwStream{g: g, c: c, id: gwcore.StreamID(g.lastID)}
	g.streams[st.id] = st
	g.order = append(g.order, st)
	g.post(gwcore.Input{Kind: gwcore.StreamOpened, Stream: st.id})
	return st, nil
}

func (st *gwStream) connected(*conn) {}

func (st *gwStream) received(_ *conn, body any) {
	if st.g.streams[st.id] == st {
		st.g.post(gwcore.Input{Kind: gwcore.StreamFrame, Stream: st.id, Frame: body.(*lockv1.SessionRequest)})
	}
}

func (st *gwStream) ended(*conn, *lockv1.Failure) { st.forget() }

func (st *gwStream) forget() {
	g := st.g
	if g.streams[st.id] != st {
		return
	}
	delete(g.streams, st.id)
	if i := slices.Index(g.order, st); i >= 0 {
		g.order = slices.Delete(g.order, i, i+1)
	}
	g.post(gwcore.Input{Kind: gwcore.StreamClosed, Stream: st.id})
}

// nodeConn keeps one exchange stream to one node open.
type nodeConn struct {
	g     *gateway
	n     *node
	c     *conn
	up    bool
	first bool
	began Time
	wait  Time
	gen   uint64
}

func (nc *nodeConn) dial() {
	g := nc.g
	nc.began, nc.first, nc.up = g.p.mono(), true, false
	nc.gen++
	gen := nc.gen
	nc.c = g.w.dial(exchangeConn, g.p, nc.n.p, nc)
	// A connection attempt gets 2 s.
	g.p.later(2*second, func() {
		if nc.gen == gen && !nc.up {
			nc.c.close(nc, nil)
			nc.over()
		}
	})
}

func (nc *nodeConn) connected(*conn) {
	nc.up = true
	nc.g.post(gwcore.Input{Kind: gwcore.NodeUp, Node: uint64(nc.n.id)})
}

func (nc *nodeConn) received(_ *conn, body any) {
	nc.g.post(gwcore.Input{Kind: gwcore.NodeFrame, Node: uint64(nc.n.id), Response: body.(*nodev1.ExchangeResponse)})
}

func (nc *nodeConn) ended(*conn, *lockv1.Failure) { nc.over() }

// over: the stream ended; another attempt follows.
func (nc *nodeConn) over() {
	g := nc.g
	if nc.up {
		nc.up = false
		g.post(gwcore.Input{Kind: gwcore.NodeDown, Node: uint64(nc.n.id)})
	}
	nc.gen++
	if g.p.mono()-nc.began > second {
		nc.wait = 50 * ms
	}
	g.p.later(nc.wait/2+g.w.upTo(nc.wait), nc.dial)
	nc.wait = min(2*nc.wait, second)
}

func (nc *nodeConn) reset() {
	if nc.up {
		nc.c.close(nc, nil)
		nc.over()
	}
}

func (nc *nodeConn) send(s *gwcore.NodeSend) {
	if !nc.up {
		return // it would be dropped when the next stream opens
	}
	f := &nodev1.ExchangeRequest{EchoMs: s.Echo, Requests: s.Requests}
	if nc.first {
		f.ClusterId, nc.first = nc.g.w.placed.ClusterId, false
	}
	if len(s.Renew) > 0 {
		f.Renew = &nodev1.RenewBatch{Renewals: s.Renew}
	}
	s.Requests, s.Renew = nil, nil
	if nc.g.w.cfg.Encode {
		f = clone(f)
	}
	nc.c.send(nc, f)
}

// gwCall is a unary call that a gateway works on.
type gwCall struct {
	call *unary
	req  any
	own  bool // the gateway chose the request id
}

// callArrives: a unary call reached the gateway.
func (g *gateway) callArrives(u *unary) {
	if g.core == nil || !g.p.up {
		u.back(g, nil, &lockv1.Failure{Code: int32(codes.Unavailable), Message: "connection refused"})
		return
	}
	g.lastID++
	id := gwcore.CallID(g.lastID)
	u.id = id
	own := false
	if a, ok := u.req.(*lockv1.AcquireRequest); ok && a.RequestId == "" {
		own, a.RequestId = true, g.w.newRequestID()
	}
	g.calls[id] = &gwCall{call: u, req: u.req, own: own}
	in := gwcore.Input{Kind: gwcore.CallStarted, Call: id, Request: u.req, OwnID: own}
	if u.timeout > 0 {
		in.Deadline = max(g.now()+u.timeout, 1)
	}
	g.post(in)
}

// callLeft: the caller went away.
func (g *gateway) callLeft(u *unary) {
	c := g.calls[u.id]
	if c == nil || c.call != u {
		if u.answered != nil && u.own {
			// Written to nobody.
			if a, ok := u.answered.(*lockv1.AcquireResponse); ok && a.Granted {
				g.post(gwcore.Input{Kind: gwcore.CallUndelivered, Request: u.req})
			}
		}
		return
	}
	delete(g.calls, u.id)
	g.post(gwcore.Input{Kind: gwcore.CallGone, Call: u.id})
}

func (g *gateway) answer(a *gwcore.Answer) {
	c := g.calls[a.Call]
	if c == nil {
		return
	}
	delete(g.calls, a.Call)
	c.call.answered, c.call.own = a.Response, c.own
	c.call.back(g, a.Response, a.Failure)
}
