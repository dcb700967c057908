package worker

import (
	"errors"
	"strings"
	"testing"

	"github.com/mortise-lock/mortise/placement"
)

// TestMapProposal: a change of the placement map commits in the meta shard,
// reaches every node, and is refused or not proposed with a reason.
func TestMapProposal(t *testing.T) {
	s := newSim(t, 41, 3, 1, func(s *sim) { s.policy = SnapshotPolicy{Entries: 10, KeepEntries: 2} })
	n := s.waitLeader(0)
	propose := func(n *simNode, id uint64, c placement.Command) MapProposed {
		n.in.MapProposals = append(n.in.MapProposals, MapProposal{ID: id, Data: placement.EncodeCommand(c)})
		s.until(second, "the proposal", func() bool { _, ok := s.proposed[id]; return ok })
		return s.proposed[id]
	}
	p := propose(n, 1, placement.UpdateNode{Node: 2, Zone: new("z9")})
	if p.Err != nil || p.Map.GetGeneration() != 2 {
		t.Fatalf("%+v", p)
	}
	s.run(300 * milli)
	for _, o := range s.nodes {
		if o.lastMap.GetGeneration() != 2 || o.lastMap.Nodes[1].Zone != "z9" {
			t.Errorf("node %d has %v", o.id, o.lastMap)
		}
	}
	var rule *placement.RuleError
	if p := propose(n, 2, placement.UpdateNode{Node: 77, Zone: new("z9")}); !errors.As(p.Err, &rule) || p.Map.GetGeneration() != 2 {
		t.Fatalf("%+v", p)
	}
	// What no replica could apply never comes into the log.
	if p := propose(n, 4, placement.UpdateNode{Node: 2, Zone: new(strings.Repeat("z", placement.MaxCommandBytes))}); !errors.Is(p.Err, ErrInvalid) {
		t.Errorf("a command that is too long to be applied: %v, want ErrInvalid", p.Err)
	}
	if p := propose(s.nodes[int(n.id)%3], 3, placement.UpdateNode{Node: 2, Zone: new("z1")}); !errors.Is(p.Err, ErrNotLeader) {
		t.Fatalf("%+v", p)
	}
	// A follower that was away gets the map by snapshot.
	away := s.nodes[int(n.id)%3]
	away.crash()
	for i := range uint64(30) {
		zone := []string{"za", "zb"}[i%2]
		if p := propose(s.waitLeader(0), 100+i, placement.UpdateNode{Node: 2, Zone: &zone}); p.Err != nil {
			t.Fatalf("%+v", p)
		}
	}
	away.start()
	s.checkReplicas()
	if away.w.Counters().SnapshotsInstalled == 0 || away.lastMap.GetGeneration() != 32 {
		t.Errorf("%d snapshots installed, generation %d", away.w.Counters().SnapshotsInstalled, away.lastMap.GetGeneration())
	}
}
