package core

import (
	"slices"

	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
)

func shardID(id uint32) shard.ID { return shard.ID(id) }

// locate asks all leaders where a session is registered, until every shard of
// the map has answered through its leader. No answer is no answer, never "not
// registered".
type locate struct {
	session shard.SessionID
	left    []shard.ID // shards that have not answered, in order
	known   bool       // left was filled from a map
	asked   []*locateAsk
	backoff Time
	retry   timer
	found   func(l *nodev1.Located, now Time, out *Output)
	done    func(now Time, out *Output)
	over    bool
}

// locateAsk is the question to one node.
type locateAsk struct {
	request
	l *locate
}

func (c *Core) locate(id shard.SessionID, found func(*nodev1.Located, Time, *Output), done func(Time, *Output), now Time, out *Output) *locate {
	l := &locate{session: id, found: found, done: done}
	l.retry.fire = func(now Time, out *Output) { c.locateRound(l, true, now, out) }
	c.locates = append(c.locates, l)
	// The first round runs from the timer, so that the caller has l first.
	c.timers.set(&l.retry, now)
	return l
}

func (c *Core) dropLocate(l *locate) {
	l.over = true
	c.timers.stop(&l.retry)
	for _, a := range l.asked {
		c.unsend(&a.request)
	}
	l.asked = nil
	if i := slices.Index(c.locates, l); i >= 0 {
		c.locates = slices.Delete(c.locates, i, i+1)
	}
}

// missing: the shard has not answered yet (or, before a map is there, any).
func (l *locate) missing(id shard.ID) bool {
	if l == nil {
		return false
	}
	if !l.known {
		return true
	}
	_, ok := slices.BinarySearch(l.left, id)
	return ok
}

// locateRound asks each node that leads a shard which has not answered; for a
// shard without a known leader, all its replicas if wide.
func (c *Core) locateRound(l *locate, wide bool, now Time, out *Output) {
	if l.over {
		return
	}
	if !l.known && c.router != nil {
		l.known = true
		for _, s := range c.shardList {
			l.left = append(l.left, s.id)
		}
	}
	if l.known {
		for _, n := range c.nodeList {
			if n.up && c.worthAsking(l, n.id, wide) && !slices.ContainsFunc(l.asked, func(a *locateAsk) bool { return a.node == n.id }) {
				a := &locateAsk{l: l}
				a.owner = a
				a.pb.Op = &nodev1.Request_Locate{Locate: &nodev1.Locate{SessionId: l.session[:]}}
				l.asked = append(l.asked, a)
				c.send(n, &a.request, now, out)
			}
		}
	}
	l.backoff = min(max(l.backoff*2, backoffMin), backoffMax)
	c.timers.set(&l.retry, now+l.backoff)
}

func (c *Core) worthAsking(l *locate, node uint64, wide bool) bool {
	for _, id := range l.left {
		s := c.shards[id]
		if s == nil {
			continue
		}
		if s.leader == node || (s.leader == 0 && wide && slices.Contains(s.replicas, node)) {
			return true
		}
	}
	return false
}

func (a *locateAsk) again(c *Core, now Time, out *Output) {}

func (a *locateAsk) answered(c *Core, r *request, resp *nodev1.Response, now Time, out *Output) {
	l, node := a.l, r.from
	l.drop(a)
	if l.over {
		return
	}
	res := resp.GetLocate()
	if res == nil {
		return // the retry asks again
	}
	for _, h := range res.Elsewhere {
		c.learn(h, now, out)
	}
	for _, f := range res.Located {
		l.found(f, now, out)
		if l.over {
			return
		}
		l.left = slices.DeleteFunc(l.left, func(id shard.ID) bool { return id == shard.ID(f.Shard) })
	}
	// Shards that this node hosts and did not name elsewhere, it leads.
	l.left = slices.DeleteFunc(l.left, func(id shard.ID) bool {
		s := c.shards[id]
		return s == nil || (slices.Contains(s.replicas, node) &&
			!slices.ContainsFunc(res.Elsewhere, func(h *nodev1.LeaderHint) bool { return shard.ID(h.Shard) == id }))
	})
	if len(l.left) == 0 {
		done := l.done
		c.dropLocate(l)
		done(now, out)
		return
	}
	c.locateSoon(l, now)
}

func (l *locate) drop(a *locateAsk) {
	if i := slices.Index(l.asked, a); i >= 0 {
		l.asked = slices.Delete(l.asked, i, i+1)
	}
}

// locateSoon runs another round when the leaders known may have changed; the
// backoff still bounds how often one node is asked.
func (c *Core) locateSoon(l *locate, now Time) {
	if len(l.asked) == 0 {
		c.timers.setEarlier(&l.retry, now+max(l.backoff, backoffMin))
	}
}

// locatesMoved: leaders or nodes changed.
func (c *Core) locatesMoved(now Time, out *Output) {
	for _, l := range c.locates {
		c.timers.setEarlier(&l.retry, now+backoffMin)
	}
}

func (c *Core) locatesNodeDown(id uint64, now Time, out *Output) {
	for _, l := range c.locates {
		for _, a := range slices.Clone(l.asked) {
			if a.node == id {
				c.unsend(&a.request)
				l.drop(a)
			}
		}
		c.locateSoon(l, now)
	}
}
