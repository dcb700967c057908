package core

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"sort"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/mortise-lock/mortise/shard"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// A model of a cluster, small enough to be obviously right: exclusive locks,
// registrations, attachments and outcomes, applied at once and kept for ever.
// What is unreliable is everything between it and the gateway.

type outcome struct {
	reg   *mreg
	key   string
	id    *nodev1.AcquireId
	name  string
	token uint64
	state int // 1 granted, 2 waiting, 3 ended
	why   lockv1.EndReason
}

type mreg struct {
	num, att uint64
	sess     shard.SessionID
	out      map[string]*outcome
	live     bool
}

type mlock struct {
	holder *outcome
	queue  []*outcome
}

type mshard struct {
	id     uint32
	leader uint64
	term   uint64
	next   uint64
	regs   map[uint64]*mreg
	locks  map[string]*mlock
	grants []string // "name token" in order, for FIFO checks
	// changed outcomes that somebody waited for
	news []*outcome
	// ended registrations, to be pushed
	ended []*mreg
}

func newShard(id uint32, leader uint64) *mshard {
	return &mshard{id: id, leader: leader, term: 5, next: 100, regs: map[uint64]*mreg{}, locks: map[string]*mlock{}}
}

func (s *mshard) lock(name string) *mlock {
	l := s.locks[name]
	if l == nil {
		l = &mlock{}
		s.locks[name] = l
	}
	return l
}

func (s *mshard) free(o *outcome, why lockv1.EndReason) {
	l := s.lock(o.name)
	if l.holder == o {
		l.holder = nil
	}
	for i, w := range l.queue {
		if w == o {
			l.queue = append(l.queue[:i:i], l.queue[i+1:]...)
			break
		}
	}
	o.state, o.why = 3, why
	if l.holder == nil && len(l.queue) > 0 {
		w := l.queue[0]
		l.queue = l.queue[1:]
		s.grant(l, w)
		s.news = append(s.news, w)
	}
}

func (s *mshard) grant(l *mlock, o *outcome) {
	s.next++
	o.state, o.token = 1, s.next
	l.holder = o
	s.grants = append(s.grants, fmt.Sprint(o.name, " ", o.key))
}

func (s *mshard) end(r *mreg) {
	r.live = false
	keys := make([]string, 0, len(r.out))
	for k := range r.out {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		if o := r.out[k]; o.state != 3 {
			if o.state == 2 {
				s.news = append(s.news, o)
			}
			s.free(o, lockv1.EndReason_END_REASON_REGISTRATION_ENDED)
		}
	}
	s.ended = append(s.ended, r)
}

func refuse(code codes.Code, reason string) *nodev1.Response {
	return &nodev1.Response{Failure: fail(code, reason, "", "", reason)}
}

func idKey(id *nodev1.AcquireId) string {
	if id == nil {
		return ""
	}
	return fmt.Sprint(id.Seq, hex.EncodeToString(id.RequestId))
}

func (s *mshard) acting(a *nodev1.Acting) (*mreg, *nodev1.Response) {
	r := s.regs[a.GetRegistration()]
	if r == nil || !r.live {
		return nil, refuse(codes.FailedPrecondition, "REGISTRATION_ENDED")
	}
	if a.Attachment != 0 && a.Attachment < r.att {
		return nil, refuse(codes.Aborted, "OLD_ATTACHMENT")
	}
	r.att = max(r.att, a.Attachment)
	return r, nil
}

func (s *mshard) result(o *outcome) *nodev1.Response {
	a := &nodev1.AcquireResult{}
	switch o.state {
	case 1:
		a.State = &nodev1.AcquireResult_Granted{Granted: &lockv1.GrantedEvent{Token: o.token, LeaseMs: 9000}}
	case 2:
		a.State = &nodev1.AcquireResult_Waiting{Waiting: &lockv1.WaitingEvent{}}
	case 3:
		a.State = &nodev1.AcquireResult_Ended{Ended: &lockv1.EndedEvent{Reason: o.why}}
	}
	return &nodev1.Response{Result: &nodev1.Response_Acquire{Acquire: a}}
}

func done() *nodev1.Response {
	return &nodev1.Response{Result: &nodev1.Response_Done{Done: &nodev1.Done{}}}
}

func (s *mshard) byToken(name string, token uint64) *outcome {
	if l := s.locks[name]; l != nil && l.holder != nil && l.holder.token == token {
		return l.holder
	}
	return nil
}

func (s *mshard) apply(req *nodev1.Request) *nodev1.Response {
	switch q := req.Op.(type) {
	case *nodev1.Request_Register:
		id, _ := sessionID(q.Register.SessionId)
		var r *mreg
		for _, x := range s.regs {
			if x.live && x.sess == id {
				r = x
			}
		}
		if r == nil {
			s.next++
			r = &mreg{num: s.next, sess: id, out: map[string]*outcome{}, live: true}
			s.regs[r.num] = r
		}
		if q.Register.Attachment != 0 && q.Register.Attachment < r.att {
			return refuse(codes.Aborted, "OLD_ATTACHMENT")
		}
		r.att = max(r.att, q.Register.Attachment)
		return &nodev1.Response{Result: &nodev1.Response_Register{Register: &nodev1.RegisterResult{Registration: r.num, Attachment: r.att}}}
	case *nodev1.Request_Attach:
		r := s.regs[q.Attach.Registration]
		if r == nil || !r.live {
			return refuse(codes.FailedPrecondition, "REGISTRATION_ENDED")
		}
		if q.Attach.Attachment < r.att {
			return refuse(codes.Aborted, "OLD_ATTACHMENT")
		}
		r.att = q.Attach.Attachment
		return done()
	case *nodev1.Request_Acquire:
		r, no := s.acting(q.Acquire.Acting)
		if no != nil {
			return no
		}
		k := idKey(q.Acquire.Id)
		o := r.out[k]
		if o == nil {
			o = &outcome{reg: r, key: k, id: q.Acquire.Id, name: q.Acquire.Name}
			r.out[k] = o
			l := s.lock(o.name)
			switch {
			case l.holder == nil:
				s.grant(l, o)
			case q.Acquire.WaitMs == 0:
				o.state, o.why = 3, lockv1.EndReason_END_REASON_BUSY
			default:
				o.state = 2
				l.queue = append(l.queue, o)
			}
		}
		return s.result(o)
	case *nodev1.Request_Cancel:
		r, no := s.acting(q.Cancel.Acting)
		if no != nil {
			return no
		}
		k := idKey(q.Cancel.Id)
		o := r.out[k]
		if o == nil {
			r.out[k] = &outcome{reg: r, key: k, name: q.Cancel.Name, state: 3, why: lockv1.EndReason_END_REASON_CANCELLED}
		} else if o.state != 3 {
			s.free(o, lockv1.EndReason_END_REASON_CANCELLED)
		}
		return done()
	case *nodev1.Request_Release:
		if q.Release.Acting != nil {
			r, no := s.acting(q.Release.Acting)
			if no != nil {
				return no
			}
			if o := r.out[idKey(q.Release.Id)]; o != nil && o.token == q.Release.Token {
				if o.state == 1 {
					s.free(o, lockv1.EndReason_END_REASON_HOLD_OVER)
				}
				return done()
			}
		}
		o := s.byToken(q.Release.Name, q.Release.Token)
		if o == nil {
			return refuse(codes.FailedPrecondition, ReasonTokenNotCurrent)
		}
		s.free(o, lockv1.EndReason_END_REASON_HOLD_OVER)
		return done()
	case *nodev1.Request_Close:
		r := s.regs[q.Close.Registration]
		if r == nil || !r.live {
			return refuse(codes.FailedPrecondition, "REGISTRATION_ENDED")
		}
		s.end(r)
		return &nodev1.Response{Result: &nodev1.Response_Close{Close: &nodev1.CloseResult{}}}
	case *nodev1.Request_Inventory:
		r := s.regs[q.Inventory.Registration]
		if r == nil || !r.live {
			return refuse(codes.FailedPrecondition, "REGISTRATION_ENDED")
		}
		inv := &lockv1.InventoryEvent{}
		for _, o := range r.out {
			switch o.state {
			case 1:
				inv.Holds = append(inv.Holds, &lockv1.InventoryHold{Seq: o.id.Seq, Name: o.name, Token: o.token})
			case 2:
				inv.Waits = append(inv.Waits, &lockv1.InventoryWait{Seq: o.id.Seq, Name: o.name})
			}
		}
		return &nodev1.Response{Result: &nodev1.Response_Inventory{Inventory: inv}}
	case *nodev1.Request_Describe:
		d := &lockv1.DescribeResponse{}
		if l := s.locks[q.Describe.Name]; l != nil && l.holder != nil {
			d.Holders = []*lockv1.Holder{{Client: "c", Token: l.holder.token}}
			d.Waiters = uint64(len(l.queue))
		}
		return &nodev1.Response{Result: &nodev1.Response_Describe{Describe: d}}
	case *nodev1.Request_List:
		l := &nodev1.ListResult{}
		var names []string
		for n, k := range s.locks {
			if k.holder != nil && n > q.List.After && len(n) >= len(q.List.Prefix) && n[:len(q.List.Prefix)] == q.List.Prefix {
				names = append(names, n)
			}
		}
		sort.Strings(names)
		for _, n := range names {
			if len(l.Locks) == int(q.List.Max) {
				l.More = true
				break
			}
			l.Locks = append(l.Locks, &lockv1.DescribeResponse{Name: n})
		}
		return &nodev1.Response{Result: &nodev1.Response_List{List: l}}
	case *nodev1.Request_ListRegistrations:
		l := &nodev1.ListRegistrationsResult{}
		for _, r := range s.regs {
			if r.live {
				l.Registrations = append(l.Registrations, &nodev1.RegistrationInfo{SessionId: r.sess[:], Client: "c", Registration: r.num})
			}
		}
		return &nodev1.Response{Result: &nodev1.Response_ListRegistrations{ListRegistrations: l}}
	}
	return refuse(codes.Internal, "UNKNOWN_OP")
}

// ---- the cluster and its streams to one gateway ---------------------------

type mnode struct {
	id      uint64
	up      bool
	in      []*nodev1.Request
	renew   []*nodev1.Renew
	out     []*nodev1.ExchangeResponse
	waits   map[string]uint64 // "shard/reg/key" -> request id
	pushFor map[shard.SessionID]bool
}

// sim runs cores against a modelled cluster in one thread, from a seed.
type sim struct {
	rng    *rand.Rand
	now    Time
	core   *Core
	out    Output
	shards []*mshard
	nodes  []*mnode
	m      *placementv1.Map
	// faults, per mille
	unknown, reorder, duplicate int
	// refuse, if set, answers in place of the shard where it returns something.
	refuse func(req *nodev1.Request) *nodev1.Response

	events  map[StreamID][]*lockv1.SessionEvent
	ends    map[StreamID]*lockv1.Failure
	endedSt map[StreamID]bool
	answers map[CallID][]Answer
}

type hashRouter int

func (r hashRouter) Route(name string) (shard.ID, bool) {
	h := uint32(2166136261)
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return shard.ID(h%uint32(r) + 1), true
}

type plainSessions struct{}

func (plainSessions) Mint(id Identity) string {
	return fmt.Sprintf("%x:%d:%d:%s", id.Session[:], id.TTL, id.OpenedMS, id.Client)
}

func (plainSessions) Verify(s string) (Identity, error) {
	var id Identity
	var b []byte
	if _, err := fmt.Sscanf(s, "%32x:%d:%d:%s", &b, &id.TTL, &id.OpenedMS, &id.Client); err != nil {
		return id, fmt.Errorf("malformed")
	}
	copy(id.Session[:], b)
	return id, nil
}

func newSim(seed uint64, shards, nodes int) *sim {
	w := &sim{rng: rand.New(rand.NewPCG(seed, 7)), events: map[StreamID][]*lockv1.SessionEvent{}, ends: map[StreamID]*lockv1.Failure{},
		endedSt: map[StreamID]bool{}, answers: map[CallID][]Answer{}}
	w.m = &placementv1.Map{Generation: 1, Shards: []*placementv1.Shard{{Id: 0}}}
	for i := range nodes {
		w.nodes = append(w.nodes, &mnode{id: uint64(i + 1), waits: map[string]uint64{}, pushFor: map[shard.SessionID]bool{}})
		w.m.Nodes = append(w.m.Nodes, &placementv1.Node{Id: uint64(i + 1)})
	}
	for i := range shards {
		w.shards = append(w.shards, newShard(uint32(i+1), uint64(i%nodes+1)))
		ms := &placementv1.Shard{Id: uint32(i + 1)}
		for j := range nodes {
			ms.Replicas = append(ms.Replicas, &placementv1.Replica{Id: uint64(j + 1), Node: uint64(j + 1)})
		}
		w.m.Shards = append(w.m.Shards, ms)
	}
	w.core = w.newCore()
	return w
}

func (w *sim) newCore() *Core {
	return New(Config{Sessions: plainSessions{}, Random: w.rng.Uint64, WallMS: func() int64 { return 1e12 + w.now.Milliseconds() }})
}

// boot gives the core its map and nodes.
func (w *sim) boot() {
	w.step(Input{Kind: MapUpdate, Map: w.m, Router: hashRouter(len(w.shards))})
	for _, n := range w.nodes {
		w.up(n)
	}
	w.settle()
}

func (w *sim) step(in Input) {
	w.core.Step(&in, w.now, &w.out)
	for i := range w.out.Nodes {
		s := &w.out.Nodes[i]
		if n := w.nodes[s.Node-1]; n.up {
			n.in = append(n.in, s.Requests...)
			n.renew = append(n.renew, s.Renew...)
		}
	}
	for i := range w.out.Streams {
		s := &w.out.Streams[i]
		w.events[s.Stream] = append(w.events[s.Stream], s.Events...)
		if s.End {
			w.endedSt[s.Stream] = true
			w.ends[s.Stream] = s.Failure
		}
	}
	for _, a := range w.out.Answers {
		w.answers[a.Call] = append(w.answers[a.Call], a)
	}
	w.out.Reset()
}

func (w *sim) up(n *mnode) {
	n.up = true
	n.in, n.renew, n.out = nil, nil, nil
	clear(n.waits)
	w.step(Input{Kind: NodeUp, Node: n.id})
	f := &nodev1.ExchangeResponse{NodeTimeMs: millis(w.now)}
	for _, s := range w.shards {
		f.Leaders = append(f.Leaders, w.hint(s))
	}
	n.out = append(n.out, f)
}

func (w *sim) down(n *mnode) {
	n.up = false
	n.in, n.renew, n.out = nil, nil, nil
	w.step(Input{Kind: NodeDown, Node: n.id})
}

func (w *sim) hint(s *mshard) *nodev1.LeaderHint {
	return &nodev1.LeaderHint{Shard: s.id, Term: s.term, Node: s.leader}
}

// lead moves a shard's leadership; who waited at the old leader is not told.
func (w *sim) lead(s *mshard, node uint64) {
	s.term++
	s.leader = node
	for _, n := range w.nodes {
		for k := range n.waits {
			var id uint32
			fmt.Sscanf(k, "%d/", &id)
			if id == s.id {
				delete(n.waits, k)
			}
		}
		if n.up && w.rng.IntN(4) > 0 {
			n.out = append(n.out, &nodev1.ExchangeResponse{NodeTimeMs: millis(w.now), Leaders: []*nodev1.LeaderHint{w.hint(s)}})
		}
	}
}

func (w *sim) serve(n *mnode, req *nodev1.Request) {
	reply := func(r *nodev1.Response) {
		r.Id = req.Id
		n.out = append(n.out, &nodev1.ExchangeResponse{NodeTimeMs: millis(w.now), Responses: []*nodev1.Response{r}})
	}
	if q := req.GetLocate(); q != nil {
		res := &nodev1.LocateResult{}
		id, _ := sessionID(q.SessionId)
		for _, s := range w.shards {
			if s.leader != n.id || w.rng.IntN(10) == 0 {
				res.Elsewhere = append(res.Elsewhere, w.hint(s))
				continue
			}
			for _, r := range s.regs {
				if r.live && r.sess == id {
					n.pushFor[id] = true
					res.Located = append(res.Located, &nodev1.Located{Shard: s.id, Registration: r.num, Attachment: r.att})
				}
			}
		}
		reply(&nodev1.Response{Result: &nodev1.Response_Locate{Locate: res}})
		return
	}
	s := w.shards[req.Shard-1]
	if s.leader != n.id {
		r := refuse(codes.Unavailable, "NOT_LEADER")
		if w.rng.IntN(3) > 0 {
			r.Leader = w.hint(s)
		}
		reply(r)
		return
	}
	if w.refuse != nil {
		if r := w.refuse(req); r != nil {
			reply(r)
			return
		}
	}
	if w.rng.IntN(1000) < w.unknown {
		if w.rng.IntN(2) == 0 {
			s.apply(req)
			w.news(s)
		}
		reply(refuse(codes.Unavailable, "OUTCOME_UNKNOWN"))
		return
	}
	if req.GetAcquire() == nil && w.rng.IntN(1000) < w.unknown {
		reply(refuse(codes.ResourceExhausted, "SHARD_OVERLOADED"))
		return
	}
	if q := req.GetRegister(); q != nil {
		id, _ := sessionID(q.SessionId)
		n.pushFor[id] = true
	}
	r := s.apply(req)
	if q := req.GetAcquire(); q != nil && r.GetAcquire().GetWaiting() != nil {
		n.waits[fmt.Sprint(s.id, "/", q.Acting.Registration, "/", idKey(q.Id))] = req.Id
	}
	reply(r)
	if w.rng.IntN(1000) < w.duplicate {
		reply(proto.Clone(r).(*nodev1.Response))
	}
	w.news(s)
}

// news tells waiters and sessions what an applied command did to them.
func (w *sim) news(s *mshard) {
	for _, o := range s.news {
		for _, n := range w.nodes {
			k := fmt.Sprint(s.id, "/", o.reg.num, "/", o.key)
			if id, ok := n.waits[k]; ok && n.up && n.id == s.leader {
				delete(n.waits, k)
				r := s.result(o)
				r.Id = id
				n.out = append(n.out, &nodev1.ExchangeResponse{NodeTimeMs: millis(w.now), Responses: []*nodev1.Response{r}})
			}
		}
	}
	s.news = nil
	for _, r := range s.ended {
		if n := w.nodes[s.leader-1]; n.up && n.pushFor[r.sess] {
			n.out = append(n.out, &nodev1.ExchangeResponse{NodeTimeMs: millis(w.now), Pushes: []*nodev1.Push{{SessionId: r.sess[:],
				Event: &nodev1.Push_RegistrationEnded{RegistrationEnded: &lockv1.RegistrationEndedEvent{Shard: s.id, Registration: r.num, Reason: lockv1.LostReason_LOST_REASON_EXPIRED}}}}})
		}
	}
	s.ended = nil
}

// pass moves one message, chosen at random; false when there is none.
func (w *sim) pass() bool {
	var can []func()
	for _, n := range w.nodes {
		if len(n.in) > 0 {
			can = append(can, func() {
				q := n.in[0]
				n.in = n.in[1:]
				w.serve(n, q)
			})
		}
		if len(n.renew) > 0 {
			can = append(can, func() {
				r := n.renew[0]
				n.renew = n.renew[1:]
				w.serveRenew(n, r)
			})
		}
		if len(n.out) > 0 {
			can = append(can, func() {
				i := 0
				if w.rng.IntN(1000) < w.reorder {
					i = w.rng.IntN(len(n.out))
				}
				f := n.out[i]
				n.out = append(n.out[:i:i], n.out[i+1:]...)
				w.step(Input{Kind: NodeFrame, Node: n.id, Response: f})
			})
		}
	}
	if len(can) == 0 {
		return false
	}
	w.now += time.Duration(w.rng.IntN(200)) * time.Microsecond
	can[w.rng.IntN(len(can))]()
	return true
}

func (w *sim) serveRenew(n *mnode, r *nodev1.Renew) {
	a := &nodev1.Renewed{SessionId: r.SessionId, Number: r.Number, Attachment: r.Attachment}
	id, _ := sessionID(r.SessionId)
	for _, s := range w.shards {
		if s.leader != n.id {
			a.Elsewhere = append(a.Elsewhere, w.hint(s))
			continue
		}
		for _, g := range s.regs {
			if g.live && g.sess == id && (r.Attachment == 0 || r.Attachment >= g.att) {
				a.Covered = append(a.Covered, &lockv1.Covered{Shard: s.id, Registration: g.num})
			}
		}
	}
	n.out = append(n.out, &nodev1.ExchangeResponse{NodeTimeMs: millis(w.now), Renewed: []*nodev1.Renewed{a}})
}

// settle passes messages and lets time run until nothing happens for a second.
func (w *sim) settle() { w.settleFor(time.Second) }

func (w *sim) settleFor(quiet time.Duration) {
	end := w.now + quiet
	for w.now < end {
		if w.pass() {
			end = max(end, w.now+50*time.Millisecond)
			continue
		}
		w.advance(end)
	}
}

// advance moves time to the next timer, at most to limit.
func (w *sim) advance(limit Time) {
	at, ok := w.core.Next()
	if !ok || at > limit {
		w.now = limit
		return
	}
	w.now = max(w.now, at)
	for _, n := range w.nodes {
		if n.up && len(n.out) == 0 {
			n.out = append(n.out, &nodev1.ExchangeResponse{NodeTimeMs: millis(w.now)}) // nodes beat
		}
	}
	w.step(Input{Kind: Tick})
}
