//go:build !mutants

package core

// Known bugs that test builds can switch on, one at a time, to prove that the
// simulator finds them (ops/sim). Here they are off, and the compiler drops them.
const (
	mutantLeaseFromAck    = false
	mutantCreditBySilence = false
)
