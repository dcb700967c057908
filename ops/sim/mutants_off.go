//go:build !mutants

package sim

// mutantReusedReplica lets a node whose disk was wiped come back with its old
// replica ids.
const mutantReusedReplica = false
