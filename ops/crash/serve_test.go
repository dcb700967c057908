package crash

import (
	"bytes"
	"fmt"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
)

// restart runs the cluster that starts after the crash and compares what it
// serves: it knows what was acknowledged, grants nothing that is held, and its
// tokens go on above those that are known.
func (v *verdict) restart(all []*recovered) error {
	c, err := restart(all)
	if err != nil {
		return err
	}
	if err := c.until("a leader of every shard and equal replicas", c.settled); err != nil {
		return err
	}
	if err := c.equal(); err != nil {
		return err
	}
	v.restarts++
	s := &newcomer{v: v, c: c, registered: map[shard.ID]uint64{}}
	for id := range all[0].states {
		if id == 0 {
			continue
		}
		v.leaders++
		m, err := c.leader(id).machine(id)
		if err != nil {
			return err
		}
		if err := v.state(m); err != nil {
			return fmt.Errorf("shard %d: %w", id, err)
		}
		if s.registered[id], err = c.ask(id, &nodev1.Request{Op: &nodev1.Request_Register{Register: &nodev1.Register{
			SessionId: bytes.Repeat([]byte{1}, 16), Client: "newcomer", TtlMs: 60_000, Attachment: 1}}}); err != nil {
			return err
		}
	}
	if err := c.answered(); err != nil {
		return err
	}
	if err := s.acquireAll(); err != nil {
		return err
	}
	if err := c.until("equal replicas again", c.settled); err != nil {
		return err
	}
	return c.equal()
}

// newcomer is a session that wants everything that is held, and one more name
// per shard.
type newcomer struct {
	v          *verdict
	c          *restarted
	registered map[shard.ID]uint64 // the request that did it
	seq        uint64
}

func (s *newcomer) acquireAll() error {
	type asked struct {
		m    *shard.Machine
		name string
		held bool
	}
	all := map[uint64]asked{}
	for id := range s.registered {
		m, err := s.c.leader(id).machine(id)
		if err != nil {
			return err
		}
		ask := func(name string, held bool) error {
			n, err := s.acquire(id, name)
			all[n] = asked{m, name, held}
			return err
		}
		if err := ask(fresh(m), false); err != nil {
			return err
		}
		for p, b := range s.v.before {
			if b.state == granted && s.v.after[p].state == granted && m.Owns(p.name) {
				if err := ask(p.name, true); err != nil {
					return err
				}
			}
		}
	}
	if err := s.c.answered(); err != nil {
		return err
	}
	for n, a := range all {
		resp := s.c.answers[n]
		token := resp.GetAcquire().GetGranted().GetToken()
		switch {
		case a.held && token != 0:
			return fmt.Errorf("%s was granted again under token %d", a.name, token)
		case a.held:
			if r := resp.GetAcquire().GetEnded().GetReason(); r != lockv1.EndReason_END_REASON_BUSY {
				return fmt.Errorf("%s is held, but an acquire got %v", a.name, resp)
			}
			s.v.refused++
		case token == 0:
			return fmt.Errorf("%s is free, but an acquire got %v", a.name, resp)
		default:
			if err := s.v.larger(a.m, token); err != nil {
				return err
			}
			s.v.fresh++
		}
	}
	return nil
}

func (s *newcomer) acquire(id shard.ID, name string) (uint64, error) {
	s.seq++
	reg := s.c.answers[s.registered[id]].GetRegister().GetRegistration()
	if reg == 0 {
		return 0, fmt.Errorf("shard %d registers nobody: %v", id, s.c.answers[s.registered[id]])
	}
	return s.c.ask(id, &nodev1.Request{Op: &nodev1.Request_Acquire{Acquire: &nodev1.Acquire{
		Acting: &nodev1.Acting{Registration: reg, Attachment: 1}, Id: &nodev1.AcquireId{Seq: s.seq}, Name: name, Mode: lockv1.Mode_MODE_EXCLUSIVE}}})
}
