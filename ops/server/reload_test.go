package server

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mortise-lock/mortise/ops/config"
)

// reloadCase is a process that was started with a file.
type reloadCase struct {
	t    *testing.T
	file string
	out  bytes.Buffer
	log  *slog.Logger
	r    *Reloads
}

func startReloads(t *testing.T, settings string, set ...string) *reloadCase {
	c := &reloadCase{t: t, file: filepath.Join(t.TempDir(), "n1.yaml")}
	c.write(settings)
	s := config.Sources{File: c.file, Set: set}
	l, err := config.Load(s)
	if err != nil {
		t.Fatal(err)
	}
	log, level := LeveledLogger(l.Log, &c.out)
	c.log, c.r = log.With("part", "node"), NewReloads(s, l, log, level)
	return c
}

func (c *reloadCase) write(settings string) {
	c.t.Helper()
	text := "name: n1\ncluster_key: " + strings.Repeat("ab", 32) + "\n" + settings
	if err := os.WriteFile(c.file, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// reload returns the one line that a reload logs.
func (c *reloadCase) reload() string {
	c.t.Helper()
	c.out.Reset()
	c.r.Reload()
	if n := strings.Count(c.out.String(), "\n"); n != 1 {
		c.t.Errorf("%d lines:\n%s", n, &c.out)
	}
	return c.out.String()
}

// debugs tells whether a logger that was derived before the reload writes
// debug lines now.
func (c *reloadCase) debugs() bool {
	c.out.Reset()
	c.log.Debug("hello")
	return c.out.Len() > 0
}

func wantIn(t *testing.T, line string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(line, p) {
			t.Errorf("%q is not in %s", p, line)
		}
	}
}

func TestReloadAppliesTheLevel(t *testing.T) {
	c := startReloads(t, "log: {level: error}\n")
	wantIn(t, c.reload(), "nothing changed")
	c.write("log: {level: debug}\n")
	wantIn(t, c.reload(), "level=INFO", `applied="[log.level: error -> debug]"`, "needs_restart=[]")
	if !c.debugs() {
		t.Error("debug lines are not written after log.level became debug")
	}
	wantIn(t, c.reload(), "nothing changed")
	// The answer to the signal shows even where the level hides such lines.
	c.write("log: {level: error}\n")
	wantIn(t, c.reload(), "log.level: debug -> error")
	if c.debugs() {
		t.Error("debug lines are written after log.level became error")
	}
}

// What needs a restart is named each time until there was one, and what can be
// applied is, beside it.
func TestReloadNamesWhatNeedsARestart(t *testing.T) {
	c := startReloads(t, "")
	c.write("region: eu\nlimits: {calls: 7}\nlog: {level: debug, format: json}\n")
	wantIn(t, c.reload(), "level=WARN", `applied="[log.level: info -> debug]"`,
		`needs_restart="[region: main -> eu log.format: text -> json limits.calls: 20000 -> 7]"`)
	wantIn(t, c.reload(), "level=WARN", "applied=[]", "region: main -> eu")
	c.write("log: {level: debug}\n")
	wantIn(t, c.reload(), "nothing changed")
}

func TestReloadKeepsTheOldOverABadFile(t *testing.T) {
	c := startReloads(t, "log: {level: debug}\n")
	for _, bad := range []string{"log: {level: eror}\nregoin: eu\n", "log: [", "log: {level: error}\nlimits: {calls: 0}\n"} {
		c.write(bad)
		wantIn(t, c.reload(), "level=ERROR", "was not reloaded", "n1.yaml:")
		if !c.debugs() {
			t.Errorf("the level is another after the bad file %q", bad)
		}
	}
	if err := os.Remove(c.file); err != nil {
		t.Fatal(err)
	}
	wantIn(t, c.reload(), "level=ERROR", "no such file")
	c.write("log: {level: warn}\n")
	wantIn(t, c.reload(), "log.level: debug -> warn")
}

// A flag wins over the file at a reload as it did at the start.
func TestReloadKeepsFlags(t *testing.T) {
	c := startReloads(t, "", "log.level=warn")
	c.write("log: {level: debug}\n")
	wantIn(t, c.reload(), "nothing changed")
}
