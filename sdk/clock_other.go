//go:build !linux

package mortise

import "time"

func bootClock() time.Duration { return monotonic() }
