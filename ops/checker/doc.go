// Package checker judges what happened in a run of Mortise (package history):
// Check returns each promise that the history shows broken, in words. The
// simulator hands it histories in virtual time, the tests on real processes
// those of one observer.
//
// README.md beside this file says which promise is proved by which check.
package checker
