//go:build !mutants

package worker

import "github.com/mortise-lock/mortise/node/lease"

// Known bugs that test builds can switch on, one at a time, to prove that the
// simulator finds them (ops/sim). Here they are off, and the compiler drops them.
const (
	mutantAnswerEarly    = false
	mutantForgottenVote  = false
	mutantOldOffice      = false
	mutantUnconfirmedAck = false
	mutantEarlyAck       = false
	mutantStaleHandover  = false
)

// formerOffice keeps nothing of a lost office.
type formerOffice struct{}

func (formerOffice) keep(*lease.Table)   {}
func (formerOffice) table() *lease.Table { return nil }
