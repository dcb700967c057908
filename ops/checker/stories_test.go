package checker

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/mortise-lock/mortise/ops/history"
)

// TestStories runs the histories of testdata: good ones, and for each check
// some that it must catch, with what it says.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			events, err := parse(d.Input)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			var o Options
			o.ForgivePaused = d.HasArg("forgive")
			o.FreeWithin = argument(t, d, "free")
			o.ServeWithin = argument(t, d, "serve")
			var b strings.Builder
			found := Check(events, o)
			for _, v := range found {
				fmt.Fprintf(&b, "%v\n", v)
			}
			if (d.Cmd == "good") != (len(found) == 0) {
				t.Errorf("%s: a %s story gives %d violations\n%s", d.Pos, d.Cmd, len(found), &b)
			}
			if len(found) == 0 {
				return "nothing is wrong"
			}
			return b.String()
		})
	})
}

func argument(t *testing.T, d *datadriven.TestData, key string) history.Time {
	if !d.HasArg(key) {
		return 0
	}
	var s string
	d.ScanArgs(t, key, &s)
	v, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return history.Time(v)
}

// TestEachCheckHasAStory: a check that catches nothing in testdata proves
// nothing.
func TestEachCheckHasAStory(t *testing.T) {
	files, err := filepath.Glob("testdata/*")
	if err != nil {
		t.Fatal(err)
	}
	all := ""
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all += string(b)
	}
	for _, id := range slices.Sorted(maps.Keys(Checks)) {
		if !strings.Contains(all, " ("+id+"): ") {
			t.Errorf("no story in testdata is caught by the check %q", id)
		}
	}
}
