package lint

import (
	"fmt"
	"go/ast"
	"go/format"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestPackageComments(t *testing.T) {
	comments := map[string][]string{} // per folder: files with a package comment
	for _, f := range goFiles(t) {
		if f.generated {
			comments[f.dir()] = []string{"the .proto file's own"}
			continue
		}
		with := comments[f.dir()]
		if f.ast.Doc != nil {
			with = append(with, f.path)
			if text := f.ast.Doc.Text(); strings.Contains(text, "Copyright") || strings.Contains(text, "Licensed under") {
				t.Errorf("%s: the package comment is a licence header; the licence is in LICENSE", f.path)
			}
		}
		comments[f.dir()] = with
	}
	for dir, files := range comments {
		switch len(files) {
		case 1:
		case 0:
			t.Errorf("%s: no package comment; say in doc.go or the main file what the package does and what it must not know", dir)
		default:
			t.Errorf("%s: %d package comments (%s); keep one", dir, len(files), strings.Join(files, ", "))
		}
	}
}

func TestPackageNames(t *testing.T) {
	banned := []string{"util", "utils", "common", "helper", "helpers", "misc", "base", "shared", "lib"}
	for _, f := range goFiles(t) {
		name := strings.TrimSuffix(f.ast.Name.Name, "_test")
		if slices.Contains(banned, name) || slices.Contains(banned, path.Base(f.dir())) {
			t.Errorf("%s: package %s: the name says nothing; use a noun of the domain", f.path, name)
		}
	}
}

const (
	maxFile     = 25 << 10 // bytes; aim for 15 KB
	maxTestFile = 40 << 10
)

// bigFiles are exceptions to the size limits, with their reason.
var bigFiles = map[string]string{}

func TestFileSizes(t *testing.T) {
	for _, f := range goFiles(t) {
		limit := int64(maxFile)
		if f.test {
			limit = maxTestFile
		}
		if !f.generated && f.size > limit && bigFiles[f.path] == "" {
			t.Errorf("%s has %d bytes, the limit is %d: is a second concern hiding in it?", f.path, f.size, limit)
		}
	}
}

// sleepers are tests that may sleep, with their reason. All others use
// testing/synctest or take the time as an argument.
var sleepers = map[string]string{
	"ops/e2e": "real processes on the real clock",
}

func TestNoSleepInTests(t *testing.T) {
	for _, f := range goFiles(t) {
		if !f.test || slices.ContainsFunc(f.ast.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing/synctest"` }) {
			continue // in a synctest bubble a sleep takes no time
		}
		if sleepers[f.path] != "" || sleepers[f.dir()] != "" {
			continue
		}
		f.uses(func(name string, pos token.Pos) {
			if name == "time.Sleep" {
				t.Errorf("%s: a test that sleeps is slow and still flaky: use testing/synctest, a fake clock, or wait for the event itself", position(pos))
			}
		})
	}
}

// leftOver marks work that was put off. The words are put together here so
// that this file does not match itself.
var leftOver = regexp.MustCompile(`\b(` + strings.Join([]string{"TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"}, "|") + `)\b`)

func TestNothingLeftOver(t *testing.T) {
	err := walk(func(p string, d fs.DirEntry) error {
		switch path.Ext(p) {
		case ".go", ".proto", ".md", ".mod", ".yaml", ".yml", ".sh", "":
		default:
			return nil
		}
		if strings.HasSuffix(p, ".pb.go") || d.Type()&fs.ModeSymlink != 0 {
			return nil
		}
		b, err := os.ReadFile(filepath.Join(root, p))
		if err != nil {
			return err
		}
		n := 0
		for line := range strings.Lines(string(b)) {
			n++
			if w := leftOver.FindString(line); w != "" {
				t.Errorf("%s:%d: %s: do it, or write down as a limitation what is not done", p, n, w)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFormatted(t *testing.T) {
	for _, f := range goFiles(t) {
		src, err := os.ReadFile(filepath.Join(root, f.path))
		if err != nil {
			t.Fatal(err)
		}
		want, err := format.Source(src)
		if err != nil {
			t.Fatal(err)
		}
		if string(src) != string(want) && !f.generated {
			t.Errorf("%s is not formatted: run `make fmt`", f.path)
		}
	}
}

func TestMakefileExplainsItself(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	phony := map[string]bool{}
	target := regexp.MustCompile(`^([a-z0-9-]+):( |$)`)
	for line := range strings.Lines(string(b)) {
		line = strings.TrimRight(line, "\n")
		if names, ok := strings.CutPrefix(line, ".PHONY:"); ok {
			for _, n := range strings.Fields(names) {
				phony[n] = true
			}
		}
		if m := target.FindStringSubmatch(line); m != nil {
			if !strings.Contains(line, "## ") {
				t.Errorf("Makefile: target %s has no ## comment, so `make help` does not show it", m[1])
			}
			if !phony[m[1]] {
				t.Errorf("Makefile: target %s is not declared .PHONY before it", m[1])
			}
		}
	}
	if len(phony) == 0 {
		t.Fatal(fmt.Errorf("no targets found"))
	}
}
