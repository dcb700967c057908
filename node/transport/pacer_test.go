package transport

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mortise-lock/mortise/node/worker"
)

func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer(1000, 500)
		ctx := t.Context()
		began := time.Now()
		wait := func(n int, until time.Duration) {
			t.Helper()
			if err := p.Wait(ctx, n); err != nil || time.Since(began) != until {
				t.Errorf("%d bytes passed after %v, %v; want %v", n, time.Since(began), err, until)
			}
		}
		wait(500, 0) // the burst
		wait(100, 100*time.Millisecond)
		wait(1000, 1100*time.Millisecond) // more than the burst at once
		<-time.After(time.Hour)
		began = time.Now()
		wait(500, 0) // no more than the burst was saved up
		wait(1, time.Millisecond)
		ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		if err := p.Wait(ctx, 1000); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the context's error", err)
		}
		if err := p.Wait(ctx, 1); err == nil {
			t.Error("passed with an ended context")
		}
	})
}

func TestPacerIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer(1000, 100)
		began := time.Now()
		var work sync.WaitGroup
		for range 10 {
			work.Go(func() {
				for range 100 {
					if err := p.Wait(t.Context(), 10); err != nil {
						t.Error(err)
					}
				}
			})
		}
		work.Wait()
		if took := time.Since(began); took != 9900*time.Millisecond {
			t.Errorf("10,000 bytes at 1,000 per second after a burst of 100 took %v", took)
		}
	})
}

// Large sizes don't overflow the arithmetic.
func TestPacerPrice(t *testing.T) {
	if got := NewPacer(32<<20, 1).price(64 << 30); got != 2048*time.Second {
		t.Errorf("64 GiB at 32 MiB/s cost %v", got)
	}
}

// However many snapshots are sent, their bytes per second stay below the rate.
func TestSnapshotsArePaced(t *testing.T) {
	inBubble(t, func(t *testing.T, net *network, a, b *node) {
		c := newNode(t, net, 3)
		defer c.stop()
		const size = 6 << 20
		put(t, a, 1, size)
		put(t, a, 2, size)
		pair(a, b)
		c.start()
		a.peer(c)
		began := time.Now()
		a.tr.Send([]worker.RaftMessage{snapshotOf(1, b), snapshotOf(2, c)})
		for len(b.installs())+len(c.installs()) < 2 && time.Since(began) < time.Minute {
			settle(10 * time.Millisecond)
		}
		took := time.Since(began).Seconds()
		if want := float64(2*size-snapshotBurst) / snapshotRate; took < want || took > want+0.2 {
			t.Errorf("two snapshots took %.2f s, want %.2f", took, want)
		}
		content(t, b, 1, size)
		content(t, c, 2, size)
	})
}
