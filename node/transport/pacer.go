package transport

import (
	"context"
	"sync"
	"time"
)

// Pacer is a token bucket for bytes, kept as the time at which it will be full
// (the generic cell rate algorithm of ATM, ITU-T I.371, as a virtual schedule).
// Those who wait are served in the order of their calls. Safe for concurrent
// use.
type Pacer struct {
	rate  int64 // bytes per second
	burst time.Duration

	mu   sync.Mutex
	paid time.Time // everything let through so far is paid for by then
}

// NewPacer returns a full bucket. rate is in bytes per second, burst in bytes;
// both must be positive.
func NewPacer(rate, burst int64) *Pacer {
	p := &Pacer{rate: rate}
	p.burst = p.price(burst)
	return p
}

func (p *Pacer) price(n int64) time.Duration {
	return time.Duration(n/p.rate)*time.Second + time.Duration(n%p.rate)*time.Second/time.Duration(p.rate)
}

// Wait returns when n more bytes may pass, or with ctx's error. Bytes given up
// on are paid for all the same. n may exceed the burst.
func (p *Pacer) Wait(ctx context.Context, n int) error {
	now := time.Now()
	p.mu.Lock()
	if full := now.Add(-p.burst); p.paid.Before(full) {
		p.paid = full
	}
	p.paid = p.paid.Add(p.price(int64(n)))
	wait := p.paid.Sub(now)
	p.mu.Unlock()
	if wait <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
