package e2e

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	mortise "github.com/mortise-lock/mortise/sdk"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestMinorityRefuses stops two of three nodes: the third serves neither
// grants nor reads nor renewals, within their deadlines, and the SDK reports
// its holds lost in time. After the two go on, all is well.
func TestMinorityRefuses(t *testing.T) {
	c := startServers(t, 3)
	const ttl = 3 * time.Second
	client := open(t, "cut-off", ttl, c.grpc)
	names := c.namesOf()
	var grants []*mortise.Grant
	for _, name := range names {
		grants = append(grants, lock(t, client, name, 10*time.Second))
	}
	_, o := call(t, c.http, "OpenSession", object{"client": "curl", "ttl_ms": 3000})
	session := o.text(t, "session_id")
	if code, o := call(t, c.http, "Acquire", object{"session_id": session, "name": "minority/held"}); code != http.StatusOK || o["granted"] != true {
		t.Fatalf("acquire: %d %v", code, o)
	}

	stopped := time.Now()
	c.signal(syscall.SIGSTOP, c.servers[1], c.servers[2])
	for _, g := range grants {
		select {
		case <-g.Context().Done():
		case <-time.After(time.Until(stopped.Add(ttl))):
			t.Fatalf("%s: no word of its loss %v after the majority stopped (TTL %v)", g.Name(), time.Since(stopped), ttl)
		}
		var lost *mortise.LostError
		if !errors.As(g.Err(), &lost) || !errors.As(context.Cause(g.Context()), &lost) {
			t.Errorf("%s: Err is %v and the context's cause %v, want a *LostError", g.Name(), g.Err(), context.Cause(g.Context()))
		}
	}
	t.Logf("all %d holds were reported lost within %v of the stop (TTL %v)", len(grants), time.Since(stopped).Round(time.Millisecond), ttl)

	refused := func(what string, code int, o object, took time.Duration) {
		t.Helper()
		e, _ := o["error"].(map[string]any)
		if code != http.StatusServiceUnavailable || e["code"] != "UNAVAILABLE" {
			t.Errorf("%s without a majority: %d %v, want UNAVAILABLE", what, code, o)
		}
		if took > 6500*time.Millisecond {
			t.Errorf("%s without a majority was answered after %v; the deadline is 5 s and the wait", what, took)
		}
	}
	var wg sync.WaitGroup
	for what, body := range map[string]any{
		"Acquire":                     object{"session_id": session, "name": "minority/new", "wait_ms": 500},
		"KeepAlive":                   object{"session_id": session},
		"Describe?name=minority/held": nil,
	} {
		wg.Go(func() {
			begun := time.Now()
			code, o, err := tryCall(c.http, what, body)
			if err != nil {
				t.Errorf("%s: %v", what, err)
				return
			}
			if what == "KeepAlive" && code == http.StatusOK && o["renewed"] == false {
				return // says as clearly that nothing was renewed
			}
			refused(what, code, o, time.Since(begun))
		})
	}
	for shard, name := range names {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			_, err := locks(t, c.grpc).Describe(ctx, &lockv1.DescribeRequest{Name: name})
			if got := status.Code(err); got != codes.Unavailable && got != codes.DeadlineExceeded {
				t.Errorf("describe in shard %d without a majority: %v", shard, err)
			}
		})
	}
	wg.Wait()

	c.signal(syscall.SIGCONT, c.servers[1], c.servers[2])
	again := open(t, "again", 10*time.Second, c.endpoints()...)
	for i, name := range keysOf(names) {
		g := lock(t, again, name, 20*time.Second)
		for _, old := range grants {
			if old.Name() == name && g.Token() <= old.Token() {
				t.Errorf("%s: token %d after token %d", name, g.Token(), old.Token())
			}
		}
		if i%2 == 0 {
			release(t, g)
		}
	}
	c.caughtUp(30 * time.Second)
}

func keysOf(names map[uint32]string) []string {
	var out []string
	for _, n := range names {
		out = append(out, n)
	}
	return out
}
