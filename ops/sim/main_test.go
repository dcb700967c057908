package sim

import (
	"os"
	"runtime/debug"
	"testing"
)

// A world is a few megabytes that die young: collecting less often is faster.
func TestMain(m *testing.M) {
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}
