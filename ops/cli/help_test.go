package cli

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files of this package")

// commands lists every command that people see, by its words after mortise.
func commands(c *cobra.Command) [][]string {
	var out [][]string
	for _, child := range c.Commands() {
		if child.Hidden {
			continue
		}
		words := strings.Fields(child.CommandPath())[1:]
		out = append(append(out, words), commands(child)...)
	}
	return out
}

// helpOf is what --help prints.
func helpOf(t *testing.T, words []string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if err := Run(context.Background(), &Env{In: os.Stdin, Out: &out, Err: &errs}, append(words, "--help")); err != nil {
		t.Fatal(err)
	}
	if errs.Len() > 0 {
		t.Errorf("help belongs on standard output; on standard error: %s", &errs)
	}
	return out.String()
}

// TestHelp compares every help text with the one that was reviewed, in
// testdata/help. go test ./ops/cli -run TestHelp -rewrite writes them anew.
func TestHelp(t *testing.T) {
	all := append(commands(newRoot(&Env{})), nil) // the last one is mortise alone
	if len(all) < 20 {
		t.Fatalf("%d commands", len(all))
	}
	seen := map[string]bool{}
	for _, words := range all {
		name := strings.Join(append([]string{"mortise"}, words...), "-") + ".txt"
		seen[name] = true
		t.Run(name, func(t *testing.T) {
			got, file := helpOf(t, words), filepath.Join("testdata", "help", name)
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
	files, err := os.ReadDir(filepath.Join("testdata", "help"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !seen[f.Name()] {
			t.Errorf("testdata/help/%s is of no command", f.Name())
		}
	}
}
