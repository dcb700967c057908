package lint

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mortise-lock/mortise/ops/checker"
)

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var (
	code     = regexp.MustCompile("`([^`\n]+)`")
	testName = regexp.MustCompile(`^(Test|Fuzz|Benchmark|Example)[A-Z_][A-Za-z0-9_]*$`)
	ourPath  = regexp.MustCompile(`^(proto|shard|placement|node|gateway|sdk|ops|tools|\.ci)(/[A-Za-z0-9_.*-]+)*/?$`)
	mdLink   = regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)]*)?\)`)
)

// TestDocumentsPointToWhatExists looks at code spans that are paths or names
// of tests, at `make` targets, and at relative links.
func TestDocumentsPointToWhatExists(t *testing.T) {
	tests := testNames(t)
	makefile := read(t, "Makefile")
	for _, doc := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "ops/checker/README.md"} {
		text := read(t, doc)
		for _, m := range code.FindAllStringSubmatch(text, -1) {
			span := m[1]
			switch {
			case testName.MatchString(span):
				if !tests[span] {
					t.Errorf("%s names the test %s, which does not exist", doc, span)
				}
			case ourPath.MatchString(span):
				found, err := filepath.Glob(filepath.Join(root, span))
				if err != nil || len(found) == 0 {
					t.Errorf("%s names %s, which does not exist", doc, span)
				}
			case strings.HasPrefix(span, "make "):
				target := strings.Fields(span)[1]
				if !strings.Contains(makefile, "\n"+target+":") {
					t.Errorf("%s names `%s`, but the Makefile has no such target", doc, span)
				}
			}
		}
		for _, m := range mdLink.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist", doc, m[1])
			}
		}
	}
}

// promise is a row of the table of promises in ARCHITECTURE.md.
var promise = regexp.MustCompile(`(?m)^\| (P\d+) \| ([^|]+) \| (.+) \|$`)

// TestEveryPromiseHasItsProof: P1 to P10 each name a test that exists or a check
// of ops/checker, or say that their proof is pending.
func TestEveryPromiseHasItsProof(t *testing.T) {
	tests := testNames(t)
	rows := promise.FindAllStringSubmatch(read(t, "ARCHITECTURE.md"), -1)
	for i, m := range rows {
		if want := fmt.Sprint("P", i+1); m[1] != want {
			t.Errorf("ARCHITECTURE.md's promises: %s stands where %s belongs", m[1], want)
		}
		proved := strings.Contains(m[3], "pending")
		for _, c := range code.FindAllStringSubmatch(m[3], -1) {
			proved = proved || tests[c[1]] || checker.Checks[c[1]] != ""
		}
		if !proved {
			t.Errorf("ARCHITECTURE.md's promise %s names no test and no check of ops/checker that exists, nor is it pending", m[1])
		}
	}
	if len(rows) != 10 {
		t.Errorf("ARCHITECTURE.md has %d promises, want P1 to P10", len(rows))
	}
}

// testNames are the top-level names in test files.
func testNames(t *testing.T) map[string]bool {
	tests := map[string]bool{}
	for _, f := range goFiles(t) {
		if f.test {
			for name := range f.ast.Scope.Objects {
				tests[name] = true
			}
		}
	}
	return tests
}

// dependency is a line of the list in ARCHITECTURE.md:
//
//   - `module/path`: what it is for
var dependency = regexp.MustCompile("(?m)^- `([a-z0-9.-]+\\.[a-z]+/[^`]+)`: (.+)$")

// TestDependencyList compares the modules that our packages and their tests
// import with the list that gives each its reason.
func TestDependencyList(t *testing.T) {
	used := map[string]bool{}
	modules := map[string]string{} // import path to module
	for _, p := range goList(t, "-deps", "-test", "./...") {
		if p.Module != nil {
			modules[p.ImportPath] = p.Module.Path
		}
	}
	for _, p := range goList(t, "./...") {
		for _, im := range append(p.tests(), p.Imports...) {
			if m := modules[im]; m != "" && m != module {
				used[m] = true
			}
		}
	}
	listed := map[string]bool{}
	for _, m := range dependency.FindAllStringSubmatch(read(t, "ARCHITECTURE.md"), -1) {
		listed[m[1]] = true
	}
	for _, m := range slices.Sorted(maps.Keys(used)) {
		if !listed[m] {
			t.Errorf("module %s is used but ARCHITECTURE.md's list of dependencies does not say what for", m)
		}
	}
	for _, m := range slices.Sorted(maps.Keys(listed)) {
		if !used[m] {
			t.Errorf("ARCHITECTURE.md lists module %s, which nothing of ours imports", m)
		}
	}
}
