package gossip

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// eventually polls: gossip offers no signal to wait for, and converges in its
// own time.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}

func start(t *testing.T, name string, join ...string) *Gossip {
	t.Helper()
	g, err := Start(Config{Self: Member{Name: name, Address: "127.0.0.1:1", Region: "eu", Zone: "a"}, Listen: "127.0.0.1:0",
		Join: join, Key: []byte("0123456789abcdef0123456789abcdef")})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func names(g *Gossip) string {
	var s []string
	for _, m := range g.Members() {
		s = append(s, fmt.Sprintf("%s/%s/%d", m.Name, m.Zone, m.Node))
	}
	return strings.Join(s, " ")
}

func TestMembersFindEachOther(t *testing.T) {
	a := start(t, "a")
	defer a.Close()
	b := start(t, "b", a.Addr())
	defer b.Close()
	c := start(t, "c", b.Addr())
	for _, g := range []*Gossip{a, b, c} {
		eventually(t, "three members", func() bool { return names(g) == "a/a/0 b/a/0 c/a/0" })
	}
	c.SetSelf(func(m *Member) { m.Node, m.Name = 3, "x" })
	eventually(t, "c tells its node id, and keeps its name", func() bool { return names(a) == "a/a/0 b/a/0 c/a/3" })
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "c left", func() bool { return names(a) == "a/a/0 b/a/0" })
}

func TestWhatANodeSaysIsBounded(t *testing.T) {
	_, err := Start(Config{Self: Member{Name: "a", Region: strings.Repeat("x", 600)}, Listen: "127.0.0.1:0"})
	if err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Fatal(err)
	}
}
