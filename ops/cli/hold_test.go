package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	mortise "github.com/mortise-lock/mortise/sdk"
)

// goneCluster grants one lock and then answers nothing any more: what is asked
// of it lasts until the caller's context ends.
type goneCluster struct {
	t        *testing.T
	deadline time.Time
	lost     chan struct{}

	mu    sync.Mutex
	calls []string
	waits []time.Duration
}

var errGone = errors.New("the lease is over")

func (g *goneCluster) acquire(context.Context, lockRequest) (heldLock, error) { return g, nil }
func (g *goneCluster) Token() mortise.Token                                   { return 7 }
func (g *goneCluster) Mode() mortise.Mode                                     { return mortise.Exclusive }
func (g *goneCluster) Sequencer() string                                      { return "7" }
func (g *goneCluster) Deadline() time.Time                                    { return g.deadline }
func (g *goneCluster) Lost() <-chan struct{}                                  { return g.lost }
func (g *goneCluster) close(ctx context.Context) error                        { return g.hang(ctx, "close") }
func (g *goneCluster) Release(ctx context.Context) error                      { return g.hang(ctx, "release") }

func (g *goneCluster) Err() error {
	if time.Now().Before(g.deadline) {
		return nil
	}
	return errGone
}

// hang is a call to nobody. It notes how long the caller would wait.
func (g *goneCluster) hang(ctx context.Context, what string) error {
	end, ok := ctx.Deadline()
	if !ok {
		g.t.Errorf("%s has no deadline: it never ends", what)
		return errGone
	}
	g.mu.Lock()
	g.calls, g.waits = append(g.calls, what), append(g.waits, time.Until(end))
	g.mu.Unlock()
	return context.DeadlineExceeded
}

// When the cluster is gone, lock run and lock hold end all the same: what they
// still ask of it lasts no longer than the session could.
func TestEndsWithoutACluster(t *testing.T) {
	const ttl = time.Second
	for _, c := range []struct {
		name  string
		args  []string
		lease time.Duration
		want  Kind
		calls string
	}{
		{"hold, over by its own clock", []string{"lock", "hold", "--ttl", "1s", "x"}, 0, LockLost, "close"},
		{"hold, input ends", []string{"lock", "hold", "--ttl", "1s", "x"}, ttl, -1, "release close"},
		{"run, over by its own clock", []string{"lock", "run", "--ttl", "1s", "--grace", "0s", "x", "--", "sleep", "600"}, 0, LockLost, "close"},
		{"run, lease ends meanwhile", []string{"lock", "run", "--ttl", "1s", "--grace", "100ms", "x", "--", "sleep", "600"}, 300 * time.Millisecond, LockLost, "release close"},
		{"run, command ends", []string{"lock", "run", "--ttl", "1s", "--grace", "0s", "x", "--", "true"}, ttl, CommandStatus, "release close"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in, keep, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			if c.want == -1 {
				keep.Close()
			} else {
				defer keep.Close()
			}
			g := &goneCluster{t: t, deadline: time.Now().Add(c.lease), lost: make(chan struct{})}
			var out, errs bytes.Buffer
			env := &Env{In: in, Out: &out, Err: &errs, Environ: os.Environ(), Signals: make(chan os.Signal),
				openLock: func(context.Context, lockConfig) (lockSource, error) { return g, nil }}
			err = Run(context.Background(), env, c.args)
			var e *Error
			switch {
			case c.want == -1 && err != nil:
				t.Errorf("got %v", err)
			case c.want != -1 && (!errors.As(err, &e) || e.Kind != c.want):
				t.Errorf("got %v, want kind %d", err, c.want)
			}
			if got := strings.Join(g.calls, " "); got != c.calls && !(c.calls == "release close" && got == "close" && c.want == LockLost) {
				t.Errorf("asked for %q, want %q", got, c.calls)
			}
			for i, d := range g.waits {
				if d > ttl {
					t.Errorf("%s may last %v, longer than the session's %v", g.calls[i], d, ttl)
				}
			}
		})
	}
}
