package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/mortise-lock/mortise"

// root is the top of the repository, seen from this package's folder.
const root = "../.."

// goPackage is what `go list -json` says of a package.
type goPackage struct {
	ImportPath   string
	Standard     bool
	Module       *struct{ Path string }
	GoFiles      []string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// tests is every import of the package's tests.
func (p goPackage) tests() []string { return append(slices.Clone(p.TestImports), p.XTestImports...) }

// top is the first folder of an import path of ours, "" for others.
func top(importPath string) string {
	rest, ours := strings.CutPrefix(importPath, module+"/")
	if !ours {
		return ""
	}
	first, _, _ := strings.Cut(rest, "/")
	return first
}

func goList(t *testing.T, args ...string) []goPackage {
	t.Helper()
	out := run(t, "go", append([]string{"list", "-e", "-json=ImportPath,Standard,Module,GoFiles,Imports,TestImports,XTestImports"}, args...)...)
	var all []goPackage
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// run runs a command in the root of the repository and returns its standard
// output; a failure fails the test with all that the command said.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := try(name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

func try(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = root
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String() + stderr.String(), err
	}
	return stdout.String(), nil
}

// tool returns the path of a pinned tool.
func tool(t *testing.T, name string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join(root, ".cache/bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("%s is not built: run `make tools`", name)
	}
	return p
}

// goFile is one parsed Go file of the repository.
type goFile struct {
	path      string // from the root, with slashes
	size      int64
	test      bool
	generated bool
	ast       *ast.File
}

// dir is the file's folder from the root.
func (f goFile) dir() string { return filepath.ToSlash(filepath.Dir(f.path)) }

var fset = token.NewFileSet()

var parseAll = sync.OnceValues(func() ([]goFile, error) {
	var files []goFile
	err := walk(func(path string, d fs.DirEntry) error {
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		full := filepath.Join(root, path)
		parsed, err := parser.ParseFile(fset, full, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		files = append(files, goFile{path, info.Size(), strings.HasSuffix(path, "_test.go"), ast.IsGenerated(parsed), parsed})
		return nil
	})
	return files, err
})

func goFiles(t *testing.T) []goFile {
	t.Helper()
	files, err := parseAll()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// walk calls f for every file of the repository, less what is built or hidden.
func walk(f func(path string, d fs.DirEntry) error) error {
	return filepath.WalkDir(root, func(full string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path, err := filepath.Rel(root, full)
		if err != nil {
			return err
		}
		path = filepath.ToSlash(path)
		if d.IsDir() {
			if path != "." && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".ci" || path == "bin" || d.Name() == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		return f(path, d)
	})
}

// uses calls f for every use of pkg.Name in the file, as "import/path.Name".
func (f goFile) uses(each func(name string, pos token.Pos)) {
	imports := map[string]string{}
	for _, im := range f.ast.Imports {
		path := strings.Trim(im.Path.Value, `"`)
		name := path[strings.LastIndex(path, "/")+1:]
		if name == "v2" || name == "v3" {
			name = filepath.Base(filepath.Dir(path))
		}
		if im.Name != nil {
			name = im.Name.Name
		}
		imports[name] = path
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		id, ok := sel.X.(*ast.Ident)
		if !ok || id.Obj != nil { // a local variable of that name
			return true
		}
		if path, ok := imports[id.Name]; ok {
			each(path+"."+sel.Sel.Name, sel.Pos())
		}
		return true
	})
}

func position(pos token.Pos) string {
	p := fset.Position(pos)
	rel, err := filepath.Rel(root, p.Filename)
	if err != nil {
		return p.String()
	}
	p.Filename = filepath.ToSlash(rel)
	return p.String()
}
