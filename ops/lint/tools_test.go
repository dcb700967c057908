package lint

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestVet(t *testing.T) {
	t.Parallel()
	if out, err := try("go", "vet", "./..."); err != nil {
		t.Errorf("go vet: %v\n%s", err, out)
	}
}

func TestStaticcheck(t *testing.T) {
	t.Parallel()
	if out, err := try(tool(t, "staticcheck"), "./..."); err != nil {
		t.Errorf("staticcheck: %v\n%s", err, out)
	}
}

func TestBufLint(t *testing.T) {
	if out, err := try(tool(t, "buf"), "lint"); err != nil {
		t.Errorf("buf lint: %v\n%s", err, out)
	}
}

// TestBufBreaking compares the wire contracts with those of the last release,
// or where there is none yet, with those of the main branch from which this
// one came.
func TestBufBreaking(t *testing.T) {
	base := breakingBase()
	if base == "" {
		t.Skip("no tag and no main branch to compare the wire contracts with")
	}
	before := t.TempDir()
	archive := exec.Command("git", "archive", base, "proto", "buf.yaml")
	archive.Dir = root
	tar, err := archive.Output()
	if err != nil {
		t.Fatalf("git archive %s: %v", base, err)
	}
	unpack := exec.Command("tar", "-x", "-C", before)
	unpack.Stdin = bytes.NewReader(tar)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	if out, err := try(tool(t, "buf"), "breaking", "--against", before); err != nil {
		t.Errorf("the wire contracts break clients of %s: %v\n%s", base, err, out)
	}
}

// breakingBase is the last tag that HEAD contains, else the commit at which
// HEAD left the main branch, else "".
func breakingBase() string {
	if tag, err := try("git", "describe", "--tags", "--abbrev=0"); err == nil {
		return strings.TrimSpace(tag)
	}
	head, err := try("git", "rev-parse", "HEAD")
	if err != nil {
		return ""
	}
	for _, main := range []string{"origin/main", "main"} {
		base, err := try("git", "merge-base", "HEAD", main)
		if err != nil || base == head {
			continue
		}
		if _, err := try("git", "cat-file", "-e", strings.TrimSpace(base)+":buf.yaml"); err == nil {
			return strings.TrimSpace(base)
		}
	}
	return ""
}

func TestGeneratedCodeIsFresh(t *testing.T) {
	out := t.TempDir()
	cmd := exec.Command(tool(t, "buf"), "generate", "-o", out)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(tool(t, "protoc-gen-go"))+string(os.PathListSeparator)+os.Getenv("PATH"))
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("buf generate: %v\n%s", err, msg)
	}
	fresh := map[string]bool{}
	err := filepath.WalkDir(out, func(full string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(out, full)
		if err != nil {
			return err
		}
		fresh[filepath.ToSlash(rel)] = true
		want, err := os.ReadFile(full)
		if err != nil {
			return err
		}
		got, err := os.ReadFile(filepath.Join(root, rel))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s does not match its .proto file: run `make generate`", filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(fresh) == 0 {
		t.Fatal("buf generated nothing")
	}
	for _, f := range goFiles(t) {
		if strings.HasSuffix(f.path, ".pb.go") && !fresh[f.path] {
			t.Errorf("%s comes from no .proto file any more: remove it", f.path)
		}
	}
}
