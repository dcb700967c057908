//go:build mutants

package sim

var mutantReusedReplica bool
