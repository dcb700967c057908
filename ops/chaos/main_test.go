package chaos

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

var (
	duration = flag.Duration("duration", 40*time.Second, "length of the storm")
	seedFlag = flag.Uint64("seed", 0, "of the faults; 0: a new one")
	nodes    = flag.Int("nodes", 3, "nodes of the cluster")
	keep     = flag.String("keep", "", "file for the history of a failed run; empty: a temporary one")
)

// roleEnv makes this test binary act as something on one of the hosts.
const roleEnv = "MORTISE_CHAOS_ROLE"

// binary is the path of the program under test.
var binary string

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "client":
		os.Exit(client())
	case "say":
		os.Exit(say(os.Args[1]))
	case "listen":
		os.Exit(listen())
	}
	flag.Parse()
	code, err := setUpAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		code = 1
	}
	os.Exit(code)
}

func setUpAndRun(m *testing.M) (int, error) {
	if binary = os.Getenv("MORTISE_BIN"); binary == "" {
		dir, err := os.MkdirTemp("", "mortise-chaos-")
		if err != nil {
			return 1, err
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "mortise")
		build := exec.Command("go", "build", "-buildvcs=false", "-o", binary, "./ops/mortise")
		build.Dir = "../.."
		if out, err := build.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("building ops/mortise: %w\n%s", err, out)
		}
	}
	return m.Run(), nil
}

// role runs this binary on the host as something else.
func (h *host) role(role string, args ...string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		h.net.t.Fatal(err)
	}
	c := h.command(self, args...)
	c.Env = append(os.Environ(), roleEnv+"="+role)
	c.Stderr = os.Stderr
	return c
}

const saidPort = "9000"

// say sends datagrams for a while.
func say(to string) int {
	c, err := net.Dial("udp", net.JoinHostPort(to, saidPort))
	if err != nil {
		return 1
	}
	for range 20 {
		_, _ = c.Write([]byte("x")) // what a cut does to it is what is tested
		<-time.After(25 * time.Millisecond)
	}
	return 0
}

// listen tells on standard output whether a datagram came.
func listen() int {
	c, err := net.ListenPacket("udp", ":"+saidPort)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ready")
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	if _, _, err := c.ReadFrom(make([]byte, 10)); err != nil {
		fmt.Println("silence")
	} else {
		fmt.Println("heard")
	}
	return 0
}
