package loopback

import (
	"net"
	"testing"
)

func TestAddrsAreFreeAndDiffer(t *testing.T) {
	addrs, err := Addrs(50)
	if err != nil || len(addrs) != 50 {
		t.Fatalf("%d addresses, %v", len(addrs), err)
	}
	for _, a := range addrs { // all held at once, so none may come twice
		l, err := net.Listen("tcp", a)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if p := l.Addr().(*net.TCPAddr).Port; p < firstPort || p >= lastPort {
			t.Errorf("port %d is outside %d to %d", p, firstPort, lastPort)
		}
	}
	if _, err := Addrs(lastPort); err == nil {
		t.Error("more ports than there are were given out")
	}
}
