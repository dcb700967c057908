package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// block is a fenced block of README.md.
type block struct {
	kind, text string
	line       int
}

func readmeBlocks(t *testing.T) []block {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(repository, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var out []block
	inside, n := false, 0
	for line := range strings.Lines(string(b)) {
		n++
		if kind, fence := strings.CutPrefix(strings.TrimSpace(line), "```"); fence {
			if inside = !inside; inside {
				out = append(out, block{kind: kind, line: n})
			}
			continue
		}
		if inside {
			out[len(out)-1].text += line
		}
	}
	return out
}

// TestReadme runs the README's blocks as they are, in order, but for the
// addresses: each block of curl gives the JSON of the block after it, in shape,
// and in value where a value does not depend on the moment.
func TestReadme(t *testing.T) {
	dev := shared.use(t)
	if dev.startTime > time.Minute {
		t.Errorf("mortise dev was ready after %v, promised is a minute", dev.startTime)
	}
	figure(t, "mortise dev was ready after %v", dev.startTime.Round(time.Millisecond))
	tmp := t.TempDir()
	here := strings.NewReplacer("127.0.0.1:7421", dev.http, "127.0.0.1:7420", dev.grpc,
		"/tmp/mortise-", tmp+"/mortise-", "bin/mortise", binary)
	blocks := readmeBlocks(t)
	script := "set -euo pipefail\n"
	var curls []block // the JSON blocks that answer them, or none
	for i, b := range blocks {
		if b.kind != "sh" {
			continue
		}
		want := block{line: b.line}
		if i+1 < len(blocks) && blocks[i+1].kind == "json" {
			want = blocks[i+1]
		}
		curls = append(curls, want)
		script += here.Replace(b.text) + "echo; echo ==end-of-block==\n"
	}
	cmd := exec.Command("bash", "-c", script)
	cmd.Env = append(os.Environ(), dev.env()...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Errorf("the README's commands failed: %v\n%s", err, errs.String())
	}
	outputs := strings.Split(out.String(), "==end-of-block==\n")
	var tokens []uint64
	for i, want := range curls {
		if i >= len(outputs)-1 {
			t.Fatalf("README.md:%d: the block before this one was not run to its end; output so far:\n%s", want.line, out.String())
		}
		if want.kind != "json" {
			continue
		}
		got, err := parseJSON(outputs[i])
		if err != nil {
			t.Errorf("README.md:%d: the answer is no JSON: %v\n%s", want.line, err, outputs[i])
			continue
		}
		documented, err := parseJSON(want.text)
		if err != nil {
			t.Fatalf("README.md:%d: %v", want.line, err)
		}
		if diff := shape("", documented, got); diff != "" {
			t.Errorf("README.md:%d: %s\ndocumented: %sgot: %s", want.line, diff, want.text, outputs[i])
		}
		if o, ok := got.(map[string]any); ok && o["granted"] == true {
			n, _ := o["token"].(json.Number).Int64()
			tokens = append(tokens, uint64(n))
		}
	}
	// Token rising: the same lock once more.
	_, o := call(t, dev.http, "Acquire", object{"session_id": dev.session(t, "again"), "name": "invoice/INV-55102", "wait_ms": 2000})
	tokens = append(tokens, o.number(t, "token"))
	if len(tokens) < 2 || !slices.IsSorted(tokens) || tokens[0] == tokens[1] {
		t.Errorf("tokens of the README's lock: %v, must rise", tokens)
	}
	call(t, dev.http, "Release", object{"name": "invoice/INV-55102", "token": o.number(t, "token")})

	for _, b := range blocks {
		if b.kind != "go" {
			continue
		}
		file := filepath.Join(tmp, "main.go")
		if err := os.WriteFile(file, []byte(here.Replace(b.text)), 0o600); err != nil {
			t.Fatal(err)
		}
		run := exec.Command("go", "run", file)
		run.Dir = repository
		if out, err := run.CombinedOutput(); err != nil || !strings.Contains(string(out), "protected: true") {
			t.Errorf("README.md:%d: the Go program failed: %v\n%s", b.line, err, out)
		}
	}
}

func parseJSON(text string) (any, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return v, err
}

// varying are fields whose value depends on the moment.
var varying = []string{"session_id", "token", "lease_until_ms", "lease_for_ms", "held_for_ms", "message"}

// shape compares two JSON values: the same fields, types and lengths, and the
// same values except in fields that vary. It returns the first difference.
func shape(at string, want, got any) string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s is no object", at)
		}
		wk, gk := slices.Sorted(maps.Keys(w)), slices.Sorted(maps.Keys(g))
		if !slices.Equal(wk, gk) {
			return fmt.Sprintf("%s has the fields %v, documented are %v", at, gk, wk)
		}
		for _, k := range wk {
			if slices.Contains(varying, k) && fmt.Sprintf("%T", w[k]) == fmt.Sprintf("%T", g[k]) {
				continue
			}
			if d := shape(at+"."+k, w[k], g[k]); d != "" {
				return d
			}
		}
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Sprintf("%s is %v, documented is a list of %d", at, got, len(w))
		}
		for i := range w {
			if d := shape(fmt.Sprintf("%s[%d]", at, i), w[i], g[i]); d != "" {
				return d
			}
		}
	default:
		if want != got {
			return fmt.Sprintf("%s is %v, documented is %v", at, got, want)
		}
	}
	return ""
}

// TestDemo runs `make demo` with a short freeze; it checks itself.
func TestDemo(t *testing.T) {
	demo := exec.Command("go", "run", "./ops/demo", "--binary", binary, "--ttl", "2s", "--freeze", "4s")
	demo.Dir = repository
	out, err := demo.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "paid once, by B") {
		t.Errorf("the demo failed: %v\n%s", err, out)
	}
}
