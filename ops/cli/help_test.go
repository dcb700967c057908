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

// Every text shows an example first, and those of commands that scripts call
// the exit codes that they can end with. The examples are valid: commands,
// flags and the number of arguments.
func TestHelpTexts(t *testing.T) {
	for _, words := range append(commands(newRoot(&Env{})), nil) {
		if len(words) == 2 && words[0] == "completion" {
			continue // the library's own texts about each shell
		}
		name, text := "mortise "+strings.Join(words, " "), helpOf(t, words)
		examples, ok := strings.CutPrefix(text, "Examples:\n")
		if !ok {
			t.Errorf("%s: no examples first:\n%s", name, text)
			continue
		}
		examples, _, _ = strings.Cut(examples, "\n\n")
		for line := range strings.SplitSeq(examples, "\n") {
			_, line, ok := strings.Cut(line, "mortise ")
			if !ok {
				t.Errorf("%s: the example %q is no command of mortise", name, line)
				continue
			}
			if err := valid(line); err != nil {
				t.Errorf("%s: the example mortise %s: %v", name, line, err)
			}
		}
		if len(words) == 2 && words[0] != "help" && !strings.Contains(text, "\nExit codes") {
			t.Errorf("%s: no exit codes:\n%s", name, text)
		}
	}
}

// valid checks a command line without carrying it out.
func valid(line string) error {
	line, _, _ = strings.Cut(line, " #")
	line, _, _ = strings.Cut(line, ";")
	line, _, _ = strings.Cut(line, ")")
	cmd, rest, err := newRoot(&Env{}).Find(strings.Fields(strings.ReplaceAll(strings.ReplaceAll(line, "'worker 17 is gone'", "gone"), "'host is gone'", "gone")))
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
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
			golden(t, filepath.Join("testdata", "help", name), helpOf(t, words))
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
