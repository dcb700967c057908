package cli

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fakeCluster answers reading commands as a gateway does, always the same.
type fakeCluster struct {
	lockv1.UnimplementedLockServiceServer
	placementv1.UnimplementedPlacementServiceServer
	empty bool
	fail  error
}

func (f *fakeCluster) lock(name string) *lockv1.DescribeResponse {
	return &lockv1.DescribeResponse{Name: name, Mode: lockv1.Mode_MODE_COUNTED, Limit: 3, Waiters: 1, Shard: 4, DelayedMs: 0,
		Holders: []*lockv1.Holder{
			{Client: "payouts-17", Token: 1876543210987654, Mode: lockv1.Mode_MODE_COUNTED, Permits: 2, HeldForMs: 1840, GrantedUnixMs: 1790000000123},
			{Client: "payouts-18", Token: 1876543210987655, Mode: lockv1.Mode_MODE_COUNTED, Permits: 1, HeldForMs: 40, GrantedUnixMs: 1790000001923},
		},
		Queue: []*lockv1.Waiter{{Client: "<payouts> & more", Mode: lockv1.Mode_MODE_COUNTED, Permits: 2, WaitingMs: 700}}}
}

func (f *fakeCluster) Describe(_ context.Context, r *lockv1.DescribeRequest) (*lockv1.DescribeResponse, error) {
	if f.fail != nil || f.empty {
		return &lockv1.DescribeResponse{Name: r.Name, Shard: 4}, f.fail
	}
	return f.lock(r.Name), nil
}

func (f *fakeCluster) List(_ context.Context, r *lockv1.ListRequest) (*lockv1.ListResponse, error) {
	switch {
	case f.fail != nil || f.empty:
		return &lockv1.ListResponse{}, f.fail
	case r.PageToken == "":
		return &lockv1.ListResponse{Locks: []*lockv1.DescribeResponse{f.lock(r.Prefix + "a")}, NextPageToken: "more"}, nil
	default:
		return &lockv1.ListResponse{Locks: []*lockv1.DescribeResponse{{Name: r.Prefix + "b", Shard: 5, DelayedMs: 900}}}, nil
	}
}

func (f *fakeCluster) ListSessions(context.Context, *lockv1.ListSessionsRequest) (*lockv1.ListSessionsResponse, error) {
	if f.fail != nil || f.empty {
		return &lockv1.ListSessionsResponse{}, f.fail
	}
	return &lockv1.ListSessionsResponse{Truncated: true, Sessions: []*lockv1.SessionInfo{
		{Id: "7f2c910000000000000000000000beef", Client: "payouts-17", TtlMs: 10_000, Holds: 3, Waits: 1, Shards: 2}}}, nil
}

func (f *fakeCluster) ClusterStatus(context.Context, *placementv1.ClusterStatusRequest) (*placementv1.ClusterStatusResponse, error) {
	if f.fail != nil {
		return nil, f.fail
	}
	if f.empty {
		return &placementv1.ClusterStatusResponse{Map: &placementv1.Map{ClusterId: "c1", Generation: 1}}, nil
	}
	replicas := []*placementv1.Replica{{Id: 11, Node: 1}, {Id: 12, Node: 2}}
	return &placementv1.ClusterStatusResponse{
		Map: &placementv1.Map{ClusterId: "c1", Generation: 7,
			Nodes: []*placementv1.Node{
				{Id: 1, Name: "n1", Address: "10.0.0.1:7422", Region: "main", Zone: "a", HttpAddress: "10.0.0.1:7421", GatewayAddress: "10.0.0.1:7420"},
				{Id: 2, Name: "n2", Address: "10.0.0.2:7422", Region: "main", Zone: "b"},
			},
			Shards: []*placementv1.Shard{{Id: 0, Region: "main", Replicas: replicas}, {Id: 1, Region: "main", Replicas: replicas}}},
		Nodes: []*placementv1.NodeStatus{
			{Node: 1, Reachable: true, Version: "v0.1.0", UptimeMs: 60_000, Pid: 4711, DiskBytes: 1 << 20, FsyncP50Us: 600, FsyncP99Us: 2100, Replicas: []*placementv1.ReplicaStatus{
				{Shard: 0, Replica: 11, Role: "LEADER", Term: 3, LeaderNode: 1, CommitIndex: 20, AppliedIndex: 20, FirstIndex: 1, LastIndex: 20},
				{Shard: 1, Replica: 11, Role: "FOLLOWER", Term: 2, CommitIndex: 9, AppliedIndex: 9, FirstIndex: 1, LastIndex: 9}}},
			{Node: 2, Error: "connection refused"},
		}}, nil
}

// serveFake returns the variable by which commands find it.
func serveFake(t *testing.T, f *fakeCluster) []string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	lockv1.RegisterLockServiceServer(s, f)
	placementv1.RegisterPlacementServiceServer(s, f)
	go s.Serve(lis)
	t.Cleanup(s.Stop)
	return []string{"MORTISE_ENDPOINTS=" + lis.Addr().String()}
}

// TestReading compares what reading commands print with testdata/reading: the
// JSON is a contract (fields may be added, none may change its meaning or go),
// the tables are for people. -rewrite writes them anew.
func TestReading(t *testing.T) {
	full, empty := serveFake(t, &fakeCluster{}), serveFake(t, &fakeCluster{empty: true})
	for _, c := range []struct {
		line string
		kind Kind // of the error when there is something to show; empty: with nothing
		none Kind
	}{
		{"lock ls invoice/", Failed, Failed},
		{"lock show invoice/7", Failed, NotFound},
		{"session ls", Failed, Failed},
		{"cluster status", Unreachable, Failed},
		{"node ls", Failed, Failed},
		{"shard ls", Failed, Failed},
	} {
		for _, output := range []string{"table", "json"} {
			for _, amount := range []string{"full", "empty"} {
				name := strings.NewReplacer(" ", "-", "/", "").Replace(c.line) + "-" + amount + "." + output
				t.Run(name, func(t *testing.T) {
					env, kind := full, c.kind
					if amount == "empty" {
						env, kind = empty, c.none
					}
					s := run(t, env, append(strings.Fields(c.line), "-o", output)...)
					if kind == Failed && s.err != nil || kind != Failed && (s.err == nil || s.err.Kind != kind) {
						t.Errorf("got %v, want kind %d", s.err, kind)
					}
					if output == "json" && !json.Valid([]byte(s.out)) {
						t.Errorf("not JSON: %s", s.out)
					}
					if output == "json" && strings.Contains(s.out, "null") {
						t.Errorf("an empty list must be [], not null: %s", s.out)
					}
					golden(t, filepath.Join("testdata", "reading", name), s.out)
				})
			}
		}
	}
}

// golden compares with a file, or writes it with -rewrite.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestVersionJSON(t *testing.T) {
	s := run(t, nil, "version", "-o", "json")
	var got map[string]any
	if err := json.Unmarshal([]byte(s.out), &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"version", "revision", "modified", "go", "platform"} {
		if _, ok := got[key]; !ok || len(got) != 5 {
			t.Errorf("%s is missing, or there is more: %s", key, s.out)
		}
	}
}

// What a gateway refuses becomes a kind of failure.
func TestRefusals(t *testing.T) {
	for code, want := range map[codes.Code]Kind{
		codes.Unavailable: Unreachable, codes.DeadlineExceeded: Unreachable, codes.NotFound: NotFound, codes.PermissionDenied: Denied,
		codes.Unauthenticated: Denied, codes.ResourceExhausted: Denied, codes.InvalidArgument: Usage, codes.Internal: Failed, codes.FailedPrecondition: Failed,
	} {
		env := serveFake(t, &fakeCluster{fail: status.Error(code, "because of this")})
		for _, line := range []string{"lock ls", "lock show x", "session ls", "cluster status", "node ls", "shard ls"} {
			s := run(t, env, strings.Fields(line)...)
			if s.err == nil || s.err.Kind != want || !strings.Contains(s.err.Error(), "because of this") || s.err.Next == "" {
				t.Errorf("%s with %v: got %v, want kind %d", line, code, s.err, want)
			}
			if s.out != "" {
				t.Errorf("%s with %v printed %q", line, code, s.out)
			}
		}
	}
}
