package worker

import (
	"fmt"
	"slices"

	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// apply carries out a MsgStorageApply: committed entries that are durable
// here, in order.
func (r *replica) apply(m *raftpb.Message) {
	for _, e := range m.GetEntries() {
		if err := r.applyEntry(e); err != nil {
			r.w.fatal(fmt.Errorf("shard %d replica %d can't apply entry %d of term %d: %w", r.shard, r.id, e.GetIndex(), e.GetTerm(), err))
			return
		}
	}
	for _, resp := range m.GetResponses() {
		r.step(resp)
	}
}

func (r *replica) applyEntry(e *raftpb.Entry) error {
	data := e.GetData()
	switch e.GetType() {
	case raftpb.EntryNormal:
	case raftpb.EntryConfChange, raftpb.EntryConfChangeV2:
		if err := r.applyConfChange(e); err != nil {
			return err
		}
		data = nil // the state machine only counts it
	default:
		return fmt.Errorf("unknown entry type %d", e.GetType())
	}
	r.w.counters.AppliedEntries++
	if r.m == nil {
		return r.applyMap(e, data)
	}
	out := &r.w.outcome
	if err := r.m.Apply(e.GetIndex(), e.GetTerm(), data, out); err != nil {
		return err
	}
	r.w.counters.AppliedCommands += uint64(len(out.Results))
	for i := range out.Events {
		r.applyFirst(&out.Events[i], e.GetIndex())
	}
	if !r.leading {
		return nil
	}
	if e.GetIndex() == r.firstOwn && e.GetTerm() == r.term {
		r.becomeReady()
	}
	p, mine := r.takeProposal(e)
	if mine {
		for i := range p.ops {
			r.answer(&p, &p.ops[i], &out.Results[i])
		}
	}
	for i := range out.Events {
		r.tell(&out.Events[i], p.at)
	}
	r.ownEntryApplied(e)
	return nil
}

// takeProposal returns the proposal that the applied entry is, if it is one of
// this term.
func (r *replica) takeProposal(e *raftpb.Entry) (p proposal, mine bool) {
	for len(r.pending) > 0 && r.pending[0].index <= e.GetIndex() {
		p = r.pending[0]
		r.pending = slices.Delete(r.pending, 0, 1)
		r.load -= len(p.ops)
		r.loadBytes -= p.bytes
		if p.index == e.GetIndex() && p.term == e.GetTerm() {
			return p, true
		}
		for i := range p.ops { // something else took its place
			r.failOp(&p.ops[i], false)
		}
	}
	return proposal{}, false
}

// applyFirst is what every replica does with an event, before anything is
// answered.
func (r *replica) applyFirst(ev *shard.Event, index uint64) {
	switch ev.Kind {
	case shard.EventRegistered:
		r.indexSession(ev.Session)
		if r.leases != nil {
			r.leases.Grant(ev.Registration, ev.TTL, int64(r.w.now))
		}
	case shard.EventRegistrationEnded:
		r.unindexSession(ev.Session, ev.Registration)
		if r.leases != nil {
			r.leases.Forget(ev.Registration)
		}
		if r.leading && ev.Reason == shard.ReasonExpired {
			r.w.counters.Expired++
		}
	case shard.EventHandover:
		r.lastHandover = handover{index: index, left: slices.Clone(ev.Handover)}
	}
}

func (r *replica) applyMap(e *raftpb.Entry, data []byte) error {
	res, err := r.meta.Apply(e.GetIndex(), e.GetTerm(), data)
	if err != nil {
		return err
	}
	if res.Changed {
		r.w.out.Map = res.Map
	}
	if !r.leading {
		return nil
	}
	if e.GetIndex() == r.firstOwn && e.GetTerm() == r.term {
		r.becomeReady()
	}
	if p, mine := r.takeProposal(e); mine {
		for _, o := range p.ops {
			r.w.out.MapProposed = append(r.w.out.MapProposed, MapProposed{ID: o.mapID, Map: res.Map, Err: res.Refused})
		}
	}
	r.ownEntryApplied(e)
	return nil
}

// applyConfChange lets raft take a change of membership in. Nothing here
// proposes one yet; peers come from the placement map.
func (r *replica) applyConfChange(e *raftpb.Entry) error {
	var cc raftpb.ConfChangeI
	if e.GetType() == raftpb.EntryConfChange {
		c := new(raftpb.ConfChange)
		if err := proto.Unmarshal(e.GetData(), c); err != nil {
			return err
		}
		cc = c
	} else {
		c := new(raftpb.ConfChangeV2) // no data: the change that leaves a joint configuration
		if err := proto.Unmarshal(e.GetData(), c); err != nil {
			return err
		}
		cc = c
	}
	r.log.conf = r.rn.ApplyConfChange(cc)
	return nil
}

// indexSessions makes the registrations of the whole state known.
func (r *replica) indexSessions() {
	if r.m == nil {
		return
	}
	r.m.Registrations(func(v shard.RegistrationView) bool {
		r.indexSession(v.Session)
		return true
	})
}

func (r *replica) unindexSessions() {
	if r.m == nil {
		return
	}
	r.m.Registrations(func(v shard.RegistrationView) bool {
		r.unindexSession(v.Session, v.Registration)
		return true
	})
}

func (r *replica) indexSession(s shard.SessionID) {
	if list := r.w.sessions[s]; !slices.Contains(list, r) {
		r.w.sessions[s] = append(list, r)
	}
}

// unindexSession forgets a registration that has ended, unless the session has
// registered anew since.
func (r *replica) unindexSession(s shard.SessionID, reg shard.Registration) {
	if v, ok := r.m.Lookup(s); ok && v.Registration != reg {
		return
	}
	list := r.w.sessions[s]
	i := slices.Index(list, r)
	switch {
	case i < 0:
	case len(list) == 1:
		delete(r.w.sessions, s)
	default:
		r.w.sessions[s] = slices.Delete(list, i, i+1)
	}
}
