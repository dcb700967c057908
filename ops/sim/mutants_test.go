//go:build mutants

package sim

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mortise-lock/mortise/node/worker"
	"github.com/mortise-lock/mortise/sdk/core"
	"github.com/mortise-lock/mortise/shard"
)

var (
	mutantFlag = flag.String("mutant", "", "only mutants whose name contains this")
	withinFlag = flag.Int("within", 2000, "seeds within which each must be found")
)

// TestMutants switches known bugs on, one at a time: each must be found.
func TestMutants(t *testing.T) {
	all := map[string]*bool{"reused replica id": &mutantReusedReplica}
	for _, m := range []map[string]*bool{shard.Mutants, worker.Mutants, core.Mutants} {
		maps.Copy(all, m)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !strings.Contains(name, *mutantFlag) {
			continue
		}
		*all[name] = true
		began, found := time.Now(), false
		for k := range *withinFlag {
			seed := uint64(max(*firstFlag, 0) + int64(k))
			var r Result
			t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) { r = runSeed(t, seed, nil) })
			if len(r.Problems) > 0 {
				// The seed must be fine without the bug, or it found another one.
				var clean Result
				*all[name] = false
				t.Run(fmt.Sprintf("%s/%d/clean", name, seed), func(t *testing.T) { clean = runSeed(t, seed, nil) })
				*all[name] = true
				if len(clean.Problems) > 0 {
					t.Errorf("seed %d fails without any mutant: %.300v", seed, clean.Problems[0])
					continue
				}
				found = true
				text, _, _ := strings.Cut(r.Problems[0].String(), "\n")
				fmt.Printf("mutant %q: found by seed %d, the %dth, after %v: %.160s\n", name, seed, k+1, time.Since(began).Round(time.Second), text)
				break
			}
		}
		*all[name] = false
		if !found {
			t.Errorf("mutant %q: not found within %d seeds", name, *withinFlag)
		}
	}
}
