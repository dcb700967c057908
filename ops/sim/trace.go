package sim

import (
	"fmt"
	"strings"

	"github.com/mortise-lock/mortise/node/worker"
	"github.com/mortise-lock/mortise/ops/history"
)

func (w *World) tracing() bool { return w.trace != nil }

// note tells the trace what was done to a process.
func (w *World) note(p *proc, text string) {
	if !w.tracing() {
		return
	}
	who := "world"
	if p != nil {
		who = p.String()
	}
	w.trace(fmt.Sprintf("%12v %-12s %s", w.now, who, text))
}

var outcomeNames = []string{"unknown", "ok", "busy", "cancelled", "refused", "lost"}

func (w *World) traceEvent(e *history.Event) {
	if e.Kind != history.Applied {
		w.trace(eventText(e))
	}
}

// eventText is a line that tells an event.
func eventText(e *history.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%12v ", Time(e.At))
	who := "world"
	switch {
	case e.Client >= 0:
		who = fmt.Sprintf("client%d", e.Client)
	case e.Node >= 0:
		who = fmt.Sprintf("node%d", e.Node+1)
	}
	fmt.Fprintf(&b, "%-12s %v", who, e.Kind)
	if e.Op != 0 {
		fmt.Fprintf(&b, " %v", e.Op)
	}
	if e.Call != 0 {
		fmt.Fprintf(&b, " call %d", e.Call)
	}
	if e.Kind == history.Return {
		fmt.Fprintf(&b, " %v", e.Outcome)
	}
	for _, f := range []struct{ k, v string }{{"session", e.Session}, {"name", e.Name}, {"", e.Note}} {
		if f.v != "" {
			fmt.Fprintf(&b, " %s %s", f.k, f.v)
		}
	}
	if e.Mode != 0 {
		fmt.Fprintf(&b, " %v", e.Mode)
	}
	if e.Token != 0 {
		fmt.Fprintf(&b, " token %d", e.Token)
	}
	switch {
	case e.WaitFor > 0:
		fmt.Fprintf(&b, " wait %v", Time(e.WaitFor))
	case e.Kind == history.Write:
		fmt.Fprintf(&b, " accepted %v", e.Accepted)
	case e.Op == history.Describe && e.Kind == history.Return:
		fmt.Fprintf(&b, " holders %v waiters %d", e.Holders, e.Waiters)
	}
	return b.String()
}

// trace tells what a worker decided, leaving the routine out.
func (l *loop) trace(out *worker.Output) {
	w, who := l.n.w, l.n.p.String()
	line := func(format string, args ...any) {
		w.trace(fmt.Sprintf("%12v %-12s %s", w.now, who, fmt.Sprintf(format, args...)))
	}
	for _, g := range out.Logs {
		line("shard %d: %s %v", g.Shard, g.Message, g.Args)
	}
	for _, r := range out.Replies {
		switch {
		case r.Response != nil && w.cfg.Trace != nil:
			line("stream %d: %v", r.Stream, r.Response)
		case r.Push != nil:
			line("stream %d: %v", r.Stream, r.Push)
		}
	}
	if out.Fatal != nil {
		line("fatal: %v", out.Fatal)
	}
}
