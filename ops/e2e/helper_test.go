package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	mortise "github.com/mortise-lock/mortise/sdk"
)

// A helper is this test binary run again as another process, so that it can be
// killed or frozen: a client that holds locks.

const helperEnv = "MORTISE_E2E_HELPER"

// holderSpec is what a holder is told, as JSON in helperEnv.
type holderSpec struct {
	Endpoints []string
	Owner     string
	TTL       time.Duration
	Names     []string
}

// holderEvent is one line of a holder's output.
type holderEvent struct {
	// Event is "holding", once all locks are held, or "woke", after each time
	// that the process stood still for half a second.
	Event string
	// Tokens are by name, for "holding".
	Tokens map[string]uint64
	// AfterMS is how long the process stood still.
	AfterMS int64
	// Lost and Ended count grants whose Err, and whose context, told of the loss
	// when asked once right after waking. Causes counts contexts that name a
	// *LostError as the cause.
	Lost, Ended, Causes int
}

func runHelper(spec string) int {
	var s holderSpec
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if err := holdLocks(s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func holdLocks(s holderSpec) error {
	ctx := context.Background()
	client, err := mortise.Open(ctx, mortise.Config{Endpoints: s.Endpoints, Owner: s.Owner, SessionTTL: s.TTL})
	if err != nil {
		return err
	}
	type result struct {
		g   *mortise.Grant
		err error
	}
	results := make(chan result)
	for _, name := range s.Names {
		go func() {
			g, err := client.Lock(ctx, name)
			results <- result{g, err}
		}()
	}
	var grants []*mortise.Grant
	tokens := map[string]uint64{}
	for range s.Names {
		r := <-results
		if r.err != nil {
			return r.err
		}
		grants = append(grants, r.g)
		tokens[r.g.Name()] = uint64(r.g.Token())
	}
	out := json.NewEncoder(os.Stdout)
	last := time.Now() // before the line that may get this process frozen at once
	if err := out.Encode(holderEvent{Event: "holding", Tokens: tokens}); err != nil {
		return err
	}
	for {
		time.Sleep(time.Millisecond)
		now := time.Now()
		if gap := now.Sub(last); gap > 500*time.Millisecond {
			e := holderEvent{Event: "woke", AfterMS: gap.Milliseconds()}
			for _, g := range grants {
				// Err first: it must compare the clock, not wait for a timer.
				if g.Err() != nil {
					e.Lost++
				}
				if g.Context().Err() != nil {
					e.Ended++
				}
				var lost *mortise.LostError
				if errors.As(context.Cause(g.Context()), &lost) {
					e.Causes++
				}
			}
			if err := out.Encode(e); err != nil {
				return err
			}
			now = time.Now()
		}
		last = now
	}
}

// holder is a running helper.
type holder struct {
	*process
	events chan holderEvent
}

// startHolder runs a helper and waits until it holds all its locks.
func startHolder(t *testing.T, s holderSpec) (*holder, map[string]uint64) {
	t.Helper()
	spec, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), helperEnv+"="+string(spec))
	r, w := io.Pipe()
	cmd.Stdout = w
	h := &holder{start(t, "holder "+s.Owner, cmd), make(chan holderEvent, 16)}
	go func() {
		<-h.done
		w.Close()
	}()
	go func() {
		defer close(h.events)
		for lines := bufio.NewScanner(r); lines.Scan(); {
			var e holderEvent
			if strings.HasPrefix(lines.Text(), "{") && json.Unmarshal(lines.Bytes(), &e) == nil {
				h.events <- e
			}
		}
	}()
	return h, h.next(t, "holding", 30*time.Second).Tokens
}

// next waits for the holder's next event of that kind.
func (h *holder) next(t *testing.T, event string, within time.Duration) holderEvent {
	t.Helper()
	for timeout := time.After(within); ; {
		select {
		case e, ok := <-h.events:
			if !ok {
				t.Fatalf("%s ended; its log:\n%s", h.name, tail(h.log, 4000))
			}
			if e.Event == event {
				return e
			}
		case <-timeout:
			t.Fatalf("no %q from %s within %v", event, h.name, within)
		}
	}
}
