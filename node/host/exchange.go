package host

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortise-lock/mortise/node/worker"
	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// staleAfter: a frame whose echo is older acts on nothing.
	staleAfter = 30 * time.Second
	// beatEvery is the longest silence towards a gateway.
	beatEvery = 2 * time.Second
	// outboxMax bounds the answers that wait for a gateway that does not read.
	outboxMax = 1 << 18
	// frameMax bounds the answers in one frame.
	frameMax = 4096
)

// streams are the gateways connected.
type streams struct {
	n    *Node
	mu   sync.RWMutex
	last worker.StreamID
	open map[worker.StreamID]*stream
	slow atomic.Uint64
}

// stream is one gateway's Exchange.
type stream struct {
	id     worker.StreamID
	cancel context.CancelCauseFunc
	wake   chan struct{}

	mu       sync.Mutex
	replies  []worker.Reply
	leaders  []*nodev1.LeaderHint
	locates  map[uint64]*locate
	overflow bool
}

// locate joins the workers' answers to one Locate.
type locate struct {
	missing int
	sum     *nodev1.Response
}

func (ss *streams) add(cancel context.CancelCauseFunc) *stream {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.last++
	s := &stream{id: ss.last, cancel: cancel, wake: make(chan struct{}, 1), locates: map[uint64]*locate{}}
	ss.open[s.id] = s
	return s
}

func (ss *streams) remove(s *stream) {
	ss.mu.Lock()
	delete(ss.open, s.id)
	ss.mu.Unlock()
	for _, l := range ss.n.loops() {
		l.post(func(in *worker.Input) { in.StreamsClosed = append(in.StreamsClosed, s.id) })
	}
}

func (ss *streams) count() int {
	ss.mu.RLock()
	defer ss.mu.RUnlock()
	return len(ss.open)
}

// deliver hands answers to their streams. Neighbours in the list mostly belong
// to one stream.
func (ss *streams) deliver(rs []worker.Reply) {
	ss.mu.RLock()
	defer ss.mu.RUnlock()
	for len(rs) > 0 {
		k := 1
		for k < len(rs) && rs[k].Stream == rs[0].Stream {
			k++
		}
		if s := ss.open[rs[0].Stream]; s != nil {
			if s.put(rs[:k]) {
				ss.slow.Add(1)
			}
		}
		rs = rs[k:]
	}
}

// put queues answers; true if the gateway was disconnected for not reading.
func (s *stream) put(rs []worker.Reply) (slow bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.overflow {
		return false
	}
	for _, r := range rs {
		if r.Response != nil {
			if r.Response = s.join(r.Response); r.Response == nil {
				continue
			}
		}
		s.replies = append(s.replies, r)
	}
	if len(s.replies) > outboxMax {
		s.overflow, s.replies = true, nil
		s.cancel(status.Errorf(codes.ResourceExhausted, "more than %d answers wait to be read", outboxMax))
		return true
	}
	s.signal()
	return false
}

// join returns the answer to send: the sum, for a Locate whose last part this
// is; nil if parts are missing yet.
func (s *stream) join(r *nodev1.Response) *nodev1.Response {
	l := s.locates[r.Id]
	if l == nil {
		return r
	}
	switch {
	case r.Failure != nil:
		l.sum.Failure, l.sum.Leader = r.Failure, r.Leader
	default:
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

func (s *stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// tellLeaders queues leader hints for every gateway.
func (ss *streams) tellLeaders(hints []*nodev1.LeaderHint) {
	ss.mu.RLock()
	defer ss.mu.RUnlock()
	for _, s := range ss.open {
		s.mu.Lock()
		s.leaders = append(s.leaders, hints...)
		s.mu.Unlock()
		s.signal()
	}
}

// exchange serves NodeService.Exchange.
func (n *Node) exchange(g grpc.BidiStreamingServer[nodev1.ExchangeRequest, nodev1.ExchangeResponse]) error {
	if n.draining.Load() {
		return status.Error(codes.Unavailable, "this node is stopping")
	}
	if n.loops() == nil {
		return status.Error(codes.Unavailable, "this node belongs to no cluster yet: run mortise server init")
	}
	ctx, cancel := context.WithCancelCause(g.Context())
	defer cancel(nil)
	s := n.streams.add(cancel)
	defer n.streams.remove(s)
	s.mu.Lock()
	s.leaders = append(n.allLeaders(), s.leaders...)
	s.mu.Unlock()
	s.signal()
	n.work.Go(func() { cancel(n.readExchange(g, s)) })
	return n.writeExchange(ctx, g, s)
}

func (n *Node) writeExchange(ctx context.Context, g grpc.BidiStreamingServer[nodev1.ExchangeRequest, nodev1.ExchangeResponse], s *stream) error {
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		forced := false
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-n.ctx.Done():
			return status.Error(codes.Unavailable, "this node is stopping")
		case <-s.wake:
		case <-beat.C:
			forced = true
		}
		s.mu.Lock()
		replies, leaders := s.replies, s.leaders
		s.replies, s.leaders = nil, nil
		s.mu.Unlock()
		for first := true; first || len(replies) > 0; first = false {
			f := &nodev1.ExchangeResponse{NodeTimeMs: n.uptimeMS(), Leaders: leaders}
			leaders = nil
			k := min(len(replies), frameMax)
			for i := range replies[:k] {
				switch r := &replies[i]; {
				case r.Response != nil:
					f.Responses = append(f.Responses, r.Response)
				case r.Renewed != nil:
					f.Renewed = append(f.Renewed, r.Renewed)
				case r.Push != nil:
					f.Pushes = append(f.Pushes, r.Push)
				}
			}
			replies = replies[k:]
			if k == 0 && len(f.Leaders) == 0 && !forced {
				break
			}
			if err := g.Send(f); err != nil {
				return err
			}
		}
	}
}

func (n *Node) readExchange(g grpc.BidiStreamingServer[nodev1.ExchangeRequest, nodev1.ExchangeResponse], s *stream) error {
	began := n.uptimeMS()
	for first := true; ; first = false {
		f, err := g.Recv()
		if err != nil {
			return err
		}
		if first && f.ClusterId != "" && f.ClusterId != n.clusterID() {
			return status.Errorf(codes.FailedPrecondition, "this node belongs to cluster %s, not %s", n.clusterID(), f.ClusterId)
		}
		// Until the gateway has heard something it echoes 0.
		if age := int64(n.uptimeMS()) - int64(max(f.EchoMs, began)); age > staleAfter.Milliseconds() {
			return status.Errorf(codes.DeadlineExceeded, "a frame was %d ms old; frames older than %d ms act on nothing", age, staleAfter.Milliseconds())
		}
		n.route(s, f)
	}
}

// route hands a frame's parts to the workers concerned, in order.
func (n *Node) route(s *stream, f *nodev1.ExchangeRequest) {
	loops := n.loops()
	// Renewals first: requests may have to wait for room.
	if len(f.Renew.GetRenewals()) > 0 {
		for _, l := range loops {
			l.post(func(in *worker.Input) {
				in.Renewals = append(in.Renewals, worker.Renewals{Stream: s.id, Batch: f.Renew})
			})
		}
	}
	byLoop := make([][]worker.Request, len(loops))
	for _, q := range f.Requests {
		r := worker.Request{Stream: s.id, Req: q}
		switch q.Op.(type) {
		case *nodev1.Request_Locate:
			s.mu.Lock()
			s.locates[q.Id] = &locate{missing: len(loops),
				sum: &nodev1.Response{Id: q.Id, Result: &nodev1.Response_Locate{Locate: &nodev1.LocateResult{}}}}
			s.mu.Unlock()
			for i := range byLoop {
				byLoop[i] = append(byLoop[i], r)
			}
			continue
		case *nodev1.Request_Register, *nodev1.Request_Acquire:
			if n.store.LowOnSpace() {
				s.put([]worker.Reply{{Stream: s.id, Response: &nodev1.Response{Id: q.Id, Failure: diskFull()}}})
				continue
			}
		}
		i := n.loopOf(shard.ID(q.Shard))
		byLoop[i] = append(byLoop[i], r)
	}
	for i, rs := range byLoop {
		if len(rs) > 0 {
			loops[i].postRequests(rs)
		}
	}
}

// diskFull refuses work that would need room, while what frees some goes on.
func diskFull() *lockv1.Failure {
	return &lockv1.Failure{Code: int32(codes.ResourceExhausted),
		Message: "the disk of this shard's leader is nearly full; new locks are refused until space is freed",
		Detail:  &lockv1.ErrorDetail{Reason: "DISK_FULL", RetryAfterMs: 1000}}
}

// leaderTable is what this node knows of its shards' leaders.
type leaderTable struct {
	mu    sync.Mutex
	known map[shard.ID]worker.LeaderChange
}

func (t *leaderTable) set(c worker.LeaderChange) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known[c.Shard] = c
}

func (t *leaderTable) get(id shard.ID) worker.LeaderChange {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known[id]
}

// counts returns shards known, those led by anybody, and those led and ready here.
func (t *leaderTable) counts() (known, led, ready int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.known {
		known++
		if c.Leader != 0 {
			led++
		}
		if c.Ready {
			ready++
		}
	}
	return known, led, ready
}

func hintOf(c worker.LeaderChange) *nodev1.LeaderHint {
	return &nodev1.LeaderHint{Shard: uint32(c.Shard), Term: c.Term, Node: uint64(c.Leader)}
}

func (n *Node) allLeaders() []*nodev1.LeaderHint {
	n.leaders.mu.Lock()
	defer n.leaders.mu.Unlock()
	var hints []*nodev1.LeaderHint
	for _, c := range n.leaders.known {
		hints = append(hints, hintOf(c))
	}
	slices.SortFunc(hints, func(a, b *nodev1.LeaderHint) int { return int(a.Shard) - int(b.Shard) })
	return hints
}

func (n *Node) leadersChanged(cs []worker.LeaderChange) {
	hints := make([]*nodev1.LeaderHint, len(cs))
	for i, c := range cs {
		n.leaders.set(c)
		hints[i] = hintOf(c)
	}
	n.streams.tellLeaders(hints)
	n.updateHealth()
}
