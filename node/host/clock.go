package host

import (
	"time"

	"github.com/mortise-lock/mortise/node/worker"
	"golang.org/x/sys/unix"
)

// now reads the clock that leases run on. It goes on while the host is
// suspended, so that a stall is seen whatever caused it.
func now() worker.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Kernels without it are older than any that Go runs on.
		panic("host: no CLOCK_BOOTTIME: " + err.Error())
	}
	return worker.Time(ts.Nano())
}

const (
	tickEvery = 100 * time.Millisecond
	// stallAfter: loops are woken by every tick, so a gap this long means that
	// the process, or the machine, stood still.
	stallAfter = 500 * time.Millisecond
	// ticksMax bounds how many missed ticks are made up for at once: after a
	// pause the messages that waited in sockets must have a chance before any
	// election timeout.
	ticksMax = 3
)
