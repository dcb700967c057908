package transport

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mortise-lock/mortise/node/worker"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Two nodes that should not talk: neither does, each says once a minute at
// most what is wrong, and neither asks more than a few times a minute.
func TestRefusalsDontSpin(t *testing.T) {
	for name, c := range map[string]struct {
		change func(a, b *node)
		says   string
	}{
		"another cluster": {func(a, b *node) { b.cluster = "c2" }, "gossip.join"},
		"another node":    {func(a, b *node) { b.id = 7 }, "is at this address"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, net *network, a, b *node) {
				c.change(a, b)
				a.start()
				b.start()
				if err := a.tr.SetPeer(2, b.addr); err != nil {
					t.Fatal(err)
				}
				settle(10 * time.Minute)
				refusals := b.tr.Stats.Refused.Load()
				if most := uint64(2*10*time.Minute/refusedMax) + 20; refusals == 0 || refusals > most {
					t.Errorf("%d refusals in 10 minutes, want up to %d", refusals, most)
				}
				for n, what := range map[*node]string{a: "a peer refuses our streams", b: "refused a stream"} {
					if lines := n.logs.count(what); lines == 0 || lines > 11 {
						t.Errorf("node %d logged %q %d times in 10 minutes", n.id, what, lines)
					}
					if n.logs.count(c.says) == 0 {
						t.Errorf("node %d did not say %q:\n%.500s", n.id, c.says, n.logs.b.String())
					}
				}
				if got := b.take(); len(got) != 0 {
					t.Errorf("%d messages were taken", len(got))
				}
			})
		})
	}
}

// A peer that was put right opens its own streams; ours follow at once, not
// when the pause after a refusal is over.
func TestRefusedPeerIsPutRight(t *testing.T) {
	inBubble(t, func(t *testing.T, net *network, a, b *node) {
		b.cluster = "c2"
		pair(a, b)
		settle(time.Minute)
		b.stop()
		b.cluster = "c1"
		b.start()
		b.peer(a)
		settle(200 * time.Millisecond)
		exchange(t, a, b)
	})
}

func TestHello(t *testing.T) {
	good := func() *nodev1.RaftRequest {
		return &nodev1.RaftRequest{Hello: &nodev1.RaftHello{ClusterId: "c1", FromNode: 1, ToNode: 2, Class: "CONTROL"}}
	}
	with := func(f func(h *nodev1.RaftHello)) *nodev1.RaftRequest { q := good(); f(q.Hello); return q }
	header := func(values ...string) metadata.MD { return metadata.MD{versionHeader: values} }
	for name, c := range map[string]struct {
		md   metadata.MD
		q    *nodev1.RaftRequest
		code codes.Code
		says string
	}{
		"good":               {header("1"), good(), codes.OK, ""},
		"before versions":    {nil, good(), codes.OK, ""},
		"newer version":      {header(strconv.Itoa(wireVersion + 1)), good(), codes.FailedPrecondition, "upgrade node 2"},
		"newer, not decoded": {header("4000000000"), good(), codes.FailedPrecondition, "upgrade node 2"},
		"too old":            {header("0"), good(), codes.FailedPrecondition, "upgrade node 1"},
		"no version":         {header("new"), good(), codes.InvalidArgument, versionHeader},
		"two versions":       {header("1", "2"), good(), codes.InvalidArgument, versionHeader},
		"foreign cluster":    {header("1"), with(func(h *nodev1.RaftHello) { h.ClusterId = "c9" }), codes.FailedPrecondition, "empty data directory"},
		"wrong node":         {header("1"), with(func(h *nodev1.RaftHello) { h.ToNode = 3 }), codes.FailedPrecondition, "advertise different addresses"},
		"copy of itself":     {header("1"), with(func(h *nodev1.RaftHello) { h.FromNode = 2 }), codes.FailedPrecondition, "two processes"},
		"from nobody":        {header("1"), with(func(h *nodev1.RaftHello) { h.FromNode = 0 }), codes.InvalidArgument, "from_node"},
		"unknown class":      {header("1"), with(func(h *nodev1.RaftHello) { h.Class = "BULK" }), codes.InvalidArgument, `"APPEND"`},
		"no hello":           {header("1"), &nodev1.RaftRequest{}, codes.InvalidArgument, "must be a hello"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, net *network, a, b *node) {
				b.start()
				conn, err := grpc.NewClient("passthrough:///"+b.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(net.dial))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				s, err := nodev1.NewPeerServiceClient(conn).Raft(metadata.NewOutgoingContext(context.Background(), c.md))
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Send(c.q); err != nil {
					t.Fatal(err)
				}
				_, err = s.Recv()
				if status.Code(err) != c.code || err != nil && !strings.Contains(err.Error(), c.says) {
					t.Errorf("answered %v, want %v with %q", err, c.code, c.says)
				}
			})
		})
	}
}

// A stream that is accepted and breaks at once, over and over, is not reopened
// over and over.
func TestMalformedFramesDontSpin(t *testing.T) {
	inBubble(t, func(t *testing.T, net *network, a, b *node) {
		pair(a, b)
		bad := control(b, 1)
		bad.Msg.Context = make([]byte, maxContext+1)
		before := b.tr.Stats.Malformed.Load()
		for range 3000 {
			a.tr.Send([]worker.RaftMessage{bad})
			settle(10 * time.Millisecond)
		}
		if n := b.tr.Stats.Malformed.Load() - before; n == 0 || n > 40 {
			t.Errorf("%d malformed frames in 30 s", n)
		}
		if n := b.logs.count("malformed"); n == 0 || n > 3 {
			t.Errorf("%d lines about it", n)
		}
		settle(20 * time.Second)
		exchange(t, a, b)
	})
}

// Only the stream that was accepted last delivers.
func TestLateFramesOfBrokenStream(t *testing.T) {
	inBubble(t, func(t *testing.T, net *network, a, b *node) {
		b.start()
		open := func() (grpc.BidiStreamingClient[nodev1.RaftRequest, nodev1.RaftResponse], func()) {
			conn, err := grpc.NewClient("passthrough:///"+b.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(net.dial))
			if err != nil {
				t.Fatal(err)
			}
			s, err := nodev1.NewPeerServiceClient(conn).Raft(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Send(&nodev1.RaftRequest{Hello: &nodev1.RaftHello{ClusterId: "c1", FromNode: 1, ToNode: 2, Class: "CONTROL"}}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Recv(); err != nil {
				t.Fatal(err)
			}
			return s, func() { _ = conn.Close() }
		}
		send := func(s grpc.BidiStreamingClient[nodev1.RaftRequest, nodev1.RaftResponse], index uint64) {
			m := control(b, index)
			if err := s.Send(&nodev1.RaftRequest{Messages: appendMessage(nil, &m)}); err != nil {
				t.Fatal(err)
			}
			settle(time.Millisecond)
		}
		first, end := open()
		defer end()
		send(first, 1)
		second, end := open()
		defer end()
		send(second, 2)
		send(first, 3)
		send(second, 4)
		if _, err := first.Recv(); status.Code(err) != codes.Aborted {
			t.Errorf("the first stream ended with %v", err)
		}
		var got []uint64
		for _, m := range b.take() {
			got = append(got, m.Msg.GetIndex())
		}
		if len(got) != 3 || got[0] != 1 || got[1] != 2 || got[2] != 4 {
			t.Errorf("delivered %v, want 1, 2, 4", got)
		}
	})
}
