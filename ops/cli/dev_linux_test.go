package cli

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mortise-lock/mortise/ops/loopback"
)

// devProcess is a mortise dev --processes.
type devProcess struct {
	cmd   *exec.Cmd
	data  string
	lines map[string]string // the command lines that it printed, by node
}

func startDev(t *testing.T) *devProcess {
	t.Helper()
	at, err := loopback.Addrs(2)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d := &devProcess{data: t.TempDir(), lines: map[string]string{}}
	d.cmd = exec.Command(self, "dev", "--processes", "--shards", "1", "--data", d.data, "--grpc", at[0], "--http", at[1])
	d.cmd.Env = append(os.Environ(), asProgram+"=1")
	d.cmd.Stderr = os.Stderr
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.cmd.Process.Kill()
		d.cmd.Wait()
		for _, n := range []string{"n1", "n2", "n3"} {
			if pid := d.pid(n); pid > 0 && runs(pid, d.file(n)) {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if node, line, ok := strings.Cut(strings.TrimPrefix(lines.Text(), "node "), ": "); ok && strings.HasPrefix(lines.Text(), "node ") {
			d.lines[node] = line
		}
		if strings.Contains(lines.Text(), "ready") {
			return d
		}
	}
	t.Fatal("dev did not become ready")
	return nil
}

func (d *devProcess) file(node string) string { return filepath.Join(d.data, node, "config.yaml") }

// pid is that of a node, 0 when it is unknown.
func (d *devProcess) pid(node string) (pid int) {
	b, _ := os.ReadFile(filepath.Join(d.data, node, "pid"))
	fmt.Sscan(string(b), &pid)
	return pid
}

// await looks again and again, for at most 20 seconds.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// A dev that is killed takes the nodes with it that it started; one that was
// started again by hand, from the command line that dev printed, is its
// starter's.
func TestKilledDevLeavesNoNodes(t *testing.T) {
	d := startDev(t)
	first := d.pid("n2")
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, "the killed node is gone", func() bool { return !runs(first, d.file("n2")) })
	if !runs(d.pid("n1"), d.file("n1")) || !runs(d.pid("n3"), d.file("n3")) {
		t.Error("a node ended with another node")
	}
	words := strings.Fields(d.lines["n2"])
	if len(words) < 3 {
		t.Fatalf("the command line of n2 is %q", d.lines["n2"])
	}
	again := exec.Command(words[0], words[1:]...)
	again.Env = append(os.Environ(), asProgram+"=1")
	if err := again.Start(); err != nil {
		t.Fatal(err)
	}
	defer again.Wait()
	defer again.Process.Kill()
	await(t, "the node runs again", func() bool { return d.pid("n2") == again.Process.Pid })

	n1, n3 := d.pid("n1"), d.pid("n3")
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	d.cmd.Wait()
	await(t, "both nodes are gone", func() bool { return !runs(n1, d.file("n1")) && !runs(n3, d.file("n3")) })
	if !runs(again.Process.Pid, d.file("n2")) {
		t.Error("the node that was started by hand ended with dev")
	}
	for _, n := range []string{"n1", "n3"} {
		if b, _ := os.ReadFile(filepath.Join(d.data, n, "server.log")); strings.Contains(string(b), "panic") {
			t.Errorf("log of %s:\n%s", n, b)
		}
	}
}

// HUP does not end a server; it answers in its log.
func TestServerSurvivesHUP(t *testing.T) {
	d := startDev(t)
	log := func() string { b, _ := os.ReadFile(filepath.Join(d.data, "n1", "server.log")); return string(b) }
	b, err := os.ReadFile(d.file("n1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.file("n1"), append(b, "log: {level: debug}\nlimits: {calls: 9}\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	pid := d.pid("n1")
	if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	await(t, "the reload is logged", func() bool {
		return strings.Contains(log(), "log.level: info -> debug") && strings.Contains(log(), "limits.calls: 20000 -> 9")
	})
	if err := os.WriteFile(d.file("n1"), append(b, "regoin: eu\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	await(t, "the problem is logged", func() bool { return strings.Contains(log(), "regoin is no setting") })
	if !runs(pid, d.file("n1")) {
		t.Error("the node ended")
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await(t, "the node ended with TERM", func() bool { return !runs(pid, d.file("n1")) })
}
