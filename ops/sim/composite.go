package sim

import (
	"github.com/mortise-lock/mortise/node/worker"
	"github.com/mortise-lock/mortise/shard"
)

// Faults that are made of several, for moments that chance alone hits rarely.

// brink pauses a client for about its TTL, and changes leaders at about the end
// of its leases.
func (w *World) brink() bool {
	if len(w.Clients) == 0 {
		return false
	}
	c := pick(w, w.Clients)
	if c.p.paused || !c.p.up || c.Session == nil {
		return false
	}
	ttl := c.Session.core.TTL()
	c.p.pause(false)
	pause := ttl/2 + w.upTo(ttl*6/10)
	w.stay(pause, c.p.resume)
	for id := 1; id <= w.cfg.Shards; id++ {
		w.after(pause-ttl/10+w.upTo(ttl*2/10), func() {
			if w.storm == nil {
				return
			}
			l := w.leader(shard.ID(id))
			if l == nil || w.rng.IntN(2) == 0 {
				return
			}
			if w.rng.IntN(2) == 0 {
				w.transfer(l, shard.ID(id), pick(w, w.nodes).id)
				return
			}
			l.crash(false)
			w.stay(ms+w.upTo(2*second), l.restart)
		})
	}
	return true
}

// swingVoter splits all nodes but one leader into halves that don't hear each
// other, so that the leader's vote decides; it dies, and dies again right after
// it has voted, each time for a moment only.
func (w *World) swingVoter() bool {
	l := w.leader(shard.ID(w.rng.IntN(w.cfg.Shards + 1)))
	if l == nil || w.lost() > 0 {
		return false
	}
	var others []*node
	for _, n := range w.nodes {
		if n != l {
			others = append(others, n)
		}
	}
	w.rng.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	half := len(others) / 2
	cut := func(by int16) {
		for _, a := range others[:half] {
			for _, b := range others[half:] {
				w.net.cutOneWay(a.p.id, b.p.id, by)
				w.net.cutOneWay(b.p.id, a.p.id, by)
			}
		}
	}
	cut(1)
	w.stay(2*second+w.upTo(4*second), func() { cut(-1) })
	l.crash(false)
	w.stay(10*ms+w.upTo(500*ms), func() {
		l.restart()
		l.votes = 1 + w.rng.IntN(2*w.cfg.Shards)
	})
	return true
}

// inherited pauses a client until a leader proposes that it expires; that
// leader dies when the proposal has left it, and the client goes on when the
// next leader is elected and has not come to know everything yet.
func (w *World) inherited() bool {
	if len(w.Clients) == 0 {
		return false
	}
	c := pick(w, w.Clients)
	if c.p.paused || !c.p.up || c.Session == nil {
		return false
	}
	c.p.pause(false)
	ttl := c.Session.core.TTL()
	r := w.stay(ttl+5*second, c.p.resume)
	for _, n := range w.nodes {
		n.onExpire = func(id shard.ID) {
			for _, o := range w.nodes {
				o.onExpire = nil
				d := 50*ms + w.upTo(300*ms)
				o.disk.extra += d
				w.stay(4*second, func() { o.disk.extra = max(0, o.disk.extra-d) })
			}
			n.crash(false)
			w.stay(3*second, n.restart)
			w.whenElected(id, w.now+4*second, r.run)
		}
	}
	w.stay(ttl+5*second, func() {
		for _, n := range w.nodes {
			n.onExpire = nil
		}
	})
	return true
}

// whenElected runs f when a shard has a new leader, or then.
func (w *World) whenElected(id shard.ID, until Time, f func()) {
	elected := w.now >= until
	for _, n := range w.nodes {
		if n.running() {
			st, ok := n.loopOf(id).w.Status(id)
			elected = elected || ok && st.Role == "LEADER"
		}
	}
	if elected {
		f()
		return
	}
	w.after(5*ms, func() { w.whenElected(id, until, f) })
}

// expires returns a shard whose leader proposes an expiry in these messages.
func expires(msgs []worker.RaftMessage) (shard.ID, bool) {
	for i := range msgs {
		for _, e := range msgs[i].Msg.GetEntries() {
			if msgs[i].Shard == 0 || len(e.GetData()) == 0 {
				continue
			}
			b, err := shard.DecodeBatch(e.GetData())
			if err != nil {
				continue
			}
			for k := range b.Commands {
				if b.Commands[k].Kind == shard.KindExpire {
					return msgs[i].Shard, true
				}
			}
		}
	}
	return 0, false
}
