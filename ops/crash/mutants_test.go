//go:build mutants

package crash

import (
	"testing"

	"github.com/mortise-lock/mortise/node/worker"
)

// TestEarlyAnswerIsFound: followers that acknowledge entries before they have
// synced them are found out.
func TestEarlyAnswerIsFound(t *testing.T) {
	early := worker.Mutants["answer before sync"]
	*early = true
	// What start cleans up, the nodes, ends before this.
	t.Cleanup(func() { *early = false })
	c := start(t, nil)
	s := crash(t, c, 300)
	if len(s.found) == 0 {
		t.Fatalf("%d crashes of nodes that answered before they synced lost nothing that anybody noticed", s.crashes)
	}
	t.Logf("found: %s", s.found[0])
}
