package transport

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/mortise-lock/mortise/node/worker"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Versions of what two nodes say to each other. The sender's is in a header
// that precedes the first frame, so that a receiver can refuse a version whose
// frames it could not even decode. A stream without the header speaks 1.
const (
	wireVersion   = 1
	wireOldest    = 1 // that this program still understands
	versionHeader = "mortise-wire-version"
)

// outgoingContext adds to ctx what opens a stream.
func outgoingContext(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, versionHeader, strconv.Itoa(wireVersion))
}

// check refuses a stream that is not meant for this node (T1) or that it would
// not understand. The message is for whoever runs the two nodes.
func (t *Transport) check(ctx context.Context, cluster string, from, to uint64) error {
	err := t.checkVersion(ctx, from)
	switch {
	case err != nil:
	case cluster != t.cfg.ClusterID:
		err = status.Errorf(codes.FailedPrecondition, "node %d belongs to cluster %.64q, but the node at this address to cluster %q: "+
			"check gossip.join and the advertised addresses of both; to move a node to another cluster, start it with an empty data directory", from, cluster, t.cfg.ClusterID)
	case worker.NodeID(to) != t.cfg.Node:
		err = status.Errorf(codes.FailedPrecondition, "node %d looks for node %d, but node %d is at this address: "+
			"check that the two advertise different addresses; if node %d moved, it is found again once it runs and gossips", from, to, t.cfg.Node, to)
	case worker.NodeID(from) == t.cfg.Node:
		err = status.Errorf(codes.FailedPrecondition, "two processes run as node %d of cluster %q: "+
			"stop the one whose data directory is the copy and start it with an empty one", from, cluster)
	case from == 0:
		err = status.Error(codes.InvalidArgument, "from_node is 0: it must be the id of a node")
	}
	if err != nil {
		t.Stats.Refused.Add(1)
		if t.refusals.first(fmt.Sprint(from, " ", err)) {
			t.log.Warn("refused a stream of another node", "cluster", cluster, "from", from, "to", to, "error", err)
		}
	}
	return err
}

func (t *Transport) checkVersion(ctx context.Context, from uint64) error {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get(versionHeader)
	if len(values) == 0 {
		return nil
	}
	v, err := strconv.ParseUint(values[0], 10, 32)
	switch {
	case err != nil || len(values) > 1:
		return status.Errorf(codes.InvalidArgument, "header %s must be one whole number", versionHeader)
	case v > wireVersion:
		return status.Errorf(codes.FailedPrecondition, "node %d speaks version %d of the protocol between nodes, node %d only up to %d: upgrade node %d",
			from, v, t.cfg.Node, wireVersion, t.cfg.Node)
	case v < wireOldest:
		return status.Errorf(codes.FailedPrecondition, "node %d speaks version %d of the protocol between nodes, node %d no longer below %d: upgrade node %d",
			from, v, t.cfg.Node, wireOldest, from)
	}
	return nil
}

// refused tells that trying again soon is of no use: somebody has to do
// something.
func refused(err error) bool {
	c := status.Code(err)
	return c == codes.FailedPrecondition || c == codes.InvalidArgument || c == codes.Unimplemented
}

// Logging of what repeats.
const (
	repeatAfter = time.Minute
	maxRepeats  = 256
)

// repeats remembers what was logged within the last minute.
type repeats struct {
	mu   sync.Mutex
	said map[string]time.Time
}

// first tells whether text was not said within the last minute, and remembers
// it.
func (r *repeats) first(text string) bool {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.said[text]; ok && now.Sub(at) < repeatAfter {
		return false
	}
	if r.said == nil || len(r.said) >= maxRepeats {
		r.said = map[string]time.Time{}
	}
	r.said[text] = now
	return true
}
