package shard

import (
	"fmt"
	"slices"
)

// Machine is the replicated state of one lock shard. It is not safe for
// concurrent use.
type Machine struct {
	state
	cow cow

	// Derived from the state, never part of it.
	byName   index // locks
	byID     index // acquires, by registration and AcquireID
	byToken  index // shared and counted holds, and what tokenRemembered says
	sessions map[SessionID]uint32
	numbers  map[Registration]uint32

	deadlines timers // waits, by wait limit
	delays    timers // extras with a lock-delay and waiters
	idle      timers // extras with a lock-delay and no waiters
	leaves    timers // registrations, by the earliest time they may leave

	// leftovers are ended registrations of which something is still to be removed.
	leftovers []endedReg
	removals  removals

	// Of the entry being applied.
	batch   Batch
	out     *Outcome
	touched []uint32
	scratch []uint32
}

type endedReg struct {
	slot   uint32
	number Registration
}

// New makes a shard's first state. All replicas must begin with equal bytes:
// they restore its snapshot.
func New(cfg Config) *Machine {
	m := newMachine()
	m.id = cfg.ID
	for _, s := range cfg.Owns {
		s.Excluded = slices.Clone(s.Excluded)
		m.owns = append(m.owns, s)
	}
	m.limits = cfg.Limits
	if m.limits == (Limits{}) {
		m.limits = DefaultLimits()
	}
	m.index, m.term = cfg.Index, cfg.Term
	floor := max(cfg.Floor, 1)
	m.nextTok, m.nextReg, m.epoch0 = floor, floor, floor
	m.nextOrd = 1
	return m
}

func newMachine() *Machine {
	m := &Machine{
		cow:      newCow(),
		removals: defaultRemovals,
		sessions: make(map[SessionID]uint32),
		numbers:  make(map[Registration]uint32),
	}
	m.names = new(names)
	m.byName = newIndex(func(h uint32) uint32 { return m.locks.at(h).hash })
	m.byID = newIndex(func(h uint32) uint32 {
		a := m.acqs.at(h)
		return idHash(a.reg, m.acquireID(a))
	})
	m.byToken = newIndex(func(h uint32) uint32 { return tokenHash(Token(m.acqs.at(h).token)) })
	return m
}

// ID is the shard's.
func (m *Machine) ID() ID { return m.id }

// Applied is the index of the last applied entry.
func (m *Machine) Applied() uint64 { return m.index }

// AppliedTerm is the term of the last applied entry.
func (m *Machine) AppliedTerm() uint64 { return m.term }

// Time is the largest leader time seen so far.
func (m *Machine) Time() LeaderTime { return LeaderTime(m.time) }

// Limits in force.
func (m *Machine) Limits() Limits { return m.limits }

// Selectors are the names that the shard owns. The caller must not change them.
func (m *Machine) Selectors() []Selector { return m.owns }

// removals bound, per apply and beyond what the entry's own commands touch, the
// work that removing leftovers adds to an entry.
type removals struct {
	holds    int // and outcomes of ended registrations
	outcomes int // whose time is over
	delays   int // that are over and that nobody waits for
}

var defaultRemovals = removals{holds: 128, outcomes: 256, delays: 128}

// Apply applies one entry. index must be the successor of Applied. Empty data
// (raft's own entries) is legal. After an error nothing has changed and the
// host must stop: a replica that skipped an entry would differ from the others.
func (m *Machine) Apply(index, term uint64, data []byte, out *Outcome) error {
	clear(out.Results)
	clear(out.Events)
	out.Results, out.Events = out.Results[:0], out.Events[:0]
	if index != m.index+1 {
		return fmt.Errorf("shard %d: entry %d can't follow entry %d", m.id, index, m.index)
	}
	if term < m.term {
		return fmt.Errorf("shard %d: entry %d has term %d, the entry before it has %d", m.id, index, term, m.term)
	}
	if len(data) > 0 {
		if err := decodeBatch(data, &m.batch); err != nil {
			return fmt.Errorf("shard %d: entry %d: %w", m.id, index, err)
		}
	}
	m.index, m.term = index, term
	if len(data) == 0 {
		return nil
	}
	m.time = max(m.time, int64(m.batch.Time))
	m.wallMS = m.batch.WallMS
	m.out = out
	out.Results = slices.Grow(out.Results, len(m.batch.Commands))[:len(m.batch.Commands)]
	clear(out.Results)
	for i := range m.batch.Commands {
		m.command(&m.batch.Commands[i], &out.Results[i])
	}
	m.out = nil
	clear(m.batch.Commands)
	m.tidy()
	return nil
}

func (m *Machine) command(c *Command, res *Result) {
	switch c.Kind {
	case KindRegister:
		m.register(c, res)
	case KindAttach:
		if slot, ok := m.acting(c, res); ok {
			m.inForce(slot, res)
		}
	case KindAcquire:
		m.acquire(c, res)
	case KindWaitOver:
		m.waitOver(c, res)
	case KindCancel:
		m.cancel(c, res)
	case KindRelease:
		m.release(c, res)
	case KindExpire:
		m.expire(c, res)
	case KindClose:
		m.close(c, res)
	case KindLeave:
		m.leave(c, res)
	case KindWake:
		m.wake(c, res)
	case KindForceRelease:
		m.forceRelease(c, res)
	case KindHandover:
		m.event(Event{Kind: EventHandover, Handover: c.Handover})
	default:
		// decodeBatch refused it already.
		panic(fmt.Sprintf("shard: unknown command kind %d", c.Kind))
	}
}

func (m *Machine) event(e Event) { m.out.Events = append(m.out.Events, e) }

// tidy removes a bounded part of what is over by rule. Nothing that anyone can
// observe depends on how far it has come (invariant 9).
func (m *Machine) tidy() {
	m.reap(m.removals.holds)
	for i := 0; i < m.removals.outcomes && m.outcomes.head != none; i++ {
		if m.remembers(m.acqs.at(m.outcomes.head)) {
			break
		}
		m.forget(m.outcomes.head)
	}
	for i := 0; i < m.removals.delays; i++ {
		t, ok := m.idle.first()
		if !ok || t.at > m.time {
			break
		}
		m.undelay(m.extras.at(t.h).lock)
	}
}
