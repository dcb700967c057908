package transport

import (
	"slices"

	"github.com/mortise-lock/mortise/node/worker"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// check refuses a stream that is not meant for this node (T1).
func (t *Transport) check(cluster string, from, to uint64) error {
	var err error
	switch {
	case cluster != t.cfg.ClusterID:
		err = status.Errorf(codes.FailedPrecondition, "this node belongs to cluster %s, not %s", t.cfg.ClusterID, cluster)
	case worker.NodeID(to) != t.cfg.Node:
		err = status.Errorf(codes.FailedPrecondition, "this is node %d, not %d", t.cfg.Node, to)
	case from == 0 || worker.NodeID(from) == t.cfg.Node:
		err = status.Errorf(codes.InvalidArgument, "from_node %d can't be another node", from)
	}
	if err != nil {
		t.Stats.Refused.Add(1)
		t.log.Warn("refused a stream of another node", "cluster", cluster, "from", from, "to", to, "error", err)
	}
	return err
}

// ServeRaft serves PeerService.Raft.
func (t *Transport) ServeRaft(s grpc.BidiStreamingServer[nodev1.RaftRequest, nodev1.RaftResponse]) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	h := first.GetHello()
	if h == nil {
		return status.Error(codes.InvalidArgument, "the first frame must be a hello")
	}
	if err := t.check(h.ClusterId, h.FromNode, h.ToNode); err != nil {
		return err
	}
	if !slices.Contains(classNames[:], h.Class) {
		return status.Errorf(codes.InvalidArgument, "class %q is unknown", h.Class)
	}
	if err := s.Send(&nodev1.RaftResponse{Accepted: true}); err != nil {
		return err
	}
	from := worker.NodeID(h.FromNode)
	for {
		f, err := s.Recv()
		if err != nil {
			return err
		}
		batch, err := decodeMessages(nil, f.Messages, from)
		if err != nil {
			t.log.Warn("malformed raft message", "peer", h.FromNode, "bytes", len(f.Messages))
			return status.Error(codes.InvalidArgument, err.Error())
		}
		batch = slices.DeleteFunc(batch, func(m worker.RaftMessage) bool {
			// Snapshots come by ServeSnapshot, with their content.
			return m.Msg.GetType() == raftpb.MsgSnap
		})
		t.Stats.Received.Add(uint64(len(batch)))
		t.cfg.Deliver(batch)
	}
}
