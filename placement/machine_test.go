package placement

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

func testMachine(t testing.TB) *Machine {
	t.Helper()
	m, err := InitialMap(testCluster, zonesOf("eu", "a", "b", "c"), 4)
	if err != nil {
		t.Fatal(err)
	}
	machine, err := NewMachine(m, 10)
	if err != nil {
		t.Fatal(err)
	}
	return machine
}

func TestUpdateNode(t *testing.T) {
	m := testMachine(t)
	before, copied := m.Map(), proto.CloneOf(m.Map())
	res, err := m.Apply(11, 6, EncodeCommand(UpdateNode{Node: 2, Address: new("10.9.9.9:1"), Zone: new("d")}))
	if err != nil || !res.Changed || res.Refused != nil || res.Map != m.Map() {
		t.Fatalf("got %+v, %v", res, err)
	}
	if n := m.Map().Nodes[1]; n.Address != "10.9.9.9:1" || n.Zone != "d" || n.HttpAddress != "10.0.2.2:7421" || m.Map().Generation != 2 {
		t.Errorf("got node %v at generation %d", n, m.Map().Generation)
	}
	if !proto.Equal(before, copied) {
		t.Error("a map that was handed out has changed")
	}
	present := m.Map()
	res, err = m.Apply(12, 6, EncodeCommand(UpdateNode{Node: 2, Zone: new("d")}))
	if err != nil || res.Changed || res.Refused != nil || m.Map() != present {
		t.Errorf("a repetition gave %+v, %v", res, err)
	}
	res, err = m.Apply(13, 6, nil)
	if err != nil || res.Changed || res.Map != present || m.Applied() != 13 {
		t.Errorf("raft's own entry gave %+v, %v, applied %d", res, err, m.Applied())
	}
}

func TestUpdateNodeRefused(t *testing.T) {
	for _, c := range []struct {
		name, want string
		cmd        UpdateNode
	}{
		{"unknown node", "node must be a node of the cluster", UpdateNode{Node: 9, Zone: new("a")}},
		{"another's address", "address must be unique; 10.0.2.1:7422 is that of node eu-n1", UpdateNode{Node: 2, Address: new("10.0.2.1:7422")}},
		{"empty address", "address must be host:port", UpdateNode{Node: 2, Address: new("")}},
		{"port 0", "port from 1 to 65535", UpdateNode{Node: 2, Address: new("h:0")}},
		{"unspecified", "others can reach", UpdateNode{Node: 2, HTTPAddress: new("[::]:1")}},
		{"zone", "zone may have letters", UpdateNode{Node: 2, Zone: new("a/b")}},
		{"long zone", "zone must have 1 to 64 bytes", UpdateNode{Node: 2, Zone: new(strings.Repeat("z", 65))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := testMachine(t)
			before := m.Map()
			res, err := m.Apply(11, 6, EncodeCommand(c.cmd))
			var rule *RuleError
			if err != nil || !errors.As(res.Refused, &rule) || !strings.Contains(res.Refused.Error(), c.want) {
				t.Fatalf("got %+v, %v; want %q", res, err, c.want)
			}
			if m.Map() != before || m.Applied() != 11 {
				t.Error("a refused command changed the map or was not counted")
			}
		})
	}
}

// What this build can't apply stops the host: it must be an error, and change
// nothing.
func TestApplyStops(t *testing.T) {
	good := EncodeCommand(UpdateNode{Node: 2, Zone: new("d")})
	for name, data := range map[string][]byte{
		"one byte":         {1},
		"newer format":     {2, 1, 0},
		"unknown kind":     {1, 99},
		"cut":              good[:len(good)-1],
		"trailing":         append(bytes.Clone(good), 0),
		"odd flag":         {1, 1, 2, 7, 0, 0, 0},
		"length too large": {1, 1, 2, 1, 200, 'a'},
		"padded integer":   {1, 1, 0x82, 0, 0, 0, 0, 0},
		"too long":         make([]byte, MaxCommandBytes+1),
	} {
		m := testMachine(t)
		if _, err := m.Apply(11, 6, data); err == nil || m.Applied() != 10 || m.Map().Generation != 1 {
			t.Errorf("%s: error %v, applied %d", name, err, m.Applied())
		}
	}
	if _, err := testMachine(t).Apply(12, 6, nil); err == nil {
		t.Error("a gap in the log was accepted")
	}
}

func TestSnapshotRoundTrip(t *testing.T) {
	m := testMachine(t)
	snapshot := m.Snapshot()
	hash := m.Hash()
	if _, err := m.Apply(11, 6, EncodeCommand(UpdateNode{Node: 1, Zone: new("z")})); err != nil {
		t.Fatal(err)
	}
	if m.Hash() == hash {
		t.Error("the hash did not notice a change")
	}
	back, err := Restore(bytes.NewReader(snapshot.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if back.Hash() != hash || back.Applied() != 10 || snapshot.Index() != 10 {
		t.Errorf("restored hash %x applied %d", back.Hash(), back.Applied())
	}
	if _, err := back.Apply(11, 6, EncodeCommand(UpdateNode{Node: 1, Zone: new("z")})); err != nil || back.Hash() != m.Hash() {
		t.Errorf("replicas differ after a restore (%v)", err)
	}
}

func TestSnapshotDamage(t *testing.T) {
	good := testMachine(t).Snapshot().Bytes()
	for i := range good {
		for _, bit := range []byte{1, 0x80} {
			b := bytes.Clone(good)
			b[i] ^= bit
			if _, err := Restore(bytes.NewReader(b)); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("bit %x of byte %d flipped: %v", bit, i, err)
			}
		}
		if _, err := Restore(bytes.NewReader(good[:i])); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut at %d: %v", i, err)
		}
	}
	if _, err := Restore(bytes.NewReader(append(bytes.Clone(good), 0))); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a trailing byte: %v", err)
	}
	if _, err := Restore(bytes.NewReader(reseal(good, func(b []byte) { b[4] = 2 }))); !errors.Is(err, ErrNewerFormat) {
		t.Errorf("a newer format: %v", err)
	}
}

// TestReplicasAgree: any bytes, applied by two machines of which one goes
// through a snapshot after each entry, leave equal states or stop both.
func TestReplicasAgree(t *testing.T) {
	str := rapid.Ptr(rapid.SampledFrom([]string{"", "a", "b", "10.0.0.7:1", "10.0.2.1:7422", "x/y"}), true)
	rapid.Check(t, func(rt *rapid.T) {
		a, b := testMachine(t), testMachine(t)
		for i := range rapid.IntRange(1, 20).Draw(rt, "entries") {
			data := EncodeCommand(UpdateNode{
				Node: rapid.Uint64Range(0, 4).Draw(rt, "node"), Address: str.Draw(rt, "address"),
				HTTPAddress: str.Draw(rt, "http"), GatewayAddress: str.Draw(rt, "gateway"), Zone: str.Draw(rt, "zone"),
			})
			ra, ea := a.Apply(uint64(11+i), 6, data)
			rb, eb := b.Apply(uint64(11+i), 6, data)
			if ea != nil || eb != nil || (ra.Refused == nil) != (rb.Refused == nil) || a.Hash() != b.Hash() {
				rt.Fatalf("replicas differ: %+v %v, %+v %v", ra, ea, rb, eb)
			}
			if err := Validate(a.Map()); err != nil {
				rt.Fatal(err)
			}
			var err error
			if b, err = Restore(bytes.NewReader(b.Snapshot().Bytes())); err != nil {
				rt.Fatal(err)
			}
		}
	})
}

func FuzzDecodeCommand(f *testing.F) {
	f.Add(EncodeCommand(UpdateNode{Node: 2, Address: new("h:1"), Zone: new("")}))
	f.Add([]byte{1, 1, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := DecodeCommand(data)
		if err == nil && !bytes.Equal(EncodeCommand(c), data) {
			t.Errorf("%x decodes to %+v, which encodes to %x", data, c, EncodeCommand(c))
		}
	})
}

func FuzzRestore(f *testing.F) {
	f.Add(testMachine(f).Snapshot().Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < snapshotHead+snapshotTail {
			return
		}
		m, err := Restore(bytes.NewReader(reseal(data, func([]byte) {})))
		if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerFormat) {
			t.Fatal(err)
		}
		if err == nil {
			if err := Validate(m.Map()); err != nil {
				t.Errorf("an invalid map was loaded: %v", err)
			}
		}
	})
}

func TestValidate(t *testing.T) {
	for name, damage := range map[string]func(*placementv1.Map){
		"cluster id":       func(m *placementv1.Map) { m.ClusterId = "x" },
		"generation":       func(m *placementv1.Map) { m.Generation = 0 },
		"no nodes":         func(m *placementv1.Map) { m.Nodes = nil },
		"node order":       func(m *placementv1.Map) { m.Nodes[0], m.Nodes[1] = m.Nodes[1], m.Nodes[0] },
		"node id":          func(m *placementv1.Map) { m.NextNodeId = 3 },
		"no meta shard":    func(m *placementv1.Map) { m.Shards = m.Shards[1:] },
		"meta owns":        func(m *placementv1.Map) { m.Shards[0].Owns = m.Shards[1].Owns },
		"shard id":         func(m *placementv1.Map) { m.NextShardId = 4 },
		"shard region":     func(m *placementv1.Map) { m.Shards[1].Region = "us" },
		"no replicas":      func(m *placementv1.Map) { m.Shards[1].Replicas = nil },
		"replica id again": func(m *placementv1.Map) { m.Shards[1].Replicas[0].Id = 1 },
		"replica id":       func(m *placementv1.Map) { m.NextReplicaId-- },
		"replica twice":    func(m *placementv1.Map) { m.Shards[1].Replicas[0].Node = m.Shards[1].Replicas[1].Node },
		"replica nowhere":  func(m *placementv1.Map) { m.Shards[1].Replicas[0].Node = 77 },
		"range":            func(m *placementv1.Map) { m.Shards[2].Owns[0].HashLast = 0 },
		"no pins":          func(m *placementv1.Map) { m.Pins = nil },
		"pin region":       func(m *placementv1.Map) { m.Pins[0].Region = "us" },
	} {
		m := proto.CloneOf(testMachine(t).Map())
		damage(m)
		var rule *RuleError
		if err := Validate(m); !errors.As(err, &rule) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
