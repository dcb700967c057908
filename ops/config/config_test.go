package config

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected output in testdata")

// TestLoad runs the stories in testdata/*.txt: a file node.yaml, environment
// and flags one per line, and what comes out: every problem, or the settings
// in force. go test ./ops/config -rewrite writes the outputs anew.
func TestLoad(t *testing.T) {
	stories, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	if err != nil || len(stories) == 0 {
		t.Fatal("no stories", err)
	}
	for _, story := range stories {
		t.Run(strings.TrimSuffix(filepath.Base(story), ".txt"), func(t *testing.T) {
			a, err := txtar.ParseFile(story)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			var s Sources
			want, at := "", -1
			for i, f := range a.Files {
				switch f.Name {
				case "env":
					s.Env = strings.Split(strings.TrimSpace(string(f.Data)), "\n")
				case "set":
					s.Set = strings.Split(strings.TrimSpace(string(f.Data)), "\n")
				case "want":
					want, at = string(f.Data), i
				default:
					if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o600); err != nil {
						t.Fatal(err)
					}
					if f.Name == "node.yaml" {
						s.File = filepath.Join(dir, f.Name)
					}
				}
			}
			l, err := Load(s)
			var problems *Error
			var got string
			switch {
			case errors.As(err, &problems):
				got = err.Error() + "\n"
			case err != nil:
				t.Fatal(err)
			default:
				b, err := l.Print()
				if err != nil {
					t.Fatal(err)
				}
				got = string(b)
			}
			got = strings.ReplaceAll(got, dir+string(filepath.Separator), "")
			if *rewrite {
				if at < 0 {
					a.Files, at = append(a.Files, txtar.File{Name: "want"}), len(a.Files)
				}
				a.Files[at].Data = []byte(got)
				if err := os.WriteFile(story, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				want = got
			}
			if got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func TestLoadMissingFile(t *testing.T) {
	_, err := Load(Sources{File: filepath.Join(t.TempDir(), "none.yaml")})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// What Write writes, Load reads back, also when every setting differs.
func TestWriteReadsBack(t *testing.T) {
	c := Default()
	c.Name, c.DataDir, c.ClusterKey, c.Region, c.Zone = "007", "/x", strings.Repeat("ab", 32), "eu", "a"
	c.Listen, c.Advertise, c.MetricsListen = "127.0.0.1:1", "10.0.0.1:1", "127.0.0.1:9"
	c.Gossip = Gossip{"127.0.0.1:2", "10.0.0.1:2", []string{"127.0.0.1:2", "[::1]:3"}}
	c.Gateway = Gateway{Enabled: true, GRPC: "127.0.0.1:4", HTTP: ""}
	c.Insecure, c.TokenFloor = true, 1<<52
	c.Log, c.Limits = Log{"debug", "json"}, Limits{1, 2, 3, 4}
	b, err := Write(c)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Load(Sources{File: file})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(l.Config, c) {
		t.Errorf("got %+v\nwant %+v", l.Config, c)
	}
}

// TestReferenceIsFresh: docs/config.md is what settings.go says.
func TestReferenceIsFresh(t *testing.T) {
	src, err := os.ReadFile("settings.go")
	if err != nil {
		t.Fatal(err)
	}
	want, err := Reference(src)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join("..", "..", "docs", "config.md"))
	if err != nil || string(got) != string(want) {
		t.Errorf("docs/config.md is not fresh (%v): go generate ./ops/config", err)
	}
}

func TestParseKey(t *testing.T) {
	for text, ok := range map[string]bool{
		strings.Repeat("0f", 32):                       true,
		"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=": true,
		"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA":  true,
		strings.Repeat("0f", 31):                       false,
		"":                                             false,
		"secret":                                       false,
	} {
		k, err := ParseKey(text)
		if (err == nil) != ok || (ok && len(k) != 32) {
			t.Errorf("%q: %d bytes, %v", text, len(k), err)
		}
		if err != nil && text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("the error shows the key: %v", err)
		}
	}
}

func TestNearest(t *testing.T) {
	for key, want := range map[string]string{"lisen": "listen", "gatway.grpc": "gateway.grpc", "Nmae": "name", "zzzzzzzz": ""} {
		if got := nearest(key, Paths()); got != want {
			t.Errorf("nearest to %q: %q, want %q", key, got, want)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("name: a\ngossip: {join: [a, 1]}\n")
	f.Add("a: &x [*x]\n")
	f.Add("gateway: &g\n  seeds: *g\n")
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		// Whatever it says, it never stops the program.
		_, _ = Load(Sources{File: file})
	})
}
