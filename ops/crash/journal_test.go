package crash

import "sync"

// maxJournal bounds what is kept of the nodes' logs, in bytes.
const maxJournal = 64 << 10

// journal keeps the end of the nodes' logs, to be read when a test failed.
type journal struct {
	mu  sync.Mutex
	end []byte
}

// Write implements io.Writer.
func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.end = append(j.end, p...)
	if n := len(j.end) - maxJournal; n > maxJournal {
		j.end = append(j.end[:0], j.end[n:]...)
	}
	return len(p), nil
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return string(j.end[max(0, len(j.end)-maxJournal):])
}
