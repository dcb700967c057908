//go:build !mutants

package shard

// Known bugs that test builds can switch on, one at a time, to prove that the
// simulator finds them (ops/sim). Here they are off, and the compiler drops them.
const (
	mutantRebuiltToken       = false
	mutantNoDedup            = false
	mutantCancelLoses        = false
	mutantDeadWaiter         = false
	mutantForgetfulSnapshot  = false
	mutantReusedRegistration = false
	mutantWaitOverFrees      = false
	mutantOldAttachment      = false
	mutantUnseenCancel       = false
	mutantMixedRequests      = false
)
