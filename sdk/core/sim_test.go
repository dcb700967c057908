package core

import (
	"container/heap"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"github.com/mortise-lock/mortise/sdk/internal/fakeservice"
)

// A simulation of clients around one service in virtual time. Clients' clocks
// run up to 1% fast or slow, links delay, break, or swallow frames in either
// direction without telling, and clients stand still for longer than a TTL.

type event struct {
	at  Time
	ord int
	run func()
}

type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].ord < q[j].ord
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *queue) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

type sim struct {
	t      *testing.T
	rnd    *rand.Rand
	now    Time
	ord    int
	q      queue
	svc    *fakeservice.Model
	links  map[uint64]*link
	cl     []*simClient
	calm   bool // no more faults
	tokens map[string]uint64
	stats  map[string]int
	forced map[uint64]bool
}

// link is one stream between a client and the service.
type link struct {
	c            *simClient
	id           StreamID
	up, down     bool // a direction that works
	upAt, downAt Time // order is kept
	gone         bool
}

type grantView struct {
	name  string
	token uint64
	reg   Registration
	own   Time
	capAt Time
	state ResultKind
	mode  lockv1.Mode
}

type simClient struct {
	s      *sim
	name   string
	rate   float64
	core   *Session
	out    Output
	frozen Time // until
	views  map[ID]*grantView
	covers map[Registration]Time
	links  map[StreamID]*link
	inbox  []func()
	wakeID int
}

func (s *sim) after(d Time, run func()) {
	s.ord++
	heap.Push(&s.q, event{s.now + d, s.ord, run})
}

// clock is the client's own time.
func (c *simClient) clock() Time { return Time(float64(c.s.now)*c.rate) + time.Hour }

func (c *simClient) do(f func(now Time)) {
	if c.frozen > c.s.now {
		c.inbox = append(c.inbox, func() { c.do(f) })
		return
	}
	f(c.clock())
	c.carryOut()
}

func (c *simClient) thaw() {
	if c.frozen > c.s.now {
		return
	}
	in := c.inbox
	c.inbox = nil
	for _, f := range in {
		f()
	}
	c.tick()
}

func (c *simClient) tick() { c.do(func(now Time) { c.core.Tick(now, &c.out) }) }

func (c *simClient) until(v *grantView) Time {
	d := max(v.own, c.covers[v.reg])
	if v.capAt != 0 {
		d = min(d, v.capAt)
	}
	return d
}

func (c *simClient) carryOut() {
	s, out := c.s, &c.out
	for _, cv := range out.Covers {
		c.covers[cv.Registration] = cv.Deadline
	}
	for _, r := range out.Results {
		v := c.views[r.ID]
		if v == nil {
			v = &grantView{}
			c.views[r.ID] = v
		}
		switch r.Kind {
		case ResultGranted:
			if v.state == ResultGranted {
				s.t.Fatalf("%s: acquire %d was granted twice", c.name, r.ID)
			}
			v.token, v.reg, v.own, v.capAt = r.Token, r.Registration, r.Deadline, r.CapAt
		case ResultQueued, ResultRetrying, ResultSuspect:
			s.stats[fmt.Sprint("kind ", r.Kind)]++
			continue
		case ResultLost:
			s.stats[fmt.Sprint("lost ", r.Lost)]++
		case ResultReleased:
			if r.Failure != nil {
				s.stats["release refused"]++
			}
		}
		v.state = r.Kind
		s.stats[fmt.Sprint("kind ", r.Kind)]++
	}
	for _, id := range out.Drop {
		if l := c.links[id]; l != nil {
			delete(c.links, id)
			l.gone = true
			s.after(s.delay(), func() { s.svc.Hangup(uint64(l.key())) })
		}
	}
	if l := c.links[out.Stream]; l != nil && len(out.Ops) > 0 {
		s.up(l, &lockv1.SessionRequest{DoneBelow: c.core.DoneBelow(), Ops: append([]*lockv1.SessionOp(nil), out.Ops...)})
	}
	for _, d := range out.Dial {
		c.dial(d)
	}
	wake := out.Wake
	out.Reset()
	c.wakeID++
	id := c.wakeID
	if wake != 0 {
		d := max(Time(float64(wake-c.clock())/c.rate)+1, 1)
		s.after(d, func() {
			if c.wakeID == id {
				c.tick()
			}
		})
	}
}

func (l *link) key() uint64 {
	for i, c := range l.c.s.cl {
		if c == l.c {
			return uint64(i+1)<<32 | uint64(l.id)
		}
	}
	panic("unknown client")
}

func (s *sim) delay() Time {
	d := time.Duration(s.rnd.IntN(4000)) * time.Microsecond
	if !s.calm && s.rnd.IntN(50) == 0 {
		d += time.Duration(s.rnd.IntN(400)) * time.Millisecond
	}
	return d
}

func (c *simClient) dial(d Dial) {
	s := c.s
	l := &link{c: c, id: d.Stream, up: true, down: true}
	c.links[d.Stream] = l
	s.links[l.key()] = l
	s.after(s.delay(), func() {
		if !s.calm && s.rnd.IntN(4) == 0 {
			if s.rnd.IntN(2) == 0 {
				return // black hole
			}
			c.do(func(now Time) { c.core.Broken(now, d.Stream, nil, &c.out) })
			return
		}
		c.do(func(now Time) { c.core.Connected(now, d.Stream, &c.out) })
	})
}

// up carries a frame to the service, in order.
func (s *sim) up(l *link, f *lockv1.SessionRequest) {
	l.upAt = max(l.upAt, s.now+s.delay())
	s.after(l.upAt-s.now, func() {
		if l.up && !l.gone {
			s.svc.Frame(l.key(), f, s.now)
		}
	})
}

// send carries events to the client, in order.
func (s *sim) send(stream uint64, events ...*lockv1.SessionEvent) {
	l := s.links[stream]
	if l == nil {
		return
	}
	l.downAt = max(l.downAt, s.now+s.delay())
	s.after(l.downAt-s.now, func() {
		if l.down && !l.gone {
			l.c.do(func(now Time) { l.c.core.Frame(now, l.id, &lockv1.SessionResponse{Events: events}, &l.c.out) })
		}
	})
}

// granted is the check of promises 1, 2 and 7: nobody else believes in a hold
// that excludes this one, unless it stands still and its clock says that the
// lease is over.
func (s *sim) granted(h *fakeservice.Hold, now Time) {
	if h.Token <= s.tokens[h.Name] {
		s.t.Fatalf("token of %s fell", h.Name)
	}
	s.tokens[h.Name] = h.Token
	for _, c := range s.cl {
		for id, v := range c.views {
			if v.name == h.Name && v.state == ResultGranted && v.token != h.Token && c.clock() < c.until(v) &&
				(v.mode == lockv1.Mode_MODE_EXCLUSIVE || h.Mode == lockv1.Mode_MODE_EXCLUSIVE) {
				if s.forced[v.token] {
					continue
				}
				s.t.Fatalf("%v: %s believes for %v in its hold %d of %s (token %d) while %s is granted token %d",
					s.now, c.name, c.until(v)-c.clock(), id, v.name, v.token, h.Session.Client, h.Token)
			}
		}
	}
}

func runSim(t *testing.T, seed uint64) map[string]int {
	s := &sim{t: t, rnd: rand.New(rand.NewPCG(seed, 7)), links: map[uint64]*link{}, tokens: map[string]uint64{}, stats: map[string]int{}, forced: map[uint64]bool{}}
	s.svc = fakeservice.New(3, s.send)
	s.svc.OnGrant = s.granted
	s.svc.Refuse = func(op *lockv1.AcquireOp) *lockv1.Failure {
		if !s.calm && s.rnd.IntN(20) == 0 {
			return &lockv1.Failure{Code: 14, Message: "not now", Detail: &lockv1.ErrorDetail{RetryAfterMs: uint64(s.rnd.IntN(100))}}
		}
		return nil
	}
	for i, rate := range []float64{1.01, 0.99, 1, 1.005} {
		c := &simClient{s: s, name: fmt.Sprint("client", i), rate: rate, views: map[ID]*grantView{}, covers: map[Registration]Time{},
			links: map[StreamID]*link{}}
		s.cl = append(s.cl, c)
		ttl := time.Duration(1+s.rnd.IntN(10)) * time.Second
		c.core = New(Config{Client: c.name, TTL: ttl, DriftPPM: 21_000, Endpoints: 1 + i, RetryBase: 25 * time.Millisecond,
			RetryMax: 2 * time.Second, Rand: s.rnd.Uint64}, c.clock())
		c.tick()
	}
	const storm, total = 120 * time.Second, 300 * time.Second
	var beat, act func()
	beat = func() { s.svc.Tick(s.now); s.after(20*time.Millisecond, beat) }
	act = func() {
		s.act()
		if s.now < storm {
			s.after(time.Duration(s.rnd.IntN(60))*time.Millisecond, act)
		}
	}
	beat()
	act()
	// A direction that swallows stays that way: the client must leave it.
	s.after(storm, func() { s.calm = true })
	for len(s.q) > 0 && s.now < total {
		e := heap.Pop(&s.q).(event)
		s.now = e.at
		e.run()
	}
	s.settled()
	return s.stats
}

// act does something at random: a user's call, or a fault.
func (s *sim) act() {
	c := s.cl[s.rnd.IntN(len(s.cl))]
	names := []string{"a", "bb", "ccc", "dddd", "e"}
	switch n := s.rnd.IntN(100); {
	case n < 45:
		req := Request{Name: names[s.rnd.IntN(len(names))], Mode: lockv1.Mode_MODE_EXCLUSIVE}
		if s.rnd.IntN(4) == 0 {
			req.Mode = lockv1.Mode_MODE_SHARED
		}
		if s.rnd.IntN(3) > 0 {
			req.Wait = time.Duration(s.rnd.IntN(30_000)) * time.Millisecond
		}
		if s.rnd.IntN(6) == 0 {
			req.LockDelay = time.Duration(s.rnd.IntN(3_000)) * time.Millisecond
		}
		if s.rnd.IntN(8) == 0 {
			req.MaxHold = time.Duration(1+s.rnd.IntN(20_000)) * time.Millisecond
		}
		c.do(func(now Time) {
			v := &grantView{name: req.Name, mode: req.Mode}
			c.views[c.core.lastID+1] = v
			c.core.Acquire(now, req, &c.out)
		})
	case n < 90:
		ids := slices.Sorted(maps.Keys(c.views))
		s.rnd.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		for _, id := range ids { // any one
			v := c.views[id]
			switch v.state {
			case ResultGranted:
				c.do(func(now Time) {
					if v.state == ResultGranted {
						v.state = ResultReleased
						c.core.Release(now, id, &c.out)
					}
				})
			case 0:
				if s.rnd.IntN(3) == 0 {
					c.do(func(now Time) {
						if v.state == 0 {
							v.state = ResultFailed
							c.core.Cancel(now, id, &c.out)
						}
					})
				}
			default:
				delete(c.views, id)
				continue
			}
			break
		}
	case n < 92: // a stream breaks
		for _, id := range slices.Sorted(maps.Keys(c.links)) {
			l := c.links[id]
			l.gone = true
			s.after(s.delay(), func() { s.svc.Hangup(l.key()) })
			c.do(func(now Time) { c.core.Broken(now, id, nil, &c.out) })
			break
		}
	case n < 94: // swallows
		for _, id := range slices.Sorted(maps.Keys(c.links)) {
			l := c.links[id]
			if s.rnd.IntN(2) == 0 {
				l.up = false
			} else {
				l.down = false
			}
		}
	case n < 95 && s.rnd.IntN(4) == 0: // stands still
		c.frozen = s.now + time.Duration(s.rnd.IntN(25_000))*time.Millisecond
		s.after(c.frozen-s.now+1, c.thaw)
	case n < 96:
		name := names[s.rnd.IntN(len(names))]
		for _, h := range s.svc.Holds() {
			if h.Name == name {
				s.forced[h.Token] = true
			}
		}
		s.svc.Force(name, s.now)
	case n < 97:
		c.do(func(now Time) { c.core.Heard(now, 1, &c.out) })
	}
}

// settled: after the storm both sides agree: no ghost holds, no ghost waits,
// nothing left in flight.
func (s *sim) settled() {
	held := map[uint64]bool{}
	for _, c := range s.cl {
		n := 0
		for id, v := range c.views {
			if v.state == 0 {
				if c.core.byID[id] == nil {
					s.t.Fatalf("%s: acquire %d of %s was forgotten without an answer", c.name, id, v.name)
				}
				n++
			}
			if v.state == ResultGranted {
				n++
				held[v.token] = true
				if !s.svc.Current(v.name, v.token) {
					s.t.Fatalf("%s believes in %s token %d, the service does not", c.name, v.name, v.token)
				}
			}
		}
		if c.core.Len() != n {
			for _, a := range c.core.inOrder(func(*acquire) bool { return true }) {
				s.t.Logf("%s: seq %d id %d %s phase %d due %v", c.name, a.seq, a.id, a.req.Name, a.phase, a.due)
			}
			s.t.Fatalf("%s: %d acquires in the table, %d of callers", c.name, c.core.Len(), n)
		}
		if !c.core.Live() {
			s.t.Fatalf("%s has no stream in calm weather", c.name)
		}
	}
	for _, h := range s.svc.Holds() {
		if !held[h.Token] {
			s.t.Fatalf("ghost: %s seq %d holds %s token %d\n%v", h.Session.Client, h.Seq, h.Name, h.Token, s.svc)
		}
	}
}

func TestStorms(t *testing.T) {
	n := uint64(60)
	if testing.Short() {
		n = 10
	}
	sum := map[string]int{}
	for seed := range n {
		if !t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			for k, v := range runSim(t, seed) {
				sum[k] += v
			}
		}) {
			return
		}
	}
	t.Log(sum)
	for _, k := range []ResultKind{ResultGranted, ResultFailed, ResultQueued, ResultSuspect, ResultLost, ResultReleased, ResultRetrying} {
		if sum[fmt.Sprint("kind ", k)] == 0 {
			t.Errorf("no result of kind %d in any storm", k)
		}
	}
	for _, k := range []LostReason{LostDeadline, LostMaxHold, LostForced, LostExpired} {
		if sum[fmt.Sprint("lost ", k)] == 0 {
			t.Logf("no loss with reason %d in any storm", k)
		}
	}
}
