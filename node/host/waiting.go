package host

import (
	"context"
	"sync"
)

// waiting joins callers with the ends of what they asked a worker for.
type waiting struct {
	mu   sync.Mutex
	last uint64
	open map[uint64]chan any
}

// begin returns a fresh id, and a function that waits for its end.
func (w *waiting) begin() (id uint64, wait func(context.Context) (any, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		w.open = map[uint64]chan any{}
	}
	w.last++
	id = w.last
	ch := make(chan any, 1)
	w.open[id] = ch
	return id, func(ctx context.Context) (any, error) {
		defer func() {
			w.mu.Lock()
			delete(w.open, id)
			w.mu.Unlock()
		}()
		select {
		case v := <-ch:
			return v, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (w *waiting) end(id uint64, v any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ch := w.open[id]; ch != nil {
		select {
		case ch <- v:
		default: // told already
		}
	}
}
