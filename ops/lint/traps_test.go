package lint

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// trap is a row of the table in docs/traps.md:
//
//	| T1 | kind of fault | levels | state | tests | what is owed or not built |
var trap = regexp.MustCompile(`(?m)^\| (T\d+) \|(.+)\|$`)

var (
	// trapTests is how a row names tests: a package's folder and, behind it, one
	// test or more. A story is named by its file.
	trapTests  = regexp.MustCompile("`([a-z0-9/]+)`( `(?:Test|Fuzz)[A-Za-z0-9_]+`(?:, `(?:Test|Fuzz)[A-Za-z0-9_]+`)*)")
	trapLevels = []string{"model", "simulator", "crash layer", "process", "chaos"}
	// levelOf a package's tests; model for all others.
	levelOf    = map[string]string{"ops/sim": "simulator", "ops/crash": "crash layer", "ops/e2e": "process", "ops/chaos": "chaos"}
	trapStates = []string{"covered", "partly", "open", "not built yet"}
)

// TestTrapsNameTheirTests: each row of docs/traps.md says its state; those that
// are covered, at least partly, name their levels and tests that exist in the
// packages named; the others name none and say what is missing.
func TestTrapsNameTheirTests(t *testing.T) {
	in := map[string]bool{} // "folder TestName"
	for _, f := range goFiles(t) {
		if f.test {
			for name := range f.ast.Scope.Objects {
				in[f.dir()+" "+name] = true
			}
		}
	}
	rows := trap.FindAllStringSubmatch(read(t, "docs/traps.md"), -1)
	if len(rows) == 0 {
		t.Fatal("docs/traps.md has no rows")
	}
	for i, m := range rows {
		for _, problem := range trapProblems(i, m[1], strings.Split(m[2], "|"), in) {
			t.Errorf("docs/traps.md, %s: %s", m[1], problem)
		}
	}
}

// trapProblems are those of row i.
func trapProblems(i int, id string, cells []string, in map[string]bool) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if want := fmt.Sprint("T", i+1); id != want {
		bad("stands where %s belongs", want)
	}
	if len(cells) != 5 {
		bad("has %d columns besides the id, want 5", len(cells))
		return problems
	}
	for k := range cells {
		cells[k] = strings.TrimSpace(cells[k])
	}
	kind, levels, state, tests, owed := cells[0], cells[1], cells[2], cells[3], cells[4]
	if kind == "" {
		bad("has no kind")
	}
	if !slices.Contains(trapStates, state) {
		bad("its state is %q, want one of %q", state, trapStates)
	}
	if state != "covered" && owed == "" {
		bad("is %q without a word on what is missing", state)
	}
	if state == "open" || state == "not built yet" {
		if levels != "" || tests != "" {
			bad("is %q and names a level or a test", state)
		}
		return problems
	}
	named, reached := 0, map[string]bool{}
	for _, m := range trapTests.FindAllStringSubmatch(tests, -1) {
		reached[cmp.Or(levelOf[m[1]], "model")] = true
		for _, name := range code.FindAllStringSubmatch(m[2], -1) {
			named++
			if !in[m[1]+" "+name[1]] {
				bad("there is no %s in %s", name[1], m[1])
			}
		}
	}
	spans := 0
	for _, m := range code.FindAllStringSubmatch(tests, -1) {
		switch {
		case testName.MatchString(m[1]):
			spans++
		case strings.HasSuffix(m[1], ".txt"):
			named, spans = named+1, spans+1
			reached["model"] = true
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				bad("there is no %s", m[1])
			}
		}
	}
	if named == 0 || named != spans {
		bad("%d of the %d tests that it names stand behind a package's folder", named, spans)
	}
	want := slices.DeleteFunc(slices.Clone(trapLevels), func(l string) bool { return !reached[l] })
	if levels != strings.Join(want, ", ") {
		bad("its levels are %q, those of its tests %q", levels, want)
	}
	return problems
}

// TestTrapProblemsAreFound: the check above finds each kind of mistake.
func TestTrapProblemsAreFound(t *testing.T) {
	in := map[string]bool{"ops/sim TestX": true}
	for row, want := range map[string]string{
		"k|simulator|covered|`ops/sim` `TestX`|":           "",
		"k|simulator|partly|`ops/sim` `TestX`|this":        "",
		"k|simulator, model|partly|`ops/sim` `TestX`|this": "its levels",
		"k||open|||":                                       "6 columns",
		"k||open||":                                        "without a word",
		"k|simulator|open||this":                           "names a level",
		"k||covered|`ops/sim` `TestX`|":                    "its levels",
		"k|simulator|covered||":                            "0 of the 0 tests",
		"k|simulator|covered|`ops/sim` `TestY`|":           "no TestY in ops/sim",
		"k|simulator|covered|`ops/e2e` `TestX`|":           "no TestX in ops/e2e",
		"k|simulator|covered|`TestX`|":                     "0 of the 1 tests",
		"k|model|covered|`shard/testdata/stories/no.txt`|": "no shard/testdata/stories/no.txt",
		"k|simulator|partly|`ops/sim` `TestX`|":            "without a word",
		"|simulator|covered|`ops/sim` `TestX`|":            "no kind",
		"k|simulator|covered|`ops/sim` `TestX`":            "4 columns",
		"k|simulator|done|`ops/sim` `TestX`|":              "its state",
		"k|simulator|covered|`ops/sim`, `TestX`|":          "0 of the 1 tests",
	} {
		got := strings.Join(trapProblems(0, "T1", strings.Split(row, "|"), in), "; ")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", row, got, want)
		}
	}
	if got := trapProblems(1, "T1", strings.Split("k|||open|x", "|"), in); len(got) == 0 || !strings.Contains(got[0], "T2 belongs") {
		t.Errorf("a row in the wrong place: %q", got)
	}
}
