package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// refused runs a server that must not start, and returns what it said. It must
// be short and no stack trace, and must match the pattern.
func (c *cluster) refused(t *testing.T, why, file, pattern string) {
	t.Helper()
	p := start(t, why, exec.Command(binary, "server", "run", "--config", file))
	if status := p.ended(t, 20*time.Second); status == 0 {
		t.Errorf("%s: exit status 0", why)
	}
	said := tail(p.log, 1<<20)
	last := ""
	for line := range strings.Lines(said) {
		if strings.TrimSpace(line) != "" {
			last = line
		}
	}
	if !regexp.MustCompile(pattern).MatchString(last) || strings.Contains(said, "goroutine ") {
		t.Errorf("%s: the last line must match %q; it said:\n%s", why, pattern, said)
	}
}

// edit writes a copy of a configuration with some text replaced.
func edit(t *testing.T, file string, oldnew ...string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(oldnew); i += 2 {
		if !strings.Contains(string(b), oldnew[i]) {
			t.Fatalf("%s does not contain %q", file, oldnew[i])
		}
	}
	out := filepath.Join(t.TempDir(), "mortise.yaml")
	if err := os.WriteFile(out, []byte(strings.NewReplacer(oldnew...).Replace(string(b))), 0o600); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestServersThatMustNotStart: each refusal is one clear line and a non-zero
// exit status.
func TestServersThatMustNotStart(t *testing.T) {
	c := startServers(t, 3)
	n1, n3 := c.servers[0], c.servers[2]
	fresh := func(name string) string {
		return writeConfig(t, c.dir, name, "z1", freeAddr(t), []string{configOf(t, n1.config).Gossip.Listen})
	}

	busy := configOf(t, fresh("n4"))
	c.refused(t, "data directory in use", edit(t, filepath.Join(c.dir, "n4", "mortise.yaml"), busy.DataDir, n1.data),
		regexp.QuoteMeta(n1.data)+`.*(in use|used by|another process|locked)`)
	for what, ports := range map[string][2]string{
		"internal port in use":     {busy.Listen, configOf(t, n1.config).Listen},
		"gossip port in use":       {busy.Gossip.Listen, configOf(t, n1.config).Gossip.Listen},
		"gateway's port in use":    {busy.Gateway.GRPC, n1.grpc},
		"gateway's HTTP port used": {busy.Gateway.HTTP, n1.http},
	} {
		c.refused(t, what, edit(t, filepath.Join(c.dir, "n4", "mortise.yaml"), ports[0], ports[1]),
			regexp.QuoteMeta(ports[1])+`.*in use`)
	}

	file := filepath.Join(t.TempDir(), "a-file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.refused(t, "data directory that can't be made", edit(t, fresh("n5"), filepath.Join(c.dir, "n5", "data"), filepath.Join(file, "data")),
		regexp.QuoteMeta(file))

	c.kill(n3)
	if err := os.RemoveAll(n3.data); err != nil {
		t.Fatal(err)
	}
	c.refused(t, "wiped disk", n3.config, `(?i)(wiped|empty|lost|no data|new name|another name)`)
	// It did no harm: the others go on.
	release(t, lock(t, open(t, "after-wipe", 10*time.Second, n1.grpc), "after/wipe", 10*time.Second))
}

// TestForeignClusterIsRefused points a node of another cluster at this one.
func TestForeignClusterIsRefused(t *testing.T) {
	c, other := startServers(t, 1), startNamed(t, "stranger", 1)
	stranger := other.servers[0]
	other.kill(stranger)
	c.refused(t, "data directory of another cluster",
		edit(t, stranger.config, "join: ["+configOf(t, stranger.config).Gossip.Join[0]+"]", "join: ["+configOf(t, c.servers[0].config).Gossip.Listen+"]"),
		`(?i)another cluster|other cluster|cluster id`)
	other.restart(stranger) // and its own cluster still has it
}

// TestConfigurationIsCheckedAtOnce: every problem of a file in one go, each
// with its line.
func TestConfigurationIsCheckedAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bad.yaml")
	text := "nmae: n1\nlisten: nowhere\ngateway:\n  enabled: maybe\n  grpc: 127.0.0.1:1\nlimits:\n  streams: 0\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs, status := output(t, nil, "server", "check-config", "--config", file)
	if status != 78 {
		t.Errorf("exit status %d, want 78", status)
	}
	for _, want := range []string{file + ":1", "nmae", "name", file + ":2", "listen", file + ":4", "enabled", file + ":7", "streams"} {
		if !strings.Contains(errs, want) {
			t.Errorf("the report does not contain %q:\n%s", want, errs)
		}
	}
	if _, errs, status := output(t, nil, "server", "run", "--config", file); status != 78 || !strings.Contains(errs, file+":1") {
		t.Errorf("server run with that file: exit status %d\n%s", status, errs)
	}
}
