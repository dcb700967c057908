package worker

import (
	"flag"
	"fmt"
	"hash/fnv"
	"testing"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"google.golang.org/protobuf/proto"
)

var soakSeeds = flag.Int("soak.seeds", 6, "seeds of the randomised soak")

// soaker is a client that believes in its leases exactly as long as the rules
// let it: a grant's lease_ms from the first sending of the acquire, a TTL from
// the sending of each renewal that was acknowledged for its registration.
type soaker struct {
	*client
	k       *soak
	name    string
	state   soakState
	sentAt  Time // first sending of the present acquire
	askedAt Time // newest sending
	asked   uint64
	token   uint64
	grant   Time // lease by the grant
	hold    Time // when to release
	renewAt Time
	term    uint64
	dead    Time // renews nothing until then
	regAt   Time
	regID   uint64
}

type soakState int

const (
	idle soakState = iota
	acquiring
	holding
	releasing
	registering
)

type soak struct {
	*sim
	cs     []*soaker
	byID   map[uint64]*soaker
	tokens map[string]uint64 // newest granted token per name
	grants int
	reads  map[uint64]soakRead
	served int
	over   map[uint64]bool // tokens whose release was acknowledged
}

// soakRead is a CheckToken on its way: its token was held by c, or was over,
// when it was sent.
type soakRead struct {
	c     *soaker
	token uint64
	over  bool
}

// read asks a node that may lead, or may believe so, about a token.
func (k *soak) read() {
	c := k.cs[k.rng.IntN(len(k.cs))]
	n := k.nodes[k.rng.IntN(len(k.nodes))]
	if c.token == 0 || !n.up || !k.over[c.token] && !c.believes() {
		return
	}
	id := k.send(n, 1<<40, 1, &nodev1.Request{Op: &nodev1.Request_CheckToken{CheckToken: &nodev1.CheckToken{Name: c.name, Token: c.token}}})
	k.reads[id] = soakRead{c, c.token, k.over[c.token]}
}

func (k *soak) readAnswered(r soakRead, resp *nodev1.Response) {
	if resp.GetCheckToken() == nil {
		return
	}
	k.served++
	switch current := resp.GetCheckToken().Current; {
	case r.over && current:
		k.t.Fatalf("a read says that token %d is current, after its release was acknowledged", r.token)
	case !r.over && !current && r.c.token == r.token && r.c.believes():
		k.t.Fatalf("a read says that token %d is not current, and its holder still relies on it", r.token)
	}
}

// believes tells whether the client may still act on its hold.
func (c *soaker) believes() bool {
	return c.state == holding && c.k.now < max(c.grant, c.covered+Time(c.ttl)*milli)
}

// reply takes an answer.
func (k *soak) reply(_ *simNode, r Reply) {
	switch {
	case r.Renewed != nil:
		for _, c := range k.cs {
			if c.stream != r.Stream {
				continue
			}
			for _, cv := range r.Renewed.Covered {
				if cv.Registration != c.reg || cv.Shard != uint32(c.shard) {
					continue
				}
				for _, e := range cv.Events {
					if l := e.GetLost(); l != nil && l.Token == c.token && c.state == holding {
						c.state = idle
					}
				}
				c.epoch = max(c.epoch, cv.Epoch)
				c.covered = max(c.covered, c.sent[r.Renewed.Number])
			}
		}
	case r.Push != nil:
		if e := r.Push.GetRegistrationEnded(); e != nil {
			for _, c := range k.cs {
				if c.stream == r.Stream && c.reg == e.Registration && c.shard == 1 {
					c.gone()
				}
			}
		}
	case r.Response != nil:
		if rd, ok := k.reads[r.Response.Id]; ok {
			k.readAnswered(rd, r.Response)
			return
		}
		if c := k.byID[r.Response.Id]; c != nil && (r.Response.Id == c.asked || r.Response.Id == c.regID) {
			c.answered(r.Response)
		}
	}
}

// gone: the registration ended; register anew.
func (c *soaker) gone() {
	c.state, c.regAt, c.covered, c.grant, c.token, c.epoch = registering, 0, 0, 0, 0, 0
}

func (c *soaker) answered(resp *nodev1.Response) {
	if f := resp.Failure; f != nil {
		switch f.Detail.Reason {
		case ReasonNotLeader, ReasonOutcomeUnknown, ReasonOverloaded:
			c.askedAt = 0 // again, soon
		case ReasonNoRegistration:
			c.gone()
		case ReasonTokenNotCurrent:
			c.state = idle
		default:
			c.k.t.Fatalf("client %d: %v", c.stream, f)
		}
		return
	}
	switch {
	case resp.GetRegister() != nil && c.state == registering:
		c.reg, c.state, c.epoch = resp.GetRegister().Registration, idle, resp.GetRegister().Epoch
	case resp.GetAcquire().GetGranted() != nil && c.state == acquiring:
		g := resp.GetAcquire().GetGranted()
		if g.Registration != c.reg {
			return
		}
		c.k.grants++
		c.token = g.Token
		c.grant = c.sentAt + Time(g.LeaseMs)*milli
		c.state = holding
		c.hold = c.k.now + Time(c.k.rng.IntN(400))*milli
		if g.Token <= c.k.tokens[c.name] {
			c.k.t.Fatalf("%s: token %d granted after %d", c.name, g.Token, c.k.tokens[c.name])
		}
		c.k.tokens[c.name] = g.Token
	case resp.GetAcquire().GetEnded() != nil && c.state == acquiring:
		c.state = idle
		if resp.GetAcquire().GetEnded().Reason == lockv1.EndReason_END_REASON_REGISTRATION_ENDED {
			c.gone()
		}
	case resp.GetDone() != nil && c.state == releasing:
		c.k.over[c.token] = true
		c.state = idle
	}
}

// act does what the client does at this moment.
func (c *soaker) act() {
	k := c.k
	n := k.leader(1)
	// A client follows a stale hint now and then.
	if n == nil || k.rng.IntN(20) == 0 {
		n = k.nodes[k.rng.IntN(len(k.nodes))]
	}
	if !n.up {
		return
	}
	if k.now >= c.renewAt && k.now >= c.dead {
		c.renew()
		c.renewAt = k.now + Time(c.ttl)*milli/3
	}
	send := func(req *nodev1.Request) uint64 {
		id := k.send(n, c.stream, 1, req)
		k.byID[id] = c
		c.askedAt = k.now
		return id
	}
	again := k.now-c.askedAt > 700*milli
	if st, ok := n.w.Status(1); ok && st.Term > c.term && st.Leader != 0 {
		c.term, again = st.Term, true
	}
	switch c.state {
	case registering:
		if k.now >= c.dead && k.now-c.regAt > 500*milli {
			c.regAt = k.now
			c.regID = send(&nodev1.Request{Op: &nodev1.Request_Register{Register: &nodev1.Register{
				SessionId: c.session[:], Client: "soak", TtlMs: c.ttl, Attachment: c.attach}}})
		}
	case idle:
		if k.now < c.dead || k.rng.IntN(50) != 0 {
			return
		}
		c.seq++
		c.name, c.token = k.nameIn(1, k.rng.IntN(3)), 0
		c.state, c.sentAt = acquiring, k.now
		c.asked = send(c.acquireReq(c.seq, c.name, uint64(k.rng.IntN(2)*2000)))
	case acquiring:
		if again {
			c.asked = send(c.acquireReq(c.seq, c.name, 2000))
		}
	case holding:
		switch {
		case !c.believes():
			// Not protected any more: it stops, and cleans up.
			c.state = releasing
			c.askedAt = 0
		case k.now >= c.hold && k.now >= c.dead:
			c.state = releasing
			c.askedAt = 0
		}
	case releasing:
		if again {
			c.asked = send(&nodev1.Request{Op: &nodev1.Request_Release{Release: &nodev1.Release{
				Acting: &nodev1.Acting{Registration: c.reg, Attachment: c.attach}, Id: &nodev1.AcquireId{Seq: c.seq}, Name: c.name, Token: c.token}}})
		}
	}
}

// TestSoak: clients, crashes, partitions, stalls, transfers, slow disks and a
// lossy network at random; nobody believes in a hold while somebody else does,
// tokens rise, nothing acknowledged is lost, replicas stay equal.
func TestSoak(t *testing.T) {
	for seed := range uint64(*soakSeeds) {
		runSoak(t, seed)
	}
}

func runSoak(t *testing.T, seed uint64, opts ...func(*sim)) {
	nodes := 3 + 2*int(seed%2)
	s := newSim(t, seed, nodes, 1, func(s *sim) {
		s.policy = SnapshotPolicy{Entries: 150, KeepEntries: 20}
		s.drop, s.dup, s.delayMax = 0.01, 0.02, 5*milli
		for _, o := range opts {
			o(s)
		}
	})
	k := &soak{sim: s, byID: map[uint64]*soaker{}, tokens: map[string]uint64{}, reads: map[uint64]soakRead{}, over: map[uint64]bool{}}
	s.waitLeader(1)
	for range 12 {
		k.cs = append(k.cs, &soaker{client: s.client(1, 2_000), k: k})
	}
	s.onReply = k.reply
	var transferID uint64
	minority := (nodes - 1) / 2
	var fix []func()
	for end := s.now + 60*second; s.now < end; {
		s.run(5 * milli)
		for _, c := range k.cs {
			c.act()
		}
		k.read()
		holders := map[string]*soaker{}
		for _, c := range k.cs {
			if c.believes() {
				if o := holders[c.name]; o != nil {
					t.Fatalf("seed %d at %d ms: clients %d (token %d) and %d (token %d) both hold %s", seed, s.now/milli, o.stream, o.token, c.stream, c.token, c.name)
				}
				holders[c.name] = c
			}
		}
		if s.rng.IntN(150) == 0 { // a client goes silent for a while
			c := k.cs[s.rng.IntN(len(k.cs))]
			c.dead = s.now + Time(s.rng.IntN(6000))*milli
		}
		if s.rng.IntN(200) != 0 {
			continue
		}
		for _, f := range fix {
			f()
		}
		fix = nil
		for range 1 + s.rng.IntN(minority) {
			n := s.nodes[s.rng.IntN(nodes)]
			if l := s.leader(1); l != nil && s.rng.IntN(2) == 0 {
				n = l
			}
			switch s.rng.IntN(7) {
			case 0:
				if n.up {
					n.crash()
					fix = append(fix, n.restart)
				}
			case 1:
				s.partition(n.id)
				fix = append(fix, s.heal)
			case 2:
				if n.up && !n.paused {
					n.pause()
					fix = append(fix, func() {
						if n.up && n.paused {
							n.resume()
						}
					})
				}
			case 3:
				n.stuckDisk = true
				fix = append(fix, func() { n.stuckDisk = false })
			case 4:
				if l := s.leader(1); l != nil {
					transferID++
					l.in.Transfers = append(l.in.Transfers, Transfer{ID: transferID, Shard: 1, To: n.id})
				}
			case 5:
				s.drop = 0.2
				fix = append(fix, func() { s.drop = 0.01 })
			case 6: // power loss of everything
				if s.rng.IntN(3) == 0 {
					for _, n := range s.nodes {
						n.crash()
					}
					for _, n := range s.nodes {
						n.start()
					}
				}
			}
		}
	}
	for _, f := range fix {
		f()
	}
	s.drop = 0
	s.heal()
	s.checkReplicas()
	if k.grants < 100 {
		t.Errorf("seed %d: only %d grants", seed, k.grants)
	}
	if testing.Verbose() {
		var c Counters
		for _, n := range s.nodes {
			x := n.w.Counters()
			c.Expired += x.Expired
			c.SnapshotsInstalled += x.SnapshotsInstalled
			c.SnapshotsWritten += x.SnapshotsWritten
			c.OutcomeUnknown += x.OutcomeUnknown
			c.Renewals += x.Renewals
			c.Misdirected += x.Misdirected
		}
		t.Logf("seed %d: %d grants, %d reads, %d transfers, %+v", seed, k.grants, k.served, transferID, c)
	}
}

// TestDeterminism (W9): the same inputs give the same outputs, byte for byte.
func TestDeterminism(t *testing.T) {
	var sums [2]uint64
	for i := range sums {
		h := fnv.New64a()
		clientSeq = 0
		runSoak(t, 3, func(s *sim) {
			s.trace = func(n *simNode, _ *Input, o *Output) {
				fmt.Fprint(h, n.id, s.now, o.Next, len(o.Snapshots), o.RemoveFiles, o.Leaders, o.Transfers, o.Logs)
				for _, m := range o.Messages {
					b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m.Msg)
					fmt.Fprint(h, m.Shard, m.Peer, b)
				}
				for _, a := range o.Appends {
					fmt.Fprint(h, a.Shard, len(a.Entries), a.HardState, a.NeedSync, a.TruncateTo, len(a.Responses))
				}
				for _, r := range o.Replies {
					for _, m := range []proto.Message{r.Response, r.Renewed, r.Push} {
						b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m)
						fmt.Fprint(h, r.Stream, b)
					}
				}
			}
		})
		sums[i] = h.Sum64()
	}
	if sums[0] != sums[1] {
		t.Fatal("two runs from the same seed differ")
	}
}

func (n *simNode) restart() {
	if !n.up {
		n.start()
	}
}
