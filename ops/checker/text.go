package checker

import (
	"fmt"
	"strings"
	"time"

	"github.com/mortise-lock/mortise/ops/history"
)

func when(t history.Time) time.Duration { return time.Duration(t) }

// at is the time of an event, as text.
func (x *index) at(i int) string {
	if i < 0 || i >= len(x.ev) {
		return "the end"
	}
	return when(x.ev[i].At).String()
}

func owner(client int, session string) string {
	switch {
	case client < 0 && session == "":
		return "somebody"
	case client < 0:
		return "session " + session
	case session == "":
		return fmt.Sprintf("client %d", client)
	}
	return fmt.Sprintf("client %d (session %s)", client, session)
}

func (a *acquire) who() string {
	return fmt.Sprintf("client %d (session %s, call %d)", a.client, a.session, a.call)
}

func (b *belief) who() string { return owner(b.client, b.session) }

func kindOfHold(m history.Mode, permits, limit uint32) string {
	if m == history.Counted {
		return fmt.Sprintf("with %d of %d permits", permits, limit)
	}
	return m.String()
}

func holders(hs []history.Holder) string {
	if len(hs) == 0 {
		return "nobody"
	}
	var b strings.Builder
	for i, h := range hs {
		if i > 0 {
			b.WriteString(", ")
		}
		if i == 8 {
			fmt.Fprintf(&b, "%d more", len(hs)-i)
			break
		}
		who := h.Session
		if who == "" {
			who = h.Client
		}
		fmt.Fprintf(&b, "%s with token %d", who, h.Token)
	}
	return b.String()
}

// tell says what an event proves.
func (x *index) tell(i int) string {
	if i < 0 || i >= len(x.ev) {
		return "the history ends"
	}
	e := &x.ev[i]
	who := owner(e.Client, e.Session)
	at := when(e.At)
	switch {
	case e.Kind == history.Invoke && e.Op == history.Acquire:
		return fmt.Sprintf("at %v %s asked for it (call %d)", at, who, e.Call)
	case e.Kind == history.Invoke && e.Op == history.Describe:
		return fmt.Sprintf("at %v %s asked who holds it (call %d)", at, who, e.Call)
	case e.Kind == history.Return && e.Op == history.Acquire:
		return fmt.Sprintf("at %v %s was granted token %d, %s", at, who, e.Token, x.modeOf(e))
	case e.Kind == history.Return && e.Op == history.Release:
		return fmt.Sprintf("at %v %s was told that token %d is released", at, who, e.Token)
	case e.Kind == history.Return && e.Op == history.Cancel:
		return fmt.Sprintf("at %v %s was told that its acquire is cancelled", at, who)
	case e.Kind == history.Return && e.Op == history.Describe:
		return fmt.Sprintf("a describe from %s to %v said that the holder is %s", x.at(x.calls[e.Call]), at, holders(e.Holders))
	case e.Kind == history.BeliefEnds || e.Kind == history.ClientDied:
		return fmt.Sprintf("until %v %s acted as holder", at, who)
	}
	return fmt.Sprintf("at %v: %v of %s", at, e.Kind, who)
}

func (x *index) modeOf(e *history.Event) string {
	if a := x.acquires[e.Call]; a != nil {
		return kindOfHold(a.mode, a.permits, a.limit)
	}
	return kindOfHold(e.Mode, e.Permits, e.Limit)
}
