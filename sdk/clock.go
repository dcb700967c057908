package mortise

import "time"

var processStart = time.Now()

// monotonic is Go's monotonic clock. On systems other than Linux it may stand
// still while the host is suspended.
func monotonic() time.Duration { return time.Since(processStart) + time.Hour }
