package lint

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// pure are the packages that are functions of their inputs: the simulator and
// the tests rely on it. Time, randomness and I/O are handed to them.
var pure = []string{
	"shard",
	"placement",
	"node/worker",
	"node/lease",
	"gateway/core",
	"sdk/core",
}

// contracts are packages that pure ones may import beside each other and
// proto: types and interfaces, and functions of their arguments.
var contracts = []string{
	"node/logstore",
	"gateway/sessionid",
}

// banned are names that no pure package uses, with what to use instead.
var banned = map[string]string{
	"time.Now":       "take the time as an argument",
	"time.Since":     "take the time as an argument and subtract",
	"time.Until":     "take the time as an argument and subtract",
	"time.After":     "return when to be called again",
	"time.AfterFunc": "return when to be called again",
	"time.NewTimer":  "return when to be called again",
	"time.NewTicker": "return when to be called again",
	"time.Tick":      "return when to be called again",
	"time.Sleep":     "return when to be called again",
	"fmt.Print":      "return what is to be logged",
	"fmt.Printf":     "return what is to be logged",
	"fmt.Println":    "return what is to be logged",
}

// bannedImports are packages (and all below them) that no pure package imports.
var bannedImports = map[string]string{
	"os":                                 "effects are returned; the shell does I/O",
	"net":                                "effects are returned; the shell does I/O",
	"syscall":                            "effects are returned; the shell does I/O",
	"golang.org/x/sys":                   "effects are returned; the shell does I/O",
	"golang.org/x/net":                   "effects are returned; the shell does I/O",
	"io/ioutil":                          "effects are returned; the shell does I/O",
	"log":                                "return what is to be logged",
	"math/rand":                          "take random numbers as an argument",
	"crypto/rand":                        "take random numbers as an argument",
	"hash/maphash":                       "its seed differs per process; use a fixed hash",
	"google.golang.org/grpc/credentials": "effects are returned; the shell does I/O",
}

// harmless are packages below banned ones. Of net itself, only functions of
// their arguments may be used.
var (
	harmless    = map[string]bool{"net": true, "net/netip": true, "net/url": true}
	harmlessNet = []string{"net.SplitHostPort", "net.JoinHostPort", "net.ParseIP"}
)

func TestPurePackages(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test || f.generated || !slices.Contains(pure, f.dir()) {
			continue
		}
		for _, im := range f.ast.Imports {
			path := strings.Trim(im.Path.Value, `"`)
			for b, instead := range bannedImports {
				if (path == b || strings.HasPrefix(path, b+"/")) && !harmless[path] {
					t.Errorf("%s: package %s is pure and may not import %s: %s", position(im.Pos()), f.dir(), path, instead)
				}
			}
			folder, ours := strings.CutPrefix(path, module+"/")
			if ours && top(path) != "proto" && !slices.Contains(pure, folder) && !slices.Contains(contracts, folder) {
				t.Errorf("%s: package %s is pure and may import only pure packages and contracts of ours, not %s", position(im.Pos()), f.dir(), folder)
			}
		}
		f.uses(func(name string, pos token.Pos) {
			if instead, ok := banned[name]; ok {
				t.Errorf("%s: package %s is pure and may not use %s: %s", position(pos), f.dir(), name, instead)
			}
			if strings.HasPrefix(name, "net.") && !slices.Contains(harmlessNet, name) {
				t.Errorf("%s: package %s is pure and may not use %s: effects are returned; the shell does I/O", position(pos), f.dir(), name)
			}
		})
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: package %s is pure and starts no goroutine: return an effect", position(n.Pos()), f.dir())
			case *ast.SelectStmt:
				t.Errorf("%s: package %s is pure and waits for nothing: take events as arguments", position(n.Pos()), f.dir())
			}
			return true
		})
	}
	for _, dir := range slices.Concat(pure, contracts) {
		if !slices.ContainsFunc(goFiles(t), func(f goFile) bool { return f.dir() == dir }) {
			t.Errorf("the rule names %s, which does not exist", dir)
		}
	}
}
