package transport

import (
	"fmt"
	"slices"
	"sync"

	"github.com/mortise-lock/mortise/node/worker"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// inlet is where one peer's messages of one class come in. Only the stream that
// was accepted last delivers: a broken stream's last frames, still buffered
// here, must not come after those of its successor (T2).
type inlet struct {
	mu      sync.Mutex
	current uint64 // number of the stream accepted last
}

func (i *inlet) open() uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.current++
	return i.current
}

// deliver calls f unless a later stream took over.
func (i *inlet) deliver(stream uint64, f func()) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.current == stream {
		f()
	}
	return i.current == stream
}

// inlets by class, of one peer.
type inlets [classes]inlet

func (t *Transport) inlet(from worker.NodeID, class int) *inlet {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.inlets[from]
	if in == nil {
		in = new(inlets)
		t.inlets[from] = in
	}
	return &in[class]
}

// serving registers a call that is being served, which Close waits for; false
// after Close.
func (t *Transport) serving() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		return false
	}
	t.work.Add(1)
	return true
}

var errClosing = status.Error(codes.Unavailable, "this node is stopping")

// ServeRaft serves PeerService.Raft.
func (t *Transport) ServeRaft(s grpc.BidiStreamingServer[nodev1.RaftRequest, nodev1.RaftResponse]) error {
	if !t.serving() {
		return errClosing
	}
	defer t.work.Done()
	first, err := s.Recv()
	if err != nil {
		return err
	}
	h := first.GetHello()
	if h == nil {
		return status.Error(codes.InvalidArgument, "the first frame must be a hello")
	}
	if err := t.check(s.Context(), h.ClusterId, h.FromNode, h.ToNode); err != nil {
		return err
	}
	class := slices.Index(classNames[:], h.Class)
	if class < 0 {
		return status.Errorf(codes.InvalidArgument, "class %.64q is unknown: want one of %q", h.Class, classNames)
	}
	from := worker.NodeID(h.FromNode)
	in := t.inlet(from, class)
	number := in.open()
	if err := s.Send(&nodev1.RaftResponse{Accepted: true}); err != nil {
		return err
	}
	t.retry(from) // it runs, so our streams to it need not wait any longer
	for {
		f, err := s.Recv()
		if err != nil {
			return err
		}
		batch, err := decodeMessages(nil, f.Messages, from)
		if err != nil {
			t.Stats.Malformed.Add(1)
			if t.refusals.first(fmt.Sprint("malformed ", h.FromNode, h.Class)) {
				t.log.Warn("malformed raft message", "peer", h.FromNode, "class", h.Class, "bytes", len(f.Messages))
			}
			return status.Error(codes.InvalidArgument, err.Error())
		}
		batch = slices.DeleteFunc(batch, func(m worker.RaftMessage) bool {
			// Snapshots come by ServeSnapshot, with their content.
			return m.Msg.GetType() == raftpb.MsgSnap
		})
		if !in.deliver(number, func() { t.cfg.Deliver(batch) }) {
			return status.Errorf(codes.Aborted, "node %d opened a newer %s stream", h.FromNode, h.Class)
		}
		t.Stats.Received.Add(uint64(len(batch)))
	}
}
