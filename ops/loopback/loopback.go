// Package loopback finds ports for servers on 127.0.0.1.
package loopback

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// Ports given out lie below the range from which systems take the local ports
// of outgoing connections: a server that is down for a moment must find its
// port free when it comes back.
const firstPort, lastPort = 10_240, 32_000

// Addrs returns n different addresses, host:port, that were free for TCP and
// UDP just now. Each call begins at a random port, so that programs that run at
// the same time hardly meet.
func Addrs(n int) ([]string, error) {
	var addrs []string
	port := firstPort + rand.IntN(lastPort-firstPort)
	for range lastPort - firstPort {
		if len(addrs) == n {
			return addrs, nil
		}
		if port++; port >= lastPort {
			port = firstPort
		}
		if address := fmt.Sprintf("127.0.0.1:%d", port); free(address) {
			addrs = append(addrs, address)
		}
	}
	return nil, fmt.Errorf("not enough free ports on 127.0.0.1 from %d to %d", firstPort, lastPort-1)
}

func free(address string) bool {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return false
	}
	l.Close()
	u, err := net.ListenPacket("udp", address)
	if err != nil {
		return false
	}
	u.Close()
	return true
}
