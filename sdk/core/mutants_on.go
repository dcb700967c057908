//go:build mutants

package core

// Known bugs, off until switched on.
var (
	mutantLeaseFromAck    bool
	mutantCreditBySilence bool
)

// Mutants are the switches by name. Test builds only.
var Mutants = map[string]*bool{
	"lease counted from the acknowledgement":  &mutantLeaseFromAck,
	"acknowledgement that credits by silence": &mutantCreditBySilence,
}
