package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var long = flag.Bool("long", false, "run the long forms: more rounds, more sessions, longer load")

// binary is the path of the program under test.
var binary string

// repository is the top of the source tree.
var repository string

func TestMain(m *testing.M) {
	if name := os.Getenv(helperEnv); name != "" {
		os.Exit(runHelper(name))
	}
	flag.Parse()
	code, err := setUpAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func setUpAndRun(m *testing.M) (int, error) {
	var err error
	if repository, err = filepath.Abs("../.."); err != nil {
		return 1, err
	}
	binary = os.Getenv("MORTISE_BIN")
	if binary == "" {
		dir, err := os.MkdirTemp("", "mortise-e2e-")
		if err != nil {
			return 1, err
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "mortise")
		build := exec.Command("go", "build", "-buildvcs=false", "-o", binary, "./ops/mortise")
		build.Dir = repository
		if out, err := build.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("building ops/mortise: %w\n%s", err, out)
		}
	}
	defer shared.stop()
	return m.Run(), nil
}

// pick returns short, or its long form under -long.
func pick[T any](short, longForm T) T {
	if *long {
		return longForm
	}
	return short
}

// figure prints a measurement so that the summary of the run shows it.
func figure(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf("figure: %s: %s", t.Name(), fmt.Sprintf(format, args...))
}
