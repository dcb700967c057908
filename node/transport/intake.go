package transport

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"time"

	"github.com/mortise-lock/mortise/node/worker"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// slotPatience is how long an inbound snapshot waits for a slot; what it sends
// meanwhile stops at the stream's window.
const slotPatience = 10 * time.Second

// incoming bounds the snapshots being received.
type incoming struct {
	slots chan struct{}

	mu     sync.Mutex
	shards map[shard.ID]bool
	// unwritten bytes were announced and have not come yet.
	unwritten uint64
}

func (in *incoming) init() {
	in.slots, in.shards = make(chan struct{}, maxSnapshots), map[shard.ID]bool{}
}

// slot waits for a slot; release must follow if there is no error.
func (in *incoming) slot(ctx context.Context, s shard.ID) (release func(), err error) {
	in.mu.Lock()
	busy := in.shards[s]
	in.shards[s] = true
	in.mu.Unlock()
	if busy {
		// The one in progress ends soon or is given up; then raft tries again.
		return nil, status.Errorf(codes.ResourceExhausted, "this node receives a snapshot of shard %d already", s)
	}
	free := func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		delete(in.shards, s)
	}
	timer := time.NewTimer(slotPatience)
	defer timer.Stop()
	select {
	case in.slots <- struct{}{}:
		return func() { free(); <-in.slots }, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = status.Errorf(codes.ResourceExhausted, "this node receives %d snapshots already", maxSnapshots)
	}
	free()
	return nil, err
}

// reserve takes size bytes of the room there is.
func (in *incoming) reserve(f Files, size uint64) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	room, err := f.Room()
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if size > room || in.unwritten > room-size {
		return status.Errorf(codes.ResourceExhausted, "the snapshot has %d bytes, but this node has room for %d, of which other snapshots need %d: free disk space",
			size, room, in.unwritten)
	}
	in.unwritten += size
	return nil
}

func (in *incoming) written(n uint64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.unwritten -= n
}

// ServeSnapshot serves PeerService.Snapshot: the content goes to a file, is
// verified, made durable and installed.
func (t *Transport) ServeSnapshot(s grpc.ClientStreamingServer[nodev1.SnapshotRequest, nodev1.SnapshotResponse]) error {
	if !t.serving() {
		return errClosing
	}
	defer t.work.Done()
	first, err := s.Recv()
	if err != nil {
		return err
	}
	h := first.GetHeader()
	if h == nil {
		return status.Error(codes.InvalidArgument, "the first frame must be a header")
	}
	if err := t.check(s.Context(), h.ClusterId, h.FromNode, h.ToNode); err != nil {
		return err
	}
	if err := t.receive(s, h); err != nil {
		t.Stats.SnapshotsFailed.Add(1)
		if t.refusals.first(fmt.Sprint(h.Shard, " ", h.FromNode, " ", status.Code(err))) {
			t.log.Warn("snapshot could not be received", "shard", h.Shard, "from", h.FromNode, "error", err)
		}
		return err
	}
	t.Stats.SnapshotsReceived.Add(1)
	return s.SendAndClose(&nodev1.SnapshotResponse{})
}

func (t *Transport) receive(s grpc.ClientStreamingServer[nodev1.SnapshotRequest, nodev1.SnapshotResponse], h *nodev1.SnapshotHeader) error {
	messages, err := decodeMessages(nil, h.Message, worker.NodeID(h.FromNode))
	if err != nil || len(messages) != 1 || messages[0].Msg.GetType() != raftpb.MsgSnap || uint32(messages[0].Shard) != h.Shard {
		return status.Error(codes.InvalidArgument, "the header does not hold the MsgSnap of its shard")
	}
	m := messages[0]
	release, err := t.incoming.slot(s.Context(), m.Shard)
	if err != nil {
		return err
	}
	defer release()
	if err := t.incoming.reserve(t.cfg.Files, h.Size); err != nil {
		return err
	}
	left := h.Size
	defer func() { t.incoming.written(left) }()
	// A name of its own: an earlier try may still be in use.
	index := m.Msg.GetSnapshot().GetMetadata().GetIndex()
	m.SnapshotFile = fmt.Sprintf("%d-%d-%d-in%d-%d.snap", m.Shard, m.Msg.GetTo(), index, time.Now().UnixNano(), t.received.Add(1))
	f, err := t.cfg.Files.Create(s.Context(), m.SnapshotFile, m.Shard, index)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	defer f.Abort()
	for {
		c, err := s.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if crc32.Checksum(c.Chunk, castagnoli) != c.Crc {
			return status.Errorf(codes.DataLoss, "chunk at %d is damaged", h.Size-left)
		}
		n := uint64(len(c.Chunk))
		if n > left {
			return status.Errorf(codes.DataLoss, "more came than the %d bytes that were announced", h.Size)
		}
		if n == 0 {
			return status.Errorf(codes.InvalidArgument, "chunk at %d is empty", h.Size-left)
		}
		if _, err := f.Write(c.Chunk); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		left -= n
		t.incoming.written(n)
		t.Stats.SnapshotBytesReceived.Add(n)
	}
	if left != 0 {
		return status.Errorf(codes.DataLoss, "%d bytes came, %d were announced", h.Size-left, h.Size)
	}
	if err := f.Commit(); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if err := t.cfg.Install(m); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}
