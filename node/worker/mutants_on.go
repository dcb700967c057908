//go:build mutants

package worker

import "github.com/mortise-lock/mortise/node/lease"

// Known bugs, off until switched on.
var (
	mutantAnswerEarly    bool
	mutantForgottenVote  bool
	mutantOldOffice      bool
	mutantUnconfirmedAck bool
	mutantEarlyAck       bool
	mutantStaleHandover  bool
)

// Mutants are the switches by name. Test builds only.
var Mutants = map[string]*bool{
	"answer before sync":                                          &mutantAnswerEarly,
	"forgotten vote":                                              &mutantForgottenVote,
	"expiry by a deposed leader":                                  &mutantOldOffice,
	"renewal acknowledged without confirmation":                   &mutantUnconfirmedAck,
	"acknowledgement before the leader's own first entry applied": &mutantEarlyAck,
	"handed-over deadlines used after a failed transfer":          &mutantStaleHandover,
}

// formerOffice keeps the deadlines of a lost office, for mutantOldOffice.
type formerOffice struct{ t *lease.Table }

func (f *formerOffice) keep(t *lease.Table) { f.t = t }
func (f *formerOffice) table() *lease.Table { return f.t }
