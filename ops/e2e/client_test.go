package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	mortise "github.com/mortise-lock/mortise/sdk"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// dial returns a connection that is closed at the end of the test.
func dial(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conns.Lock()
	defer conns.Unlock()
	key := connKey{t, addr}
	if c := conns.open[key]; c != nil {
		return c
	}
	c, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	conns.open[key] = c
	t.Cleanup(func() {
		conns.Lock()
		defer conns.Unlock()
		delete(conns.open, key)
		c.Close()
	})
	return c
}

type connKey struct {
	t    *testing.T
	addr string
}

var conns = struct {
	sync.Mutex
	open map[connKey]*grpc.ClientConn
}{open: map[connKey]*grpc.ClientConn{}}

func locks(t *testing.T, addr string) lockv1.LockServiceClient {
	return lockv1.NewLockServiceClient(dial(t, addr))
}

// object is a JSON object as it came.
type object map[string]any

func (o object) number(t *testing.T, field string) uint64 {
	t.Helper()
	n, ok := o[field].(json.Number)
	if !ok {
		t.Fatalf("field %s is %v, not a number, in %v", field, o[field], o)
	}
	i, err := n.Int64()
	if err != nil {
		t.Fatal(err)
	}
	return uint64(i)
}

func (o object) text(t *testing.T, field string) string {
	t.Helper()
	s, ok := o[field].(string)
	if !ok {
		t.Fatalf("field %s is %v, not text, in %v", field, o[field], o)
	}
	return s
}

// call sends a request to the HTTP/JSON edge; body nil means GET.
func call(t *testing.T, addr, method string, body any) (int, object) {
	t.Helper()
	code, o, err := tryCall(addr, method, body)
	if err != nil {
		t.Fatal(err)
	}
	return code, o
}

func tryCall(addr, method string, body any) (int, object, error) {
	verb := http.MethodGet
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		verb, in = http.MethodPost, bytes.NewBufferString(b)
	default:
		j, err := json.Marshal(b)
		if err != nil {
			return 0, nil, err
		}
		verb, in = http.MethodPost, bytes.NewReader(j)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, verb, "http://"+addr+"/v1/LockService/"+method, in)
	if err != nil {
		return 0, nil, err
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer a.Body.Close()
	d := json.NewDecoder(a.Body)
	d.UseNumber()
	var o object
	if err := d.Decode(&o); err != nil {
		return 0, nil, fmt.Errorf("%s: %s: the answer is no JSON object: %w", method, a.Status, err)
	}
	return a.StatusCode, o, nil
}

// namesOf finds one name per lock shard by asking who owns random ones.
func (c *cluster) namesOf() map[uint32]string {
	c.t.Helper()
	shards := 0
	for _, s := range c.status().Map.Shards {
		if s.Id != 0 {
			shards++
		}
	}
	out := map[uint32]string{}
	for i := 0; len(out) < shards; i++ {
		if i > 200*shards {
			c.t.Fatalf("found names for %d of %d shards only", len(out), shards)
		}
		name := fmt.Sprintf("probe/%d", i)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		d, err := locks(c.t, c.grpc).Describe(ctx, &lockv1.DescribeRequest{Name: name})
		cancel()
		if err != nil {
			c.t.Fatal(err)
		}
		if out[d.Shard] == "" {
			out[d.Shard] = name
		}
	}
	return out
}

// open returns an SDK client that is closed at the end of the test.
func open(t *testing.T, owner string, ttl time.Duration, endpoints ...string) *mortise.Client {
	t.Helper()
	c, err := mortise.Open(context.Background(), mortise.Config{Endpoints: endpoints, Owner: owner, SessionTTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		_ = c.Close(ctx) // the cluster may be gone by now
	})
	return c
}

// lock takes a lock that must come within a time.
func lock(t *testing.T, c *mortise.Client, name string, within time.Duration) *mortise.Grant {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	g, err := c.Lock(ctx, name)
	if err != nil {
		t.Fatalf("lock %s: %v", name, err)
	}
	return g
}

// describe asks over HTTP, so that it can't share a fault with the SDK.
func describe(t *testing.T, addr, name string) object {
	t.Helper()
	code, o := call(t, addr, "Describe?name="+name, nil)
	if code != http.StatusOK {
		t.Fatalf("describe %s: %d %v", name, code, o)
	}
	return o
}
