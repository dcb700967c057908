package sim

import (
	"slices"

	"github.com/mortise-lock/mortise/node/worker"
	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
	"google.golang.org/grpc/codes"
)

// As in node/host.
const (
	staleAfter = 30 * second
	beatEvery  = 2 * second
)

// nodeStream is one gateway's Exchange at a node.
type nodeStream struct {
	n       *node
	c       *conn
	id      worker.StreamID
	began   uint64 // ms of uptime
	locates map[uint64]*joining
	beatAt  Time // local
}

// joining joins the workers' answers to one Locate.
type joining struct {
	missing int
	sum     *nodev1.Response
}

func (n *node) uptimeMS() uint64 { return uint64((n.p.mono()-n.started)/ms) + 1 }

func (n *node) acceptExchange(c *conn) (side, *refusal) {
	if n.draining || len(n.loops) == 0 {
		return nil, &refusal{&lockv1.Failure{Code: int32(codes.Unavailable), Message: "this node is stopping"}}
	}
	n.lastStream++
	s := &nodeStream{n: n, c: c, id: n.lastStream, began: n.uptimeMS(), locates: map[uint64]*joining{}, beatAt: n.p.local() + beatEvery}
	n.streams = append(n.streams, s)
	var hints []*nodev1.LeaderHint
	for _, c := range n.leaders {
		hints = append(hints, hintOf(c))
	}
	s.frame(&nodev1.ExchangeResponse{Leaders: hints})
	return s, nil
}

func (s *nodeStream) connected(*conn) {}

func (s *nodeStream) ended(*conn, *lockv1.Failure) { s.remove() }

func (s *nodeStream) remove() {
	n := s.n
	i := slices.Index(n.streams, s)
	if i < 0 {
		return
	}
	n.streams = slices.Delete(n.streams, i, i+1)
	for _, l := range n.loops {
		l.in.StreamsClosed = append(l.in.StreamsClosed, s.id)
		l.wake()
	}
}

func (s *nodeStream) frame(f *nodev1.ExchangeResponse) {
	f.NodeTimeMs = s.n.uptimeMS()
	if s.n.w.cfg.Encode {
		f = clone(f)
	}
	if s.c.sb == nil {
		s.c.down.send(f) // the first one, while the stream is being accepted
		return
	}
	s.c.send(s, f)
}

// beat says something on streams that were silent.
func (n *node) beat() {
	at := n.p.local()
	for _, s := range n.streams {
		if at >= s.beatAt {
			s.beatAt = at + beatEvery
			s.frame(&nodev1.ExchangeResponse{})
		}
	}
}

// received routes a frame's parts to the workers concerned, in order.
func (s *nodeStream) received(c *conn, body any) {
	n := s.n
	f := body.(*nodev1.ExchangeRequest)
	if age := int64(n.uptimeMS()) - int64(max(f.EchoMs, s.began)); age > int64(staleAfter/ms) {
		n.w.stats.Stale++
		s.remove()
		c.close(s, &lockv1.Failure{Code: int32(codes.DeadlineExceeded), Message: "stale frame"})
		return
	}
	for _, q := range f.Requests {
		r := worker.Request{Stream: s.id, Req: q}
		switch q.Op.(type) {
		case *nodev1.Request_Locate:
			s.locates[q.Id] = &joining{missing: len(n.loops),
				sum: &nodev1.Response{Id: q.Id, Result: &nodev1.Response_Locate{Locate: &nodev1.LocateResult{}}}}
			for _, l := range n.loops {
				l.in.Requests = append(l.in.Requests, r)
				l.wake()
			}
			continue
		case *nodev1.Request_Register, *nodev1.Request_Acquire:
			if n.disk.low {
				n.reply([]worker.Reply{{Stream: s.id, Response: &nodev1.Response{Id: q.Id, Failure: diskFull()}}})
				continue
			}
		}
		l := n.loopOf(shard.ID(q.Shard))
		l.in.Requests = append(l.in.Requests, r)
		l.wake()
	}
	if len(f.Renew.GetRenewals()) > 0 {
		for _, l := range n.loops {
			l.in.Renewals = append(l.in.Renewals, worker.Renewals{Stream: s.id, Batch: f.Renew})
			l.wake()
		}
	}
}

func diskFull() *lockv1.Failure {
	return &lockv1.Failure{Code: int32(codes.ResourceExhausted),
		Message: "the disk of this shard's leader is nearly full; new locks are refused until space is freed",
		Detail:  &lockv1.ErrorDetail{Reason: "DISK_FULL", RetryAfterMs: 1000}}
}

// reply hands answers to their streams, one frame for each.
func (n *node) reply(rs []worker.Reply) {
	for _, s := range n.streams {
		var f *nodev1.ExchangeResponse
		for i := range rs {
			r := &rs[i]
			if r.Stream != s.id {
				continue
			}
			resp := r.Response
			if resp != nil {
				if resp = s.join(resp); resp == nil {
					continue
				}
			}
			if f == nil {
				f = &nodev1.ExchangeResponse{}
			}
			switch {
			case resp != nil:
				f.Responses = append(f.Responses, resp)
			case r.Renewed != nil:
				f.Renewed = append(f.Renewed, r.Renewed)
			case r.Push != nil:
				f.Pushes = append(f.Pushes, r.Push)
			}
		}
		if f != nil {
			s.frame(f)
		}
	}
}

// join returns the answer to send: the sum, for a Locate whose last part this
// is; nil if parts are missing yet.
func (s *nodeStream) join(r *nodev1.Response) *nodev1.Response {
	l := s.locates[r.Id]
	if l == nil {
		return r
	}
	if r.Failure != nil {
		l.sum.Failure, l.sum.Leader = r.Failure, r.Leader
	} else {
		sum := l.sum.GetLocate()
		sum.Located = append(sum.Located, r.GetLocate().GetLocated()...)
		sum.Elsewhere = append(sum.Elsewhere, r.GetLocate().GetElsewhere()...)
	}
	if l.missing--; l.missing > 0 {
		return nil
	}
	delete(s.locates, r.Id)
	if l.sum.Failure != nil {
		l.sum.Result = nil
	}
	return l.sum
}

func hintOf(c worker.LeaderChange) *nodev1.LeaderHint {
	return &nodev1.LeaderHint{Shard: uint32(c.Shard), Term: c.Term, Node: uint64(c.Leader)}
}

func (n *node) leadersChanged(cs []worker.LeaderChange) {
	for _, c := range cs {
		n.leaders[c.Shard] = c
	}
	for _, s := range n.streams {
		f := &nodev1.ExchangeResponse{}
		for _, c := range cs {
			f.Leaders = append(f.Leaders, hintOf(c))
		}
		s.frame(f)
	}
}
