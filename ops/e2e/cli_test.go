package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mortise-lock/mortise/ops/config"
)

func configOf(t *testing.T, file string) config.Config {
	t.Helper()
	l, err := config.Load(config.Sources{File: file})
	if err != nil {
		t.Fatal(err)
	}
	return l.Config
}

// TestLockRun: what `mortise lock run` promises to scripts.
func TestLockRun(t *testing.T) {
	dev := shared.use(t)
	out, errs, status := output(t, dev.env(), "lock", "run", "cli/run", "--", "sh", "-c", "echo $MORTISE_LOCK $MORTISE_TOKEN; exit 7")
	var name string
	var token uint64
	if _, err := fmt.Sscan(out, &name, &token); err != nil || name != "cli/run" || token == 0 || status != 7 {
		t.Errorf("a command that exits with 7: status %d, output %q, %s", status, out, errs)
	}
	if o := describe(t, dev.http, "cli/run"); o.text(t, "holder") != "" {
		t.Errorf("after the command: %v", o)
	}
	if _, errs, status := output(t, dev.env(), "lock", "run", "cli/run", "--", "/no/such/command"); status != 127 {
		t.Errorf("a command that does not exist: status %d, want 127; %s", status, errs)
	}
	if _, errs, status := output(t, dev.env(), "lock", "run"); status != 2 {
		t.Errorf("wrong usage: status %d, want 2; %s", status, errs)
	}
	if _, errs, status := output(t, []string{"MORTISE_ENDPOINTS=127.0.0.1:1"}, "lock", "run", "--timeout", "1s", "cli/run", "--", "true"); status != 69 {
		t.Errorf("no cluster: status %d, want 69; %s", status, errs)
	}

	// Held by another.
	session := dev.session(t, "someone")
	_, o := call(t, dev.http, "Acquire", object{"session_id": session, "name": "cli/busy"})
	for _, args := range [][]string{{"--try"}, {"--timeout", "300ms"}} {
		all := append(append([]string{"lock", "run"}, args...), "cli/busy", "--", "true")
		if _, errs, status := output(t, dev.env(), all...); status != 75 || !strings.Contains(errs, "someone") {
			t.Errorf("%v while held: status %d, want 75 and the holder's name; %s", args, status, errs)
		}
	}
	if code, o := call(t, dev.http, "Release", object{"name": "cli/busy", "token": o.number(t, "token")}); code != http.StatusOK {
		t.Errorf("release: %d %v", code, o)
	}
}

// TestLockRunStopsItsCommand: when the lock is released by force, the command
// is stopped and the exit status is 80.
func TestLockRunStopsItsCommand(t *testing.T) {
	dev := shared.use(t)
	pidFile := filepath.Join(t.TempDir(), "pid")
	cmd := exec.Command(binary, "lock", "run", "cli/lost", "--", "sh", "-c", "echo $$ >"+pidFile+".new; mv "+pidFile+".new "+pidFile+"; sleep 600")
	cmd.Env = append(os.Environ(), dev.env()...)
	p := start(t, "lock run", cmd)
	var pid int
	eventually(t, 10*time.Second, "the command to run", func() (err error) {
		pid, err = readPID(pidFile)
		return err
	})
	_, errs, status := output(t, dev.env(), "lock", "release", "--force", "--reason", "end-to-end test", "--yes", "cli/lost")
	if status != 0 {
		t.Fatalf("lock release --force: status %d: %s", status, errs)
	}
	if status := p.ended(t, 20*time.Second); status != 80 {
		t.Errorf("exit status %d, want 80 for a lost lock; it said: %s", status, tail(p.log, 2000))
	}
	if alive(pid) {
		t.Errorf("the command (pid %d) outlived its lock", pid)
	}
}

// TestLockHold prints its grant as one JSON line and holds until a signal.
func TestLockHold(t *testing.T) {
	dev := shared.use(t)
	cmd := exec.Command(binary, "lock", "hold", "--ttl", "2s", "cli/hold")
	cmd.Env = append(os.Environ(), dev.env()...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	p := start(t, "lock hold", cmd)
	log := p.waitLog(t, "}\n", 10*time.Second)
	var grant object
	if err := json.Unmarshal([]byte(strings.TrimSpace(log)), &grant); err != nil || grant["token"] == nil || grant["name"] != "cli/hold" {
		t.Fatalf("lock hold printed %q (%v), want one JSON line with name and token", log, err)
	}
	// Longer than the TTL: it renews.
	time.Sleep(3 * time.Second)
	if o := describe(t, dev.http, "cli/hold"); fmt.Sprintf("%.0f", grant["token"]) != fmt.Sprint(o.number(t, "token")) {
		t.Errorf("printed %v, the service knows %v", grant, o)
	}
	if err := signal(p.pid, "cli/hold", syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.ended(t, 10*time.Second)
	if o := describe(t, dev.http, "cli/hold"); o.text(t, "holder") != "" {
		t.Errorf("after SIGTERM it is still held: %v", o)
	}
}

// TestReadingCommands: every reading command takes -o json, and its rows carry
// an id or a name.
func TestReadingCommands(t *testing.T) {
	dev := shared.use(t)
	session := dev.session(t, "reader")
	call(t, dev.http, "Acquire", object{"session_id": session, "name": "cli/read"})
	for _, c := range []struct{ args, rows string }{
		{"lock ls cli/", "locks"},
		{"lock show cli/read", ""},
		{"session ls", "sessions"},
		{"node ls", "nodes"},
		{"shard ls", "shards"},
		{"cluster status", ""},
	} {
		out, errs, status := output(t, dev.env(), append(strings.Fields(c.args), "-o", "json")...)
		var o map[string]any
		if err := json.Unmarshal([]byte(out), &o); err != nil || status != 0 {
			t.Errorf("mortise %s -o json: status %d, %v\n%s%s", c.args, status, err, out, errs)
			continue
		}
		if c.rows == "" {
			continue
		}
		rows, _ := o[c.rows].([]any)
		if len(rows) == 0 {
			t.Errorf("mortise %s -o json has no %s: %s", c.args, c.rows, out)
		}
		for _, r := range rows {
			if row, _ := r.(map[string]any); row["id"] == nil && row["name"] == nil {
				t.Errorf("mortise %s -o json: the row %v has neither id nor name", c.args, r)
			}
		}
	}
	if _, _, status := output(t, dev.env(), "lock", "show", "cli/free-as-air"); status != 66 && status != 0 {
		t.Errorf("lock show of a free lock: status %d", status)
	}
	for _, args := range []string{"version", "completion bash", "help exit-codes"} {
		if out, errs, status := output(t, nil, strings.Fields(args)...); status != 0 || out == "" {
			t.Errorf("mortise %s: status %d %s%s", args, status, out, errs)
		}
	}
}
