package checker

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

var span = regexp.MustCompile("`([^`\n]+)`")

// TestReadmeMapsEveryPromise: the tables have P1 to P10 and I1 to I8, each with
// checks that exist, and leave no check out.
func TestReadmeMapsEveryPromise(t *testing.T) {
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	mapped := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		cells := strings.Split(line, "|")
		if len(cells) != 4 {
			continue
		}
		id, _, _ := strings.Cut(strings.TrimSpace(cells[1]), " ")
		rows[id] = cells[2]
		for _, m := range span.FindAllStringSubmatch(cells[2], -1) {
			if Checks[m[1]] == "" {
				t.Errorf("README.md: %s names the check %q, which does not exist", id, m[1])
			}
			mapped[m[1]] = true
		}
	}
	want := []string{"P10"}
	for i := 1; i <= 9; i++ {
		want = append(want, fmt.Sprint("P", i))
	}
	for i := 1; i <= 8; i++ {
		want = append(want, fmt.Sprint("I", i))
	}
	for _, id := range want {
		if c := strings.TrimSpace(rows[id]); c == "" || !span.MatchString(c) && c != "–" {
			t.Errorf("README.md: %s has neither a check nor a dash", id)
		}
	}
	for id := range Checks {
		if !mapped[id] {
			t.Errorf("README.md: the check %q proves nothing in the tables", id)
		}
	}
}
