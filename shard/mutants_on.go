//go:build mutants

package shard

// Known bugs, off until switched on. mutantOldAttachment also forgets cancels of
// acquires not seen yet: they alone would make up for it.
var (
	mutantRebuiltToken       bool
	mutantNoDedup            bool
	mutantCancelLoses        bool
	mutantDeadWaiter         bool
	mutantForgetfulSnapshot  bool
	mutantReusedRegistration bool
	mutantWaitOverFrees      bool
	mutantOldAttachment      bool
	mutantUnseenCancel       bool
	mutantMixedRequests      bool
)

// Mutants are the switches by name. Test builds only.
var Mutants = map[string]*bool{
	"token from the raft index after a rebuild":      &mutantRebuiltToken,
	"retry without dedup":                            &mutantNoDedup,
	"cancel that loses to a late grant":              &mutantCancelLoses,
	"waiter of a dead session granted":               &mutantDeadWaiter,
	"snapshot that misses the dedup table":           &mutantForgetfulSnapshot,
	"registration number that is reused":             &mutantReusedRegistration,
	"wait limit that frees a hold granted meanwhile": &mutantWaitOverFrees,
	"command of an old attachment accepted":          &mutantOldAttachment,
	"cancel that overtakes its acquire":              &mutantUnseenCancel,
	"two unary acquires taken for one":               &mutantMixedRequests,
}
