package worker

import (
	"encoding/binary"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3"
)

// readQueue batches what must be confirmed by a quorum before it is answered:
// reads, and acknowledgements of renewals. At most one confirmation round
// (ReadIndex) per shard is outstanding; what arrives meanwhile waits for the
// next one, which begins after it arrived. Each round has a context of its own,
// and a round that is late is begun anew under a new one.
type readQueue struct {
	next []readItem
	cur  []readItem
	// ctx of the outstanding round, 0 for none.
	ctx, lastCtx uint64
	begun        Time
	confirmed    []confirmedRound
	// held are renewals that may not move a deadline yet: the leader's own first
	// entry has not applied (W3), or a handover is out (W6).
	held []readItem
}

// readItem is a read, a share in a Locate, or a renewal.
type readItem struct {
	stream StreamID
	req    *nodev1.Request
	loc    *locating

	renew   *nodev1.Renew
	session shard.SessionID
	reg     shard.Registration
}

type confirmedRound struct {
	index uint64
	items []readItem
}

// locating is a Locate that waits for several shards.
type locating struct {
	stream  StreamID
	id      uint64
	session shard.SessionID
	left    int
	res     *nodev1.LocateResult
}

func (q *readQueue) size() int { return len(q.next) + len(q.cur) + len(q.held) }

// admitRead queues a read.
func (r *replica) admitRead(s StreamID, req *nodev1.Request) {
	switch {
	case !r.leading:
		r.notLeader(s, req.Id)
	case r.reads.size() >= r.w.cfg.Limits.Reads:
		r.overloaded(s, req.Id, "pending_reads", r.w.cfg.Limits.Reads)
	default:
		r.reads.next = append(r.reads.next, readItem{stream: s, req: req})
		r.w.mark(r)
	}
}

// locate asks every shard that is led here where the session is registered.
func (w *Worker) locate(s StreamID, id uint64, q *nodev1.Locate) {
	l := &locating{stream: s, id: id, res: &nodev1.LocateResult{}}
	if len(q.GetSessionId()) != len(l.session) {
		w.refuse(s, id, invalid("session_id", "must be 16 bytes"), nil)
		return
	}
	copy(l.session[:], q.SessionId)
	for _, r := range w.replicas {
		switch {
		case r.m == nil:
		case !r.leading || r.reads.size() >= w.cfg.Limits.Reads:
			l.elsewhere(r)
		default:
			l.left++
			r.reads.next = append(r.reads.next, readItem{loc: l})
			w.mark(r)
		}
	}
	if l.left == 0 {
		l.done(w)
	}
}

func (l *locating) elsewhere(r *replica) {
	h := r.hint()
	if h.Node == uint64(r.w.cfg.Node) {
		h.Node = 0
	}
	l.res.Elsewhere = append(l.res.Elsewhere, h)
}

func (l *locating) done(w *Worker) {
	w.respond(l.stream, &nodev1.Response{Id: l.id, Result: &nodev1.Response_Locate{Locate: l.res}})
}

// beginRound asks for a confirmation of everything that waits, if none is
// outstanding or the outstanding one is late. A new leader has none before the
// first entry of its term has applied: raft would park it.
func (r *replica) beginRound() {
	q := &r.reads
	if !r.leading || !r.ready {
		return
	}
	if q.ctx != 0 {
		if r.w.now-q.begun < r.w.readRetry() {
			return
		}
		q.next = append(q.cur, q.next...)
		q.cur, q.ctx = nil, 0
	}
	if len(q.next) == 0 {
		return
	}
	q.cur, q.next = q.next, nil
	q.lastCtx++
	q.ctx, q.begun = q.lastCtx, r.w.now
	r.w.counters.Rounds++
	r.rn.ReadIndex(binary.LittleEndian.AppendUint64(nil, q.ctx))
}

// readRetry is after how long a round is begun anew: half an election timeout.
func (w *Worker) readRetry() Time { return w.electionTimeout() / 2 }

// confirm takes the rounds that a quorum confirmed.
func (r *replica) confirm(states []raft.ReadState) {
	q := &r.reads
	for _, s := range states {
		if q.ctx == 0 || len(s.RequestCtx) != 8 || binary.LittleEndian.Uint64(s.RequestCtx) != q.ctx {
			continue // of an earlier round that was given up, or of an earlier term
		}
		q.confirmed = append(q.confirmed, confirmedRound{s.Index, q.cur})
		q.cur, q.ctx = nil, 0
	}
}

// serveReads answers the confirmed items that the applied state covers.
func (r *replica) serveReads() {
	q := &r.reads
	for len(q.confirmed) > 0 && q.confirmed[0].index <= r.applied() {
		items := q.confirmed[0].items
		q.confirmed = q.confirmed[1:]
		for i := range items {
			r.serve(&items[i])
		}
	}
}

func (r *replica) serve(it *readItem) {
	switch {
	case it.renew != nil:
		r.acknowledge(it)
		return
	case it.loc != nil:
		if v, ok := r.m.Lookup(it.loc.session); ok {
			it.loc.res.Located = append(it.loc.res.Located, &nodev1.Located{
				Shard: uint32(r.shard), Registration: uint64(v.Registration), Epoch: v.Epoch, Attachment: v.Attachment})
		}
		if it.loc.left--; it.loc.left == 0 {
			it.loc.done(r.w)
		}
		return
	}
	r.w.counters.Reads++
	resp := &nodev1.Response{Id: it.req.Id}
	switch op := it.req.Op.(type) {
	case *nodev1.Request_Describe:
		if f := r.ownsName(op.Describe.Name); f != nil {
			resp.Failure = f
			break
		}
		resp.Result = &nodev1.Response_Describe{Describe: r.describe(r.m.Describe(op.Describe.Name))}
	case *nodev1.Request_CheckToken:
		if f := r.ownsName(op.CheckToken.Name); f != nil {
			resp.Failure = f
			break
		}
		resp.Result = &nodev1.Response_CheckToken{CheckToken: &lockv1.CheckTokenResponse{
			Current: r.m.CheckToken(op.CheckToken.Name, shard.Token(op.CheckToken.Token))}}
	case *nodev1.Request_List:
		locks, more := r.m.List(op.List.Prefix, op.List.After, clampMax(op.List.Max, maxList))
		res := &nodev1.ListResult{More: more}
		for i := range locks {
			res.Locks = append(res.Locks, r.describe(locks[i]))
		}
		resp.Result = &nodev1.Response_List{List: res}
	case *nodev1.Request_Inventory:
		r.inventory(shard.Registration(op.Inventory.Registration), resp)
	case *nodev1.Request_ListRegistrations:
		limit := clampMax(op.ListRegistrations.Max, maxRegistrations)
		res := &nodev1.ListRegistrationsResult{}
		r.m.Registrations(func(v shard.RegistrationView) bool {
			res.Registrations = append(res.Registrations, &nodev1.RegistrationInfo{SessionId: append([]byte(nil), v.Session[:]...),
				Client: v.Client, TtlMs: uint64(v.TTL / ms), Registration: uint64(v.Registration), Holds: uint64(v.Holds), Waits: uint64(v.Waits)})
			return len(res.Registrations) < limit
		})
		resp.Result = &nodev1.Response_ListRegistrations{ListRegistrations: res}
	}
	r.w.respond(it.stream, resp)
}

// Bounds of one answer.
const (
	maxList          = 1000
	maxRegistrations = 10_000
)

func clampMax(v uint32, limit int) int {
	if v == 0 || v > uint32(limit) {
		return limit
	}
	return int(v)
}

// ownsName is checked together with the read, after the read index applied.
func (r *replica) ownsName(name string) *lockv1.Failure {
	if f := checkName(name); f != nil {
		return f
	}
	if !r.m.Owns(name) {
		return r.failure(&op{}, &shard.Result{Status: shard.StatusNotOwner})
	}
	return nil
}

func (r *replica) describe(v shard.LockView) *lockv1.DescribeResponse {
	d := &lockv1.DescribeResponse{Name: v.Name, Holders: holders(v.Holders), Waiters: uint64(v.Waiters), Mode: lockv1.Mode(v.Mode),
		Limit: v.Limit, Shard: uint32(r.shard), DelayedMs: uint64((max(v.Delayed, 0) + ms - 1) / ms)}
	for _, q := range v.Queue {
		d.Queue = append(d.Queue, &lockv1.Waiter{Client: q.Client, Mode: lockv1.Mode(q.Mode), Permits: q.Permits, WaitingMs: uint64(max(q.Waiting, 0) / ms)})
	}
	return d
}

func (r *replica) inventory(reg shard.Registration, resp *nodev1.Response) {
	epoch, holds, waits, ok := r.m.Inventory(reg)
	if !ok {
		resp.Failure = r.failure(&op{reg: reg}, &shard.Result{Status: shard.StatusNoRegistration})
		return
	}
	inv := &lockv1.InventoryEvent{Shard: uint32(r.shard), Registration: uint64(reg), Epoch: epoch}
	for _, h := range holds {
		inv.Holds = append(inv.Holds, &lockv1.InventoryHold{Seq: h.Acquire.Seq, Name: h.Name, Token: uint64(h.Token)})
	}
	for _, x := range waits {
		inv.Waits = append(inv.Waits, &lockv1.InventoryWait{Seq: x.Acquire.Seq, Name: x.Name})
	}
	resp.Result = &nodev1.Response_Inventory{Inventory: inv}
}

// failReads: the leader's office ended. Renewals stay unanswered: silence never
// renews.
func (r *replica) failReads() {
	q := &r.reads
	fail := func(items []readItem) {
		for i := range items {
			switch it := &items[i]; {
			case it.renew != nil:
			case it.loc != nil:
				it.loc.elsewhere(r)
				if it.loc.left--; it.loc.left == 0 {
					it.loc.done(r.w)
				}
			default:
				r.notLeader(it.stream, it.req.Id)
			}
		}
	}
	for i := range q.confirmed {
		fail(q.confirmed[i].items)
	}
	fail(q.cur)
	fail(q.next)
	r.reads = readQueue{lastCtx: q.lastCtx} // contexts are never used again
}
