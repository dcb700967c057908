package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// network is hosts on one switch, each a network namespace.
type network struct {
	t      *testing.T
	sw     string // the namespace of the switch
	hosts  []*host
	serial int
}

// host is one of them.
type host struct {
	net  *network
	name string
	ns   string
	addr string
	port string // its link's end at the switch
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("network namespaces need root: run as root")
	}
	n := &network{t: t, sw: fmt.Sprintf("mortise%d-sw", os.Getpid())}
	n.must("ip", "netns", "add", n.sw)
	t.Cleanup(func() { n.try("ip", "netns", "del", n.sw) })
	n.must("ip", "-n", n.sw, "link", "add", "br0", "type", "bridge")
	n.must("ip", "-n", n.sw, "link", "set", "br0", "up")
	return n
}

// add makes a host.
func (n *network) add(name string) *host {
	n.t.Helper()
	n.serial++
	h := &host{net: n, name: name, ns: fmt.Sprintf("mortise%d-%s", os.Getpid(), name), addr: fmt.Sprintf("10.77.0.%d", n.serial), port: "p" + name}
	n.must("ip", "netns", "add", h.ns)
	n.t.Cleanup(func() { n.try("ip", "netns", "del", h.ns) })
	n.must("ip", "-n", h.ns, "link", "add", "eth0", "type", "veth", "peer", "name", h.port, "netns", n.sw)
	n.must("ip", "-n", n.sw, "link", "set", h.port, "master", "br0")
	n.must("ip", "-n", n.sw, "link", "set", h.port, "up")
	n.must("ip", "-n", h.ns, "addr", "add", h.addr+"/24", "dev", "eth0")
	n.must("ip", "-n", h.ns, "link", "set", "lo", "up")
	n.must("ip", "-n", h.ns, "link", "set", "eth0", "up")
	n.hosts = append(n.hosts, h)
	return h
}

func (n *network) try(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

func (n *network) must(name string, args ...string) {
	n.t.Helper()
	if err := n.try(name, args...); err != nil {
		n.t.Fatal(err)
	}
}

// command runs a program on the host.
func (h *host) command(name string, args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", h.ns, name}, args...)...)
}

// The cuts return what mends them. All of them swallow packets silently.

// unplug cuts the host off in both directions.
func (h *host) unplug() func() {
	h.net.must("ip", "-n", h.net.sw, "link", "set", h.port, "down")
	return func() { h.net.must("ip", "-n", h.net.sw, "link", "set", h.port, "up") }
}

// mute lets nothing out of the host.
func (h *host) mute() func() { return h.net.swallow(h.ns, "eth0") }

// deafen lets nothing into the host.
func (h *host) deafen() func() { return h.net.swallow(h.net.sw, h.port) }

// swallow makes the queue of a link end hold nothing, so that all is dropped.
func (n *network) swallow(ns, dev string) func() {
	n.must("tc", "-n", ns, "qdisc", "replace", "dev", dev, "root", "pfifo", "limit", "0")
	return func() { n.must("tc", "-n", ns, "qdisc", "del", "dev", dev, "root") }
}

// forget sends what h has for o to a card that nobody has.
func (h *host) forget(o *host) func() {
	h.net.must("ip", "-n", h.ns, "neigh", "replace", o.addr, "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0")
	return func() { h.net.must("ip", "-n", h.ns, "neigh", "del", o.addr, "dev", "eth0") }
}
