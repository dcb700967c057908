package sim

import (
	"fmt"
	"slices"

	"github.com/mortise-lock/mortise/ops/history"
)

// proc is one operating-system process on a host of its own: it has a clock
// with an offset and a rate error, it can crash, stand still, and be cut off.
type proc struct {
	w    *World
	id   int // index in World.procs; also the address in the network
	name string

	offset Time
	ppm    int64 // rate error, in millionths
	wall   int64 // what the wall clock is wrong by, in ms

	up     bool
	inc    uint64 // incarnation; rises with every start and crash
	paused bool
	asleep bool // paused by suspending the host: CLOCK_MONOTONIC stands still
	since  Time // of the pause, on its own clock
	slept  Time // lengths of all suspensions of this incarnation
	mail   []letter
	// client and node are the indices for the history, -1 for none.
	client, node int

	conns []*conn // open ends here, in order of opening
	// accept takes a stream of a kind; nil: refused.
	accept [connKinds]func(c *conn) (side, *refusal)
}

// letter is something that came while the process stood still.
type letter struct {
	timer bool
	run   func()
}

func (w *World) newProc(name string) *proc {
	p := &proc{w: w, id: len(w.procs), name: name, client: -1, node: -1, up: true, inc: 1}
	p.ppm = w.rng.Int64N(2*w.cfg.ClockPPM+1) - w.cfg.ClockPPM
	p.offset = Time(w.rng.Int64N(int64(48 * hour)))
	w.procs = append(w.procs, p)
	w.net.grow(len(w.procs))
	return p
}

// local is the process's clock: it goes on while the host is suspended.
func (p *proc) local() Time { return p.localAt(p.w.now) }

// localAt is exact for runs of up to ten days.
func (p *proc) localAt(t Time) Time { return p.offset + t + t*Time(p.ppm)/1_000_000 }

// mono is the clock that stands still while the host is suspended.
func (p *proc) mono() Time { return p.local() - p.slept }

// at returns the first moment at which the process's clock shows local or more.
func (p *proc) at(local Time) Time {
	d := local - p.local()
	if d <= 0 {
		return p.w.now
	}
	if p.ppm == 0 {
		return p.w.now + d
	}
	t := p.w.now + d - d/1_000_000*Time(p.ppm) // off by 1% of 1% at most
	for e := local - p.localAt(t); e > 0 || e < -1_000; e = local - p.localAt(t) {
		t += e
		if e > 0 {
			t++
		}
	}
	return t
}

func (p *proc) wallMS() int64 { return 1_700_000_000_000 + p.wall + int64(p.w.now/ms) }

// later runs f in this incarnation of the process after a true delay.
func (p *proc) later(d Time, f func()) {
	inc := p.inc
	p.w.after(d, func() {
		if p.inc == inc {
			p.whenAwake(true, f)
		}
	})
}

// whenAwake runs f now, or when the process goes on.
func (p *proc) whenAwake(timer bool, f func()) {
	if !p.paused {
		f()
		return
	}
	p.mail = append(p.mail, letter{timer, f})
}

// pause stops the process. asleep: with its whole host.
func (p *proc) pause(asleep bool) {
	if !p.up || p.paused {
		return
	}
	p.paused, p.asleep, p.since = true, asleep, p.local()
	p.w.note(p, "pause")
	if p.client >= 0 {
		p.w.record(history.Event{Kind: history.Paused, Client: p.client, Node: -1})
	}
}

// resume lets it go on. What waited in its sockets and what its timers missed
// comes now, either first.
func (p *proc) resume() {
	if !p.up || !p.paused {
		return
	}
	p.paused = false
	if p.asleep {
		p.slept += p.local() - p.since
	}
	if p.client >= 0 {
		p.w.record(history.Event{Kind: history.Resumed, Client: p.client, Node: -1})
	}
	p.w.note(p, "resume")
	mail, inc := p.mail, p.inc
	p.mail = nil
	first := p.w.rng.IntN(2) == 0
	for _, timers := range []bool{first, !first} {
		for _, l := range mail {
			if l.timer == timers && p.inc == inc {
				p.whenAwake(timers, l.run)
			}
		}
	}
}

// die ends this incarnation: the kernel closes its connections. silent: the
// whole host is gone, so that nobody hears of it until it is back.
func (p *proc) die(silent bool) {
	if !p.up {
		return
	}
	p.up, p.paused, p.mail = false, false, nil
	p.inc++
	if silent {
		p.w.net.isolate(p.id, 1)
		p.w.silent = append(p.w.silent, p)
	}
	for _, c := range slices.Clone(p.conns) {
		c.reset(p)
	}
	p.conns = nil
}

// born begins an incarnation.
func (p *proc) born() {
	if i := slices.Index(p.w.silent, p); i >= 0 {
		p.w.silent = slices.Delete(p.w.silent, i, i+1)
		p.w.net.isolate(p.id, -1)
	}
	p.up, p.slept = true, 0
	p.inc++
}

func (p *proc) String() string { return fmt.Sprintf("%s#%d", p.name, p.inc) }
