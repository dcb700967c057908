package shard

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestStories runs the texts of testdata/stories. Verbs:
//
//	apply            each line is a command; all go into one entry
//	time 10s         leader time passes
//	due              what is due by now is proposed, in one entry
//	describe NAME
//	inventory CLIENT
//	events CLIENT since=N
//	restart          the state goes through a snapshot into a new machine
//	crowd NAME-PREFIX client=C first=N count=N   holds in bulk, silently
//
// Commands: register C; attach C attachment=N; acquire C NAME ...;
// cancel C NAME ...; release C NAME ... or release NAME token=N; expire C;
// close C; leave C; wake NAME token=N; force-release NAME [token=N].
// Rewrite with: go test ./shard -run TestStories -rewrite
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		s := &story{rig: newRig(t), regs: map[string]Registration{}}
		datadriven.RunTest(t, path, s.verb)
	})
}

type story struct {
	*rig
	regs map[string]Registration
	who  []string
}

func (s *story) verb(t *testing.T, d *datadriven.TestData) string {
	arg := func(i int) string { return d.CmdArgs[i].Key }
	var out strings.Builder
	switch d.Cmd {
	case "apply":
		var c []Command
		for line := range strings.Lines(d.Input) {
			c = append(c, s.parse(t, d, strings.Fields(line)))
		}
		s.run(&out, c)
	case "time":
		p, err := time.ParseDuration(arg(0))
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		s.time += LeaderTime(p)
		return ""
	case "due":
		c := s.m.Due(s.time, 100)
		for _, x := range c {
			fmt.Fprintf(&out, "proposed: %s\n", s.command(x))
		}
		if len(c) == 0 {
			return "nothing\n"
		}
		s.run(&out, c)
	case "describe":
		s.describe(&out, s.m.Describe(arg(0)))
	case "inventory":
		epoch, holds, waits, ok := s.m.Inventory(s.regs[arg(0)])
		if !ok {
			return "not registered\n"
		}
		fmt.Fprintf(&out, "epoch %d\n", epoch)
		for _, h := range holds {
			fmt.Fprintf(&out, "holds %s (%s) token %d\n", h.Name, showID(h.Acquire), h.Token)
		}
		for _, w := range waits {
			fmt.Fprintf(&out, "waits %s (%s)\n", w.Name, showID(w.Acquire))
		}
	case "events":
		var since uint64
		d.ScanArgs(t, "since", &since)
		epoch, events, dropped, _ := s.m.Events(s.regs[arg(0)], since)
		fmt.Fprintf(&out, "epoch %d dropped %t\n", epoch, dropped)
		for _, e := range events {
			fmt.Fprintf(&out, "%d: lost %s (%s) token %d: %s\n", e.Epoch, e.Name, showID(e.Acquire), e.Token, showReason(e.Reason))
		}
	case "restart":
		var buf bytes.Buffer
		x := s.m.Snapshot()
		if _, err := x.WriteTo(&buf); err != nil {
			d.Fatalf(t, "%v", err)
		}
		x.Close()
		m, err := Restore(&buf)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		if m.Hash() != s.m.Hash() {
			d.Fatalf(t, "the restored state has another hash")
		}
		s.m = m
	case "crowd":
		var client string
		var first, count int
		d.ScanArgs(t, "client", &client)
		d.ScanArgs(t, "first", &first)
		d.ScanArgs(t, "count", &count)
		var c []Command
		for i := first; i < first+count; i++ {
			c = append(c, Command{Kind: KindAcquire, Registration: s.regs[client], Acquire: AcquireID{Seq: uint64(i)}, Name: fmt.Sprintf("%s%d", arg(0), i), Mode: Exclusive})
		}
		n := 0
		for _, r := range s.apply(c...) {
			if r.State == AcquireGranted {
				n++
			}
		}
		return fmt.Sprintf("%d granted\n", n)
	default:
		d.Fatalf(t, "unknown verb %s", d.Cmd)
	}
	if err := s.m.Check(); err != nil {
		d.Fatalf(t, "%v", err)
	}
	return out.String()
}

func (s *story) parse(t *testing.T, d *datadriven.TestData, f []string) Command {
	c := Command{}
	var words []string
	for _, w := range f[1:] {
		k, v, ok := strings.Cut(w, "=")
		if !ok {
			words = append(words, w)
			continue
		}
		n, _ := strconv.ParseUint(v, 10, 64)
		p, _ := time.ParseDuration(v)
		switch k {
		case "seq":
			c.Acquire.Seq = n
		case "request":
			c.Acquire.RequestID = [16]byte{byte(n)}
		case "token":
			c.Token = Token(n)
		case "attachment":
			c.Attachment = n
		case "done-below":
			c.DoneBelow = n
		case "permits":
			c.Permits = uint32(n)
		case "limit":
			c.Limit = uint32(n)
		case "epoch":
			c.Epoch = n
		case "term":
			c.Term = n
		case "wait":
			c.Wait = int64(p)
		case "lock-delay":
			c.LockDelay = int64(p)
		case "mode":
			c.Mode = map[string]Mode{"shared": Shared, "counted": Counted, "exclusive": Exclusive}[v]
		case "reason":
			c.Reason = map[string]Reason{"revoked": ReasonRevoked}[v]
		default:
			d.Fatalf(t, "unknown argument %s", w)
		}
	}
	kinds := map[string]Kind{
		"register": KindRegister, "attach": KindAttach, "acquire": KindAcquire, "cancel": KindCancel, "release": KindRelease,
		"expire": KindExpire, "close": KindClose, "leave": KindLeave, "wake": KindWake, "force-release": KindForceRelease,
	}
	if c.Kind = kinds[f[0]]; c.Kind == 0 {
		d.Fatalf(t, "unknown command %s", f[0])
	}
	if c.Kind == KindWake || c.Kind == KindForceRelease || c.Kind == KindRelease && len(words) == 1 {
		c.Name = words[0]
		return c
	}
	who := words[0]
	if c.Kind == KindRegister {
		c.Client, c.TTL = who, 10e9
		copy(c.Session[:], who)
		s.who = append(s.who, who)
		return c
	}
	c.Registration = s.regs[who]
	if len(words) > 1 {
		c.Name = words[1]
	}
	if c.Kind == KindAcquire && c.Mode == 0 {
		c.Mode = Exclusive
	}
	if c.Kind == KindExpire {
		if v, ok := s.m.Get(c.Registration); ok && c.Epoch == 0 {
			c.Epoch = v.Epoch
		}
		if c.Term == 0 {
			c.Term = 1
		}
	}
	return c
}

func (s *story) run(out *strings.Builder, c []Command) {
	for i, r := range s.apply(c...) {
		if c[i].Kind == KindRegister && r.Status == StatusOK {
			s.regs[c[i].Client] = r.Registration
		}
		fmt.Fprintf(out, "%s: %s\n", s.command(c[i]), showResult(c[i].Kind, r))
	}
	for _, e := range s.out.Events {
		who := strings.TrimRight(string(e.Session[:]), "\x00")
		switch e.Kind {
		case EventGranted:
			fmt.Fprintf(out, "-> %s: granted %s (%s) token %d\n", who, e.Name, showID(e.Acquire), e.Token)
		case EventEnded:
			fmt.Fprintf(out, "-> %s: %s (%s) came to nothing: %s\n", who, e.Name, showID(e.Acquire), showReason(e.Reason))
		case EventLost:
			fmt.Fprintf(out, "-> %s: lost %s (%s) token %d: %s, epoch %d\n", who, e.Name, showID(e.Acquire), e.Token, showReason(e.Reason), e.Epoch)
		case EventRegistrationEnded:
			fmt.Fprintf(out, "-> %s: registration %d ended: %s\n", who, e.Registration, showReason(e.Reason))
		}
	}
}

func (s *story) client(r Registration) string {
	for _, w := range s.who {
		if s.regs[w] == r {
			return w
		}
	}
	return fmt.Sprintf("registration-%d", r)
}

func (s *story) command(c Command) string {
	name := map[Kind]string{
		KindRegister: "register", KindAttach: "attach", KindAcquire: "acquire", KindWaitOver: "wait-over", KindCancel: "cancel",
		KindRelease: "release", KindExpire: "expire", KindClose: "close", KindLeave: "leave", KindWake: "wake", KindForceRelease: "force-release",
	}[c.Kind]
	if c.Client != "" {
		name += " " + c.Client
	}
	if c.Registration != 0 {
		name += " " + s.client(c.Registration)
	}
	if c.Name != "" {
		name += " " + c.Name
	}
	if c.Acquire != (AcquireID{}) {
		name += " (" + showID(c.Acquire) + ")"
	}
	return name
}

func (s *story) describe(out *strings.Builder, l LockView) {
	mode := []string{"free", "exclusive", "shared", "counted"}[l.Mode]
	fmt.Fprintf(out, "%s: %s", l.Name, mode)
	if l.Limit > 0 {
		fmt.Fprintf(out, " limit %d", l.Limit)
	}
	if l.Delayed > 0 {
		fmt.Fprintf(out, ", delayed %s", time.Duration(l.Delayed))
	}
	out.WriteByte('\n')
	for _, h := range l.Holders {
		fmt.Fprintf(out, "  held by %s, token %d, permits %d, for %s\n", h.Client, h.Token, h.Permits, time.Duration(h.HeldFor))
	}
	for _, w := range l.Queue {
		fmt.Fprintf(out, "  %s waits, permits %d, for %s\n", w.Client, w.Permits, time.Duration(w.Waiting))
	}
}

func showID(id AcquireID) string {
	if id.Seq != 0 {
		return fmt.Sprintf("seq %d", id.Seq)
	}
	return fmt.Sprintf("request %d", id.RequestID[0])
}

func showReason(r Reason) string {
	return [...]string{
		"none", "expired", "forced", "revoked", "released by token", "closed", "busy", "wait over", "cancelled", "released", "registration ended", "left",
	}[r]
}

func showResult(k Kind, r Result) string {
	s := [...]string{
		"ok", "no registration", "old attachment", "stale", "mismatch", "not owner", "token not current", "mode conflict", "limit disagrees",
		"limit", "no effect", "invalid",
	}[r.Status]
	switch {
	case k == KindRegister && r.Status == StatusOK:
		s += fmt.Sprintf(", registration %d", r.Registration)
	case r.Status == StatusOldAttachment:
		s += fmt.Sprintf(", in force %d", r.Attachment)
	case r.State == AcquireGranted:
		s = fmt.Sprintf("granted, token %d", r.Token)
	case r.State == AcquireWaiting:
		s = fmt.Sprintf("waiting, %d in front", r.Position)
	case r.State == AcquireEnded && r.Status == StatusOK:
		s = "ended: " + showReason(r.Reason)
	case r.Ended > 0:
		s += fmt.Sprintf(", %d holds ended", r.Ended)
	}
	if r.Mode != 0 {
		s += fmt.Sprintf(", in force: mode %d limit %d", r.Mode, r.Limit)
	}
	if len(r.Holders) > 0 && r.State != AcquireGranted {
		s += ", held by"
		for _, h := range r.Holders {
			s += " " + h.Client
		}
	}
	return s
}
