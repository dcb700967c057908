// Package lint holds the house rules of this repository as tests; `make lint`
// runs them. A rule says in its failure message what to do instead. An
// exception needs an entry in the rule's table, with its reason.
//
// The tools that some rules call (staticcheck, buf and its plugins) are pinned
// by the modules under tools/ and built by `make tools`.
package lint
