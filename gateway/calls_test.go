package gateway

import (
	"sync"
	"testing"

	"github.com/mortise-lock/mortise/gateway/core"
)

// Whoever removes a call finds its answer, or nobody will ever send one: so an
// acquire that was granted while its caller left is always given back.
func TestAnswerIsNeverLostToARemoval(t *testing.T) {
	for range 2000 {
		var table callTable
		ch := table.add(1)
		var delivered bool
		var wg sync.WaitGroup
		wg.Go(func() {
			table.deliver(&core.Answer{Call: 1})
			table.mu.Lock()
			delivered = len(ch) == 1
			table.mu.Unlock()
		})
		table.remove(1)
		found := len(ch) == 1
		wg.Wait()
		if found != delivered {
			t.Fatalf("the answer was delivered: %v, but after the removal it was there: %v", delivered, found)
		}
	}
}
