// Testreport reads the output of several `go test -json` runs, prints what
// failed, the figures that tests measured, the slowest packages and tests, and
// last "N passed, N failed". It fails if a test or package failed, or if
// nothing was run.
//
// A figure is a line of a test's log that begins with "figure: ".
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// event is one line of go test -json (see go doc test2json).
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// timed is a package or test with the seconds it took.
type timed struct {
	name    string
	seconds float64
}

// maxKept bounds the output kept per test, in bytes; of more the end is kept.
const maxKept = 256 << 10

type report struct {
	out            io.Writer
	logs           map[string]string // per package and test, until it ends
	passed, failed int
	skipped        []string
	failures       []string
	packages       []timed
	tests          []timed
	figures        []string
}

func main() {
	r := &report{out: os.Stdout, logs: map[string]string{}}
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	if !r.finish() {
		os.Exit(1)
	}
}

func (r *report) read(in io.Reader) error {
	lines := bufio.NewReaderSize(in, 1<<20)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				// Not an event: the go command itself has something to say.
				fmt.Fprint(r.out, line)
			} else {
				r.take(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) take(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		r.logs["build "+e.ImportPath] += e.Output
	case "output":
		if i := strings.Index(e.Output, "figure: "); i >= 0 {
			r.figures = append(r.figures, strings.TrimSpace(e.Output[i+len("figure: "):]))
		}
		log := r.logs[key] + e.Output
		r.logs[key] = log[max(0, len(log)-maxKept):]
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e)
			break
		}
		switch e.Action {
		case "pass":
			r.passed++
		case "fail":
			r.failed++
			r.failures = append(r.failures, key)
			fmt.Fprintf(r.out, "--- FAIL: %s\n%s", key, r.logs[key])
		case "skip":
			r.skipped = append(r.skipped, key+": "+reason(r.logs[key]))
		}
		r.tests = append(r.tests, timed{key, e.Elapsed})
		delete(r.logs, key)
	}
}

// endPackage counts a package that failed without a failed test (a build
// failure, a timeout, a panic outside of tests) as one failure.
func (r *report) endPackage(e event) {
	if e.Action == "skip" {
		return // no test files
	}
	word := "ok  "
	if e.Action == "fail" {
		word = "FAIL"
		if !slices.ContainsFunc(r.failures, func(f string) bool { return strings.HasPrefix(f, e.Package+" ") }) {
			r.failed++
			r.failures = append(r.failures, e.Package)
			fmt.Fprint(r.out, r.logs["build "+e.FailedBuild])
			for key, log := range r.logs {
				if strings.HasPrefix(key, e.Package+" ") {
					fmt.Fprint(r.out, log)
				}
			}
		}
	}
	fmt.Fprintf(r.out, "%s\t%s\t%.1fs\n", word, e.Package, e.Elapsed)
	r.packages = append(r.packages, timed{e.Package, e.Elapsed})
	for key := range r.logs {
		if strings.HasPrefix(key, e.Package+" ") {
			delete(r.logs, key)
		}
	}
}

// reason finds the text of t.Skip in the log of a skipped test.
func reason(log string) string {
	for line := range strings.Lines(log) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "---") {
			return line
		}
	}
	return "no reason given"
}

// finish prints the summary and tells whether all is well.
func (r *report) finish() bool {
	section(r.out, "figures", r.figures)
	section(r.out, "slowest packages", slowest(r.packages, 8))
	section(r.out, "slowest tests", slowest(r.tests, 8))
	section(r.out, "skipped", r.skipped)
	section(r.out, "failed", r.failures)
	fmt.Fprintf(r.out, "%d passed, %d failed\n", r.passed, r.failed)
	if len(r.packages) == 0 {
		fmt.Fprintln(os.Stderr, "testreport: no package was tested")
		return false
	}
	return r.failed == 0
}

func section(w io.Writer, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s:\n", title)
	for _, l := range lines {
		fmt.Fprintf(w, "  %s\n", l)
	}
	fmt.Fprintln(w)
}

func slowest(all []timed, n int) []string {
	slices.SortStableFunc(all, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
	var out []string
	for _, t := range all[:min(n, len(all))] {
		out = append(out, fmt.Sprintf("%6.1fs  %s", t.seconds, t.name))
	}
	return out
}
