package core

import (
	"fmt"
	"testing"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"google.golang.org/grpc/codes"
)

// call runs a unary call to its answer.
func (w *sim) call(t *testing.T, id CallID, req any) Answer {
	t.Helper()
	w.step(Input{Kind: CallStarted, Call: id, Request: req})
	for range 100 {
		if len(w.answers[id]) > 0 {
			break
		}
		w.settleFor(200 * time.Millisecond)
	}
	if n := len(w.answers[id]); n != 1 {
		t.Fatalf("call %d (%T) was answered %d times", id, req, n)
	}
	return w.answers[id][0]
}

func (w *sim) openSession(t *testing.T, id CallID) string {
	t.Helper()
	a := w.call(t, id, &lockv1.OpenSessionRequest{Client: fmt.Sprint("worker-", id)})
	return a.Response.(*lockv1.OpenSessionResponse).SessionId
}

func hexID(n uint64) string { return fmt.Sprintf("%032x", n+1) }

func TestUnaryCalls(t *testing.T) {
	w := newSim(2, 4, 3)
	w.boot()
	s1, s2 := w.openSession(t, 1), w.openSession(t, 2)
	ka := w.call(t, 3, &lockv1.KeepAliveRequest{SessionId: s1}).Response.(*lockv1.KeepAliveResponse)
	if !ka.Renewed || ka.LeaseForMs != 10000 {
		t.Errorf("a fresh session: %v", ka)
	}
	g := w.call(t, 4, &lockv1.AcquireRequest{SessionId: s1, Name: "x", RequestId: hexID(4)}).Response.(*lockv1.AcquireResponse)
	if !g.Granted || g.Token == 0 || g.LeaseForMs == 0 || !g.Fenced {
		t.Fatalf("acquire: %v", g)
	}
	again := w.call(t, 5, &lockv1.AcquireRequest{SessionId: s1, Name: "x", RequestId: hexID(4)}).Response.(*lockv1.AcquireResponse)
	if again.Token != g.Token {
		t.Errorf("the same request id gave token %d, then %d", g.Token, again.Token)
	}
	if b := w.call(t, 6, &lockv1.AcquireRequest{SessionId: s2, Name: "x", RequestId: hexID(6)}).Response.(*lockv1.AcquireResponse); b.Granted {
		t.Error("two holders")
	}
	ka = w.call(t, 7, &lockv1.KeepAliveRequest{SessionId: s1}).Response.(*lockv1.KeepAliveResponse)
	if !ka.Renewed || ka.LeaseForMs < 9000 {
		t.Errorf("keep-alive of a holder: %v", ka)
	}
	if d := w.call(t, 8, &lockv1.DescribeRequest{Name: "x"}).Response.(*lockv1.DescribeResponse); len(d.Holders) != 1 || d.Holders[0].Token != g.Token {
		t.Errorf("describe: %v", d)
	}
	a := w.call(t, 9, &lockv1.ReleaseRequest{Name: "x", Token: g.Token + 1})
	if a.Failure == nil || reason(a.Failure) != ReasonTokenNotCurrent {
		t.Errorf("release with a wrong token: %v", a)
	}
	for i := range CallID(2) { // with its identity, a repeated release is fine
		if a := w.call(t, 10+i, &lockv1.ReleaseRequest{Name: "x", Token: g.Token, SessionId: s1, RequestId: hexID(4)}); a.Failure != nil {
			t.Errorf("release %d: %v", i, a.Failure)
		}
	}
	for i := range CallID(7) {
		w.call(t, 20+i, &lockv1.AcquireRequest{SessionId: s1, Name: fmt.Sprint("list/", i), RequestId: hexID(uint64(20 + i))})
	}
	var names []string
	token, n := "", uint32(3)
	for i := CallID(30); ; i++ {
		l := w.call(t, i, &lockv1.ListRequest{Prefix: "list/", PageSize: &n, PageToken: token}).Response.(*lockv1.ListResponse)
		for _, d := range l.Locks {
			names = append(names, d.Name)
		}
		if token = l.NextPageToken; token == "" {
			break
		}
	}
	if fmt.Sprint(names) != "[list/0 list/1 list/2 list/3 list/4 list/5 list/6]" {
		t.Errorf("list: %v", names)
	}
	ls := w.call(t, 40, &lockv1.ListSessionsRequest{}).Response.(*lockv1.ListSessionsResponse)
	if len(ls.Sessions) != 2 {
		t.Errorf("sessions: %v", ls)
	}
	if a := w.call(t, 41, &lockv1.CloseSessionRequest{SessionId: s1}); a.Failure != nil {
		t.Errorf("close: %v", a)
	}
	w.checkEmpty(t)
	if ka := w.call(t, 42, &lockv1.KeepAliveRequest{SessionId: s1}).Response.(*lockv1.KeepAliveResponse); ka.Renewed {
		t.Errorf("a closed session was renewed")
	}
	w.settleFor(3 * time.Minute)
	w.checkNoLeaks(t)
}

func TestUnaryRefusals(t *testing.T) {
	w := newSim(2, 2, 3)
	w.boot()
	s := w.openSession(t, 1)
	u := func(v uint64) *uint64 { return &v }
	p := func(v uint32) *uint32 { return &v }
	for i, tc := range []struct {
		req   any
		field string
	}{
		{&lockv1.OpenSessionRequest{}, "client"},
		{&lockv1.OpenSessionRequest{Client: "a\nb"}, "client"},
		{&lockv1.OpenSessionRequest{Client: "a", TtlMs: u(0)}, "ttl_ms"},
		{&lockv1.OpenSessionRequest{Client: "a", TtlMs: u(999)}, "ttl_ms"},
		{&lockv1.OpenSessionRequest{Client: "a", TtlMs: u(600_001)}, "ttl_ms"},
		{&lockv1.KeepAliveRequest{}, "session_id"},
		{&lockv1.KeepAliveRequest{SessionId: "s_nonsense"}, "session_id"},
		{&lockv1.AcquireRequest{SessionId: s, RequestId: hexID(1)}, "name"},
		{&lockv1.AcquireRequest{SessionId: s, Name: "x", RequestId: "12"}, "request_id"},
		{&lockv1.ReleaseRequest{Name: "x"}, "token"},
		{&lockv1.ReleaseRequest{Name: "x", Token: 1 << 53}, "token"},
		{&lockv1.ReleaseRequest{Token: 5}, "name"},
		{&lockv1.CancelRequest{SessionId: s, Name: "x"}, "request_id"},
		{&lockv1.DescribeRequest{}, "name"},
		{&lockv1.CheckTokenRequest{Name: "x"}, "token"},
		{&lockv1.ListRequest{PageSize: p(0)}, "page_size"},
		{&lockv1.ListRequest{PageToken: "%"}, "page_token"},
		{&lockv1.ForceReleaseRequest{Name: "x"}, "reason"},
		{&lockv1.ListSessionsRequest{MaxSessions: p(0)}, "max_sessions"},
		{&lockv1.RevokeSessionRequest{Id: "zz", Reason: "r"}, "id"},
	} {
		a := w.call(t, CallID(100+i), tc.req)
		if a.Failure == nil || codes.Code(a.Failure.Code) != codes.InvalidArgument || a.Failure.Detail.Field != tc.field || a.Failure.Detail.Rule == "" {
			t.Errorf("%T %v: %v", tc.req, tc.req, a.Failure)
		}
	}
	w.settleFor(3 * time.Minute)
	w.checkNoLeaks(t)
}

// TestUnaryLongWait: the wait outlives the lease counted from the request, so
// the answer waits for a renewal that covers the hold.
func TestUnaryLongWait(t *testing.T) {
	w := newSim(4, 2, 3)
	w.boot()
	s1, s2 := w.openSession(t, 1), w.openSession(t, 2)
	g := w.call(t, 3, &lockv1.AcquireRequest{SessionId: s1, Name: "x", RequestId: hexID(3)}).Response.(*lockv1.AcquireResponse)
	wait := uint64(60_000)
	from := w.now
	w.step(Input{Kind: CallStarted, Call: 4, Request: &lockv1.AcquireRequest{SessionId: s2, Name: "x", RequestId: hexID(4), WaitMs: &wait}})
	w.settleFor(25 * time.Second)
	w.call(t, 5, &lockv1.ReleaseRequest{Name: "x", Token: g.Token})
	w.settle()
	if len(w.answers[4]) != 1 {
		t.Fatalf("answers: %v", w.answers[4])
	}
	a := w.answers[4][0].Response.(*lockv1.AcquireResponse)
	if left := time.Duration(a.LeaseForMs)*time.Millisecond - (w.now - from); !a.Granted || left < 2*time.Second || left > 10*time.Second {
		t.Fatalf("granted %v with %v left of its lease", a, left)
	}
}

func TestUnaryMinority(t *testing.T) {
	w := newSim(4, 1, 3)
	w.boot()
	s := w.openSession(t, 1)
	for _, n := range w.nodes {
		w.down(n)
	}
	from := w.now
	for i, req := range []any{
		&lockv1.AcquireRequest{SessionId: s, Name: "x", RequestId: hexID(3)}, &lockv1.DescribeRequest{Name: "x"}, &lockv1.KeepAliveRequest{SessionId: s},
	} {
		a := w.call(t, CallID(10+i), req)
		if a.Failure == nil || codes.Code(a.Failure.Code) != codes.Unavailable || w.now-from > time.Duration(i+1)*6*time.Second {
			t.Errorf("%T after %v: %v", req, w.now-from, a)
		}
	}
	w.settleFor(3 * time.Minute)
	w.checkNoLeaks(t)
}

// TestUnaryStorm: callers leave at any moment, answers get lost, leaders
// change. Each call is answered at most once, each that stayed exactly once,
// and nothing is held afterwards that nobody was told of (T6, T7).
func TestUnaryStorm(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { unaryStorm(t, seed) })
	}
}

func unaryStorm(t *testing.T, seed uint64) {
	w := newSim(seed+1000, 3, 3)
	w.boot()
	var sessions []string
	for i := range CallID(4) {
		sessions = append(sessions, w.openSession(t, i+1))
	}
	w.unknown, w.reorder, w.duplicate = 50, 200, 100
	type acq struct {
		name, sess string
		gone       bool
	}
	acqs := map[CallID]*acq{}
	var order []CallID
	next := CallID(100)
	released := map[CallID]bool{}
	for range 500 {
		switch w.rng.IntN(9) {
		case 0, 1:
			next++
			a := &acq{name: fmt.Sprint("n", w.rng.IntN(3)), sess: sessions[w.rng.IntN(4)]}
			wait := uint64(w.rng.IntN(2) * 3000)
			acqs[next] = a
			order = append(order, next)
			w.step(Input{Kind: CallStarted, Call: next, OwnID: true,
				Request: &lockv1.AcquireRequest{SessionId: a.sess, Name: a.name, RequestId: hexID(uint64(next)), WaitMs: &wait}})
		case 2:
			if len(order) > 0 {
				id := order[len(order)-1-w.rng.IntN(min(4, len(order)))]
				if len(w.answers[id]) == 0 && !acqs[id].gone {
					acqs[id].gone = true
					w.step(Input{Kind: CallGone, Call: id})
				}
			}
		case 3:
			w.lead(w.shards[w.rng.IntN(3)], uint64(w.rng.IntN(3)+1))
		case 4:
			if n := w.nodes[w.rng.IntN(3)]; n.up {
				w.down(n)
			} else {
				w.up(n)
			}
		case 5:
			for _, id := range order {
				if as := w.answers[id]; len(as) > 0 && !released[id] {
					if r, ok := as[0].Response.(*lockv1.AcquireResponse); ok && r.Granted {
						released[id] = true
						next++
						w.step(Input{Kind: CallStarted, Call: next, Request: &lockv1.ReleaseRequest{Name: acqs[id].name, Token: r.Token}})
						break
					}
				}
			}
		default:
			for range w.rng.IntN(30) {
				w.pass()
			}
			w.advance(w.now + time.Duration(w.rng.IntN(200))*time.Millisecond)
		}
	}
	w.unknown, w.reorder = 0, 0
	for _, n := range w.nodes {
		if !n.up {
			w.up(n)
		}
	}
	for range 60 {
		w.settleFor(300 * time.Millisecond)
		for _, id := range order {
			if as := w.answers[id]; len(as) > 0 {
				if r, ok := as[0].Response.(*lockv1.AcquireResponse); ok && r.Granted {
					next++
					w.step(Input{Kind: CallStarted, Call: next, Request: &lockv1.ReleaseRequest{Name: acqs[id].name, Token: r.Token,
						SessionId: acqs[id].sess, RequestId: hexID(uint64(id))}})
				}
			}
		}
	}
	w.settle()
	for _, id := range order {
		n := len(w.answers[id])
		if acqs[id].gone && n != 0 || !acqs[id].gone && n != 1 {
			t.Errorf("call %d (gone: %v) was answered %d times", id, acqs[id].gone, n)
		}
	}
	w.checkEmpty(t)
	w.settleFor(3 * time.Minute)
	w.checkNoLeaks(t)
}

// TestBeforeTheMap: what comes before a gateway knows the cluster waits for it.
func TestBeforeTheMap(t *testing.T) {
	w := newSim(6, 2, 3)
	a := w.open(1)
	a.acquire("x", 0)
	w.step(Input{Kind: CallStarted, Call: 1, Request: &lockv1.DescribeRequest{Name: "x"}})
	w.settle()
	w.boot()
	w.settle()
	a.poll()
	if len(a.tokens) != 1 || len(w.answers[1]) != 1 || w.answers[1][0].Failure != nil {
		t.Fatalf("tokens %v, answers %v", a.tokens, w.answers[1])
	}
	// A client that leaves before the map takes its operations along.
	w2 := newSim(6, 2, 3)
	b := w2.open(1)
	b.acquire("x", 0)
	w2.step(Input{Kind: StreamClosed, Stream: 1})
	w2.boot()
	if len(w2.shards[0].grants)+len(w2.shards[1].grants) != 0 {
		t.Fatal("an operation outlived its stream")
	}
	w2.checkNoLeaks(t)
}

// TestUndelivered: the answer could not be written, so the lock goes back.
func TestUndelivered(t *testing.T) {
	w := newSim(7, 2, 3)
	w.boot()
	s := w.openSession(t, 1)
	req := &lockv1.AcquireRequest{SessionId: s, Name: "x", RequestId: hexID(9)}
	if g := w.call(t, 2, req).Response.(*lockv1.AcquireResponse); !g.Granted {
		t.Fatal("not granted")
	}
	w.step(Input{Kind: CallUndelivered, Request: req})
	w.settle()
	w.checkEmpty(t)
}

// TestOtherGateway: a session used through two gateways is renewed everywhere.
func TestOtherGateway(t *testing.T) {
	w := newSim(9, 4, 3)
	w.boot()
	s := w.openSession(t, 1)
	id, _ := plainSessions{}.Verify(s)
	for _, sh := range w.shards { // registered by somebody else
		sh.next++
		sh.regs[sh.next] = &mreg{num: sh.next, sess: id.Session, out: map[string]*outcome{}, live: true}
	}
	ka := w.call(t, 2, &lockv1.KeepAliveRequest{SessionId: s}).Response.(*lockv1.KeepAliveResponse)
	if !ka.Renewed || ka.LeaseForMs != 10000 {
		t.Fatalf("%v", ka)
	}
	for _, sh := range w.shards[:1] {
		for _, r := range sh.regs {
			sh.end(r)
		}
		w.news(sh)
	}
	w.settle()
	if n := len(w.core.unary[id.Session].regs); n != 4 && n != 3 {
		t.Fatalf("%d registrations", n)
	}
	if a := w.call(t, 3, &lockv1.AcquireRequest{SessionId: s, Name: "x", RequestId: hexID(3)}); a.Failure != nil {
		t.Fatalf("an acquire after the end of a registration must register anew: %v", a.Failure)
	}
}
