package checker

import (
	"cmp"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/mortise-lock/mortise/ops/history"
)

const ms = history.Time(1_000_000)

// service is a correct lock service, one step at a time: what a history that
// it answered may never be blamed for.
type service struct {
	r      *rand.Rand
	now    history.Time
	todo   timeline
	events []history.Event
	names  []*modelLock
	token  uint64
	call   uint64
	stores map[string]uint64
	wants  map[uint64]*want // by call

	// Bugs, for histories in which nobody dies, gives up or goes unanswered.
	orderly  bool
	forgets  bool // from a second on nothing waiting is granted any more
	gripping bool // from a second on the clients' library gives nothing back
}

type modelLock struct {
	name    string
	counted bool
	limit   uint32
	holds   []*want
	queue   []*want
}

// want is an acquire, as the service and its client know it.
type want struct {
	u         *user
	l         *modelLock
	call      uint64
	mode      history.Mode
	permits   uint32
	token     uint64
	cancelled bool // at the service
	done      bool // at the client
	silent    bool // no answer reaches the client
	belief    bool
}

// user is a client with one session.
type user struct {
	index   int
	session string
	ttl     history.Time
	dead    bool
	gone    bool // at the service
}

type todo struct {
	at  history.Time
	seq int
	do  func()
}

type timeline struct {
	list []todo
	seq  int
}

func (t *timeline) Len() int { return len(t.list) }
func (t *timeline) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(t.list[i].at, t.list[j].at), t.list[i].seq-t.list[j].seq) < 0
}
func (t *timeline) Swap(i, j int) { t.list[i], t.list[j] = t.list[j], t.list[i] }
func (t *timeline) Push(x any)    { t.list = append(t.list, x.(todo)) }
func (t *timeline) Pop() any {
	x := t.list[len(t.list)-1]
	t.list = t.list[:len(t.list)-1]
	return x
}

func (s *service) after(d history.Time, do func()) {
	s.todo.seq++
	heap.Push(&s.todo, todo{s.now + d, s.todo.seq, do})
}

// travel is the time of a message.
func (s *service) travel() history.Time { return ms + history.Time(s.r.ExpFloat64()*20)*ms }

func (s *service) record(e history.Event) {
	e.At, e.Node = s.now, -1
	s.events = append(s.events, e)
}

// randomHistory lets some clients work for a while.
func randomHistory(seed uint64, length history.Time) []history.Event {
	return newService(seed).run(length)
}

func newService(seed uint64) *service {
	return &service{r: rand.New(rand.NewPCG(seed, 1)), stores: map[string]uint64{}, wants: map[uint64]*want{}, token: 100}
}

func (s *service) run(length history.Time) []history.Event {
	for i := range 1 + s.r.IntN(3) {
		l := &modelLock{name: fmt.Sprint("lock", i)}
		if s.r.IntN(3) == 0 {
			l.counted, l.limit = true, 1+s.r.Uint32N(4)
		}
		s.names = append(s.names, l)
	}
	for i := range 2 + s.r.IntN(6) {
		s.join(i)
	}
	for s.todo.Len() > 0 {
		t := heap.Pop(&s.todo).(todo)
		if t.at > length {
			break
		}
		s.now = t.at
		t.do()
	}
	return s.events
}

func (s *service) join(index int) {
	u := &user{index: index, session: fmt.Sprintf("s%d", index), ttl: 1000 * ms}
	s.record(history.Event{Kind: history.SessionOpened, Client: index, Session: u.session, TTL: u.ttl})
	s.after(s.travel(), func() { s.work(u) })
}

func (s *service) work(u *user) {
	if u.dead {
		return
	}
	l := s.names[s.r.IntN(len(s.names))]
	switch s.r.IntN(16) {
	case 0:
		if !s.orderly {
			s.die(u)
			return
		}
	case 1, 2, 3, 4, 5:
		s.describe(u, l)
	default:
		s.acquire(u, l)
	}
	s.after(history.Time(s.r.ExpFloat64()*60)*ms, func() { s.work(u) })
}

// die: the service notices within a TTL, and another client comes.
func (s *service) die(u *user) {
	u.dead = true
	for _, w := range s.ordered(func(w *want) bool { return w.u == u && w.belief }) {
		s.endBelief(w)
	}
	s.record(history.Event{Kind: history.ClientDied, Client: u.index, Session: u.session})
	s.after(history.Time(s.r.Int64N(int64(u.ttl))), func() {
		u.gone = true
		for _, l := range s.names {
			mine := func(w *want) bool { return w.u == u }
			l.holds = slices.DeleteFunc(l.holds, mine)
			l.queue = slices.DeleteFunc(l.queue, mine)
			s.grant(l)
		}
	})
	s.after(s.travel(), func() { s.join(u.index + 10) })
}

func (s *service) ordered(ok func(*want) bool) []*want {
	var list []*want
	for c := uint64(1); c <= s.call; c++ {
		if w := s.wants[c]; w != nil && ok(w) {
			list = append(list, w)
		}
	}
	return list
}

func (s *service) describe(u *user, l *modelLock) {
	s.call++
	e := history.Event{Kind: history.Invoke, Op: history.Describe, Client: u.index, Call: s.call, Name: l.name}
	s.record(e)
	s.after(s.travel(), func() {
		e := e
		e.Kind, e.Outcome, e.Waiters = history.Return, history.OK, len(l.queue)
		for _, w := range l.holds {
			e.Holders = append(e.Holders, history.Holder{Session: w.u.session, Client: w.u.session, Token: w.token, Mode: w.mode, Permits: w.permits})
		}
		s.after(s.travel(), func() {
			if !u.dead {
				s.record(e)
			}
		})
	})
}

func (s *service) acquire(u *user, l *modelLock) {
	s.call++
	w := &want{u: u, l: l, call: s.call, mode: history.Exclusive, silent: s.r.IntN(30) == 0 && !s.orderly}
	switch {
	case l.counted:
		w.mode, w.permits = history.Counted, 1+s.r.Uint32N(l.limit)
	case s.r.IntN(2) == 0:
		w.mode = history.Shared
	}
	s.wants[w.call] = w
	wait := s.r.IntN(3) > 0
	s.record(w.event(history.Invoke, history.Acquire))
	s.after(s.travel(), func() {
		switch {
		case u.gone || w.cancelled:
		case wait || len(l.queue) == 0 && s.free(w):
			l.queue = append(l.queue, w)
			if s.grant(l); w.token == 0 {
				s.after(s.travel(), func() {
					if !w.done && !u.dead {
						e := w.event(history.Waiting, 0)
						e.Seq = 1
						s.record(e)
					}
				})
			}
		default:
			s.after(s.travel(), func() { s.answer(w, history.Busy) })
		}
	})
	if s.r.IntN(8) == 0 && !s.orderly {
		s.after(s.travel()*3, func() { s.cancel(w) })
	}
	if w.silent && s.r.IntN(2) == 0 {
		s.after(s.travel()*3, func() {
			w.silent = false
			s.answer(w, history.OutcomeUnknown)
		})
	}
}

func (w *want) event(k history.Kind, op history.Op) history.Event {
	return history.Event{Kind: k, Op: op, Client: w.u.index, Session: w.u.session, Call: w.call, Name: w.l.name, Mode: w.mode,
		Permits: w.permits, Limit: w.l.limit}
}

func (s *service) free(w *want) bool {
	sum := w.permits
	for _, h := range w.l.holds {
		if w.mode != history.Counted && (w.mode == history.Exclusive || h.mode == history.Exclusive) {
			return false
		}
		sum += h.permits
	}
	return w.mode != history.Counted || sum <= w.l.limit
}

// grant serves the head of the queue as far as it fits.
func (s *service) grant(l *modelLock) {
	for len(l.queue) > 0 && s.free(l.queue[0]) && !(s.forgets && s.now > 1000*ms) {
		w := l.queue[0]
		l.queue = l.queue[1:]
		s.token += 1 + s.r.Uint64N(3)
		w.token = s.token
		l.holds = append(l.holds, w)
		s.after(s.travel(), func() { s.answer(w, history.OK) })
	}
}

// answer is what the client hears of an acquire, the first time.
func (s *service) answer(w *want, o history.Outcome) {
	if w.done || w.u.dead || w.silent {
		return
	}
	w.done = true
	e := w.event(history.Return, history.Acquire)
	e.Outcome, e.Seq = o, 1
	if o == history.OK {
		e.Token = w.token
	}
	s.record(e)
	if o != history.OK {
		return
	}
	w.belief = true
	e = w.event(history.BeliefBegins, 0)
	e.Token = w.token
	s.record(e)
	s.after(history.Time(s.r.ExpFloat64()*100)*ms, func() {
		if !w.u.dead {
			s.write(w)
			s.release(w)
		}
	})
}

func (s *service) endBelief(w *want) {
	w.belief = false
	e := w.event(history.BeliefEnds, 0)
	e.Token = w.token
	s.record(e)
}

func (s *service) write(w *want) {
	e := w.event(history.Write, 0)
	e.Token = w.token
	s.after(s.travel(), func() {
		e.Accepted = e.Token >= s.stores[e.Name]
		s.stores[e.Name] = max(s.stores[e.Name], e.Token)
		s.record(e)
	})
}

func (s *service) release(w *want) {
	s.endBelief(w)
	if s.gripping && s.now > 1000*ms {
		return
	}
	s.call++
	e := w.event(history.Invoke, history.Release)
	e.Call, e.Token = s.call, w.token
	s.record(e)
	s.after(s.travel(), func() {
		s.drop(w)
		e := e
		e.Kind, e.Outcome = history.Return, history.OK
		s.after(s.travel(), func() {
			if !w.u.dead {
				s.record(e)
			}
		})
	})
}

// drop makes sure that an acquire holds nothing.
func (s *service) drop(w *want) {
	same := func(o *want) bool { return o == w }
	w.cancelled = true
	w.l.holds = slices.DeleteFunc(w.l.holds, same)
	w.l.queue = slices.DeleteFunc(w.l.queue, same)
	s.grant(w.l)
}

func (s *service) cancel(w *want) {
	if w.done || w.u.dead {
		return
	}
	w.silent = false
	s.answer(w, history.Cancelled)
	s.call++
	e := w.event(history.Invoke, history.Cancel)
	e.Call, e.Of = s.call, w.call
	s.record(e)
	s.after(s.travel(), func() {
		s.drop(w)
		e := e
		e.Kind, e.Outcome = history.Return, history.OK
		s.after(s.travel(), func() {
			if !w.u.dead {
				s.record(e)
			}
		})
	})
}
