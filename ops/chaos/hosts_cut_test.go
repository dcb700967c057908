package chaos

import (
	"bufio"
	"testing"
)

// TestCuts: the cuts do what they say, and mending mends.
func TestCuts(t *testing.T) {
	n := newNetwork(t)
	a, b := n.add("a"), n.add("b")
	heard := func(from, to *host) bool {
		t.Helper()
		l := to.role("listen")
		out, err := l.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != "ready" {
			t.Fatalf("the listener says %q", lines.Text())
		}
		if err := from.role("say", to.addr).Run(); err != nil {
			t.Fatal(err)
		}
		lines.Scan()
		_ = l.Wait()
		return lines.Text() == "heard"
	}
	check := func(what string, ab, ba bool) {
		t.Helper()
		if x, y := heard(a, b), heard(b, a); x != ab || y != ba {
			t.Errorf("%s: b hears a %v, a hears b %v; want %v and %v", what, x, y, ab, ba)
		}
	}
	check("whole", true, true)
	for _, c := range []struct {
		what   string
		cut    func() func()
		ab, ba bool
	}{
		{"a unplugged", a.unplug, false, false},
		{"a muted", a.mute, false, true},
		{"a deafened", a.deafen, true, false},
		{"a forgets b", func() func() { return a.forget(b) }, false, true},
	} {
		mend := c.cut()
		check(c.what, c.ab, c.ba)
		mend()
		check(c.what+", mended", true, true)
	}
}
