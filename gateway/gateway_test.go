package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// fakeNode is one node that leads one shard: exclusive locks without queues.
type fakeNode struct {
	nodev1.UnimplementedNodeServiceServer
	placementv1.UnimplementedPlacementServiceServer
	m  *placementv1.Map
	mu sync.Mutex

	regs  map[string]uint64
	locks map[string]uint64
	next  uint64
}

func (f *fakeNode) WatchMap(r *placementv1.WatchMapRequest, s placementv1.PlacementService_WatchMapServer) error {
	if err := s.Send(&placementv1.WatchMapResponse{Map: f.m}); err != nil {
		return err
	}
	<-s.Context().Done()
	return s.Context().Err()
}

func (f *fakeNode) ClusterStatus(context.Context, *placementv1.ClusterStatusRequest) (*placementv1.ClusterStatusResponse, error) {
	return &placementv1.ClusterStatusResponse{Map: f.m}, nil
}

func (f *fakeNode) Exchange(s nodev1.NodeService_ExchangeServer) error {
	if err := s.Send(&nodev1.ExchangeResponse{NodeTimeMs: 1, Leaders: []*nodev1.LeaderHint{{Shard: 1, Term: 6, Node: 1}}}); err != nil {
		return err
	}
	first := true
	for {
		in, err := s.Recv()
		if err != nil {
			return err
		}
		if first && in.ClusterId != f.m.ClusterId {
			return status.Error(codes.FailedPrecondition, "foreign cluster")
		}
		first = false
		out := &nodev1.ExchangeResponse{NodeTimeMs: 2}
		for _, q := range in.Requests {
			out.Responses = append(out.Responses, f.serve(q))
		}
		for _, r := range in.GetRenew().GetRenewals() {
			a := &nodev1.Renewed{SessionId: r.SessionId, Number: r.Number, Attachment: r.Attachment}
			f.mu.Lock()
			if g, ok := f.regs[string(r.SessionId)]; ok {
				a.Covered = append(a.Covered, &lockv1.Covered{Shard: 1, Registration: g})
			}
			f.mu.Unlock()
			out.Renewed = append(out.Renewed, a)
		}
		if err := s.Send(out); err != nil {
			return err
		}
	}
}

func (f *fakeNode) serve(q *nodev1.Request) *nodev1.Response {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &nodev1.Response{Id: q.Id, Result: &nodev1.Response_Done{Done: &nodev1.Done{}}}
	switch op := q.Op.(type) {
	case *nodev1.Request_Register:
		k := string(op.Register.SessionId)
		if f.regs[k] == 0 {
			f.next++
			f.regs[k] = f.next
		}
		r.Result = &nodev1.Response_Register{Register: &nodev1.RegisterResult{Registration: f.regs[k], Attachment: op.Register.Attachment}}
	case *nodev1.Request_Locate:
		l := &nodev1.LocateResult{}
		if g := f.regs[string(op.Locate.SessionId)]; g != 0 {
			l.Located = append(l.Located, &nodev1.Located{Shard: 1, Registration: g})
		}
		r.Result = &nodev1.Response_Locate{Locate: l}
	case *nodev1.Request_Acquire:
		a := &nodev1.AcquireResult{}
		if f.locks[op.Acquire.Name] != 0 {
			a.State = &nodev1.AcquireResult_Ended{Ended: &lockv1.EndedEvent{Reason: lockv1.EndReason_END_REASON_BUSY,
				Holders: []*lockv1.Holder{{Client: "someone"}}}}
		} else {
			f.next++
			f.locks[op.Acquire.Name] = f.next
			a.State = &nodev1.AcquireResult_Granted{Granted: &lockv1.GrantedEvent{Token: f.next, LeaseMs: 10000}}
		}
		r.Result = &nodev1.Response_Acquire{Acquire: a}
	case *nodev1.Request_Release:
		if f.locks[op.Release.Name] != op.Release.Token {
			r.Result = nil
			r.Failure = &lockv1.Failure{Code: int32(codes.FailedPrecondition), Message: "the token is not current",
				Detail: &lockv1.ErrorDetail{Reason: "TOKEN_NOT_CURRENT", Field: "token"}}
		} else {
			delete(f.locks, op.Release.Name)
		}
	case *nodev1.Request_Describe:
		d := &lockv1.DescribeResponse{}
		if t := f.locks[op.Describe.Name]; t != 0 {
			d.Holders = []*lockv1.Holder{{Client: "someone", Token: t}}
		}
		r.Result = &nodev1.Response_Describe{Describe: d}
	}
	return r
}

// start runs a fake node and a gateway over it.
func start(t testing.TB) (*Gateway, *fakeNode) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeNode{regs: map[string]uint64{}, locks: map[string]uint64{}, next: 1000}
	f.m = &placementv1.Map{ClusterId: "00112233445566778899aabbccddeeff", Generation: 1,
		Nodes: []*placementv1.Node{{Id: 1, Name: "n1", Address: lis.Addr().String(), Region: "eu", Zone: "eu-a"}},
		Shards: []*placementv1.Shard{{Id: 0, Region: "eu", Replicas: []*placementv1.Replica{{Id: 1, Node: 1}}},
			{Id: 1, Region: "eu", Owns: []*placementv1.Selector{{HashLast: 1<<64 - 1}}, Replicas: []*placementv1.Replica{{Id: 2, Node: 1}}, Generation: 1}},
		Pins: []*placementv1.Pin{{Prefix: "", Region: "eu"}}, NextNodeId: 2, NextShardId: 2, NextReplicaId: 3}
	srv := grpc.NewServer()
	nodev1.RegisterNodeServiceServer(srv, f)
	placementv1.RegisterPlacementServiceServer(srv, f)
	go srv.Serve(lis)
	t.Cleanup(srv.Stop)
	g, err := New(Config{ClusterKey: []byte("0123456789abcdef"), Seeds: []string{lis.Addr().String()},
		Listen: "127.0.0.1:0", HTTPListen: "127.0.0.1:0", MapPath: t.TempDir() + "/map"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return g, f
}

func dialGateway(t testing.TB, g *Gateway) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient(g.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

func TestStreamAndHTTP(t *testing.T) {
	g, _ := start(t)
	cc := dialGateway(t, g)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	st, err := lockv1.NewLockServiceClient(cc).Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	st.Send(&lockv1.SessionRequest{Ops: []*lockv1.SessionOp{
		{Op: &lockv1.SessionOp_Open{Open: &lockv1.OpenOp{Client: "c"}}},
		{Op: &lockv1.SessionOp_Acquire{Acquire: &lockv1.AcquireOp{Seq: 1, Name: "x"}}},
		{Op: &lockv1.SessionOp_Renew{Renew: &lockv1.RenewOp{Number: 1}}}}})
	var token uint64
	for token == 0 {
		f, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range f.Events {
			token = max(token, e.GetGranted().GetToken())
		}
	}
	// The same lock through HTTP.
	base := "http://" + g.HTTPAddr().String()
	post := func(path, body string) map[string]any {
		resp, err := http.Post(base+"/v1/LockService/"+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		m := map[string]any{}
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatalf("%s: %s", path, b)
		}
		return m
	}
	s := post("OpenSession", `{"client":"curl","ttl_ms":10000}`)["session_id"].(string)
	if a := post("Acquire", fmt.Sprintf(`{"session_id":%q,"name":"x"}`, s)); a["granted"] != false || a["holder"] != "someone" {
		t.Errorf("acquire: %v", a)
	}
	if a := post("Release", fmt.Sprintf(`{"name":"x","token":%d}`, token+1)); a["error"].(map[string]any)["field"] != "token" {
		t.Errorf("release: %v", a)
	}
	if a := post("Release", fmt.Sprintf(`{"name":"x","token":%d}`, token)); len(a) != 0 {
		t.Errorf("release: %v", a)
	}
	if a := post("Acquire", fmt.Sprintf(`{"session_id":%q,"name":"x"}`, s)); a["granted"] != true || a["lease_for_ms"] != 10000.0 {
		t.Errorf("acquire: %v", a)
	}
	if a := post("KeepAlive", fmt.Sprintf(`{"session_id":%q}`, s)); a["renewed"] != true {
		t.Errorf("keep-alive: %v", a)
	}
	if h, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{}); err != nil || h.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v %v", h, err)
	}
	if r, err := placementv1.NewPlacementServiceClient(cc).ClusterStatus(ctx, &placementv1.ClusterStatusRequest{}); err != nil || r.Map == nil {
		t.Errorf("cluster status: %v %v", r, err)
	}
	for _, path := range []string{"/livez", "/readyz", "/metrics"} {
		if resp, err := http.Get(base + path); err != nil || resp.StatusCode != 200 {
			t.Errorf("%s: %v %v", path, resp, err)
		} else {
			resp.Body.Close()
		}
	}
	// Shutdown asks the client to leave and then ends.
	go func() {
		for {
			f, err := st.Recv()
			if err != nil {
				return
			}
			for _, e := range f.Events {
				if e.GetGoAway() != nil {
					st.CloseSend()
				}
			}
		}
	}()
	if err := g.Shutdown(ctx); err != nil {
		t.Errorf("shutdown: %v", err)
	}
}

func TestBadConfigIsReportedAtOnce(t *testing.T) {
	_, err := New(Config{ClusterKey: []byte("short"), Seeds: []string{"nowhere"}})
	if err == nil || !strings.Contains(err.Error(), "cluster key") || !strings.Contains(err.Error(), `seed "nowhere"`) {
		t.Errorf("%v", err)
	}
}

// BenchmarkPairs measures acquire and release over one gateway with a node
// that decides nothing: the cost of the gateway and of two gRPC hops.
func BenchmarkPairs(b *testing.B) {
	g, _ := start(b)
	cc := dialGateway(b, g)
	const workers = 64
	var wg sync.WaitGroup
	per := b.N/workers + 1
	b.ResetTimer()
	for c := range 8 {
		st, err := lockv1.NewLockServiceClient(cc).Session(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		st.Send(&lockv1.SessionRequest{Ops: []*lockv1.SessionOp{{Op: &lockv1.SessionOp_Open{Open: &lockv1.OpenOp{Client: "c"}}}}})
		wg.Go(func() {
			left := per * workers / 8
			seq := uint64(0)
			var ops []*lockv1.SessionOp
			add := func() {
				seq++
				ops = append(ops, &lockv1.SessionOp{Op: &lockv1.SessionOp_Acquire{Acquire: &lockv1.AcquireOp{Seq: seq,
					Name: fmt.Sprintf("bench/client-%d/lock-%030d", c, seq)}}})
			}
			for range workers / 8 {
				add()
			}
			for left > 0 {
				if len(ops) > 0 {
					st.Send(&lockv1.SessionRequest{EchoMs: 0, DoneBelow: 0, Ops: ops})
					ops = nil
				}
				f, err := st.Recv()
				if err != nil {
					b.Error(err)
					return
				}
				for _, e := range f.Events {
					if gr := e.GetGranted(); gr != nil {
						ops = append(ops, &lockv1.SessionOp{Op: &lockv1.SessionOp_Release{Release: &lockv1.ReleaseOp{Seq: gr.Seq,
							Name: fmt.Sprintf("bench/client-%d/lock-%030d", c, gr.Seq), Token: gr.Token}}})
					} else if e.GetReleased() != nil {
						left--
						add()
					}
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
}
