package transport

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/mortise-lock/mortise/node/worker"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	chunkSize = 256 << 10
	// snapshotRate caps one snapshot's bytes per second, so that it does not
	// crowd out the syncs of the log.
	snapshotRate = 32 << 20
	// snapshotPatience is the longest a snapshot may take beyond what its size
	// needs at a sixteenth of the rate.
	snapshotPatience = 30 * time.Second
	maxSnapshotBytes = 64 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errNoPeer = errors.New("the peer is not known")

// sendSnapshot streams a snapshot on a goroutine of its own (T3).
func (t *Transport) sendSnapshot(p *peer, m worker.RaftMessage) {
	done := worker.SnapshotSent{Shard: m.Shard, Replica: m.Msg.GetTo()}
	if p == nil {
		done.Err = errNoPeer
		t.cfg.SnapshotSent(done)
		return
	}
	t.work.Go(func() {
		select {
		case t.outgoing <- struct{}{}:
			done.Err = p.streamSnapshot(&m)
			<-t.outgoing
		case <-p.ctx.Done():
			done.Err = p.ctx.Err()
		}
		if done.Err != nil {
			t.Stats.SnapshotsFailed.Add(1)
		} else {
			t.Stats.SnapshotsSent.Add(1)
		}
		t.cfg.SnapshotSent(done)
	})
}

func (p *peer) streamSnapshot(m *worker.RaftMessage) error {
	f, size, err := p.t.cfg.Files.Open(m.SnapshotFile)
	if err != nil {
		return err
	}
	defer f.Close()
	limit := snapshotPatience + time.Duration(size)*time.Second/(snapshotRate/16)
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	s, err := nodev1.NewPeerServiceClient(p.conns[classes]).Snapshot(ctx)
	if err != nil {
		return err
	}
	err = s.Send(&nodev1.SnapshotRequest{Header: &nodev1.SnapshotHeader{ClusterId: p.t.cfg.ClusterID,
		FromNode: uint64(p.t.cfg.Node), ToNode: uint64(p.node), Shard: uint32(m.Shard), Message: appendMessage(nil, m), Size: uint64(size)}})
	buf := make([]byte, chunkSize)
	for err == nil {
		began := time.Now()
		var n int
		if n, err = io.ReadFull(f, buf); n > 0 {
			if serr := s.Send(&nodev1.SnapshotRequest{Chunk: buf[:n], Crc: crc32.Checksum(buf[:n], castagnoli)}); serr != nil {
				err = serr
			}
			p.t.Stats.SnapshotBytesSent.Add(uint64(n))
		}
		if pause := time.Second*time.Duration(n)/snapshotRate - time.Since(began); pause > 0 && err == nil {
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
	if err != io.EOF && err != io.ErrUnexpectedEOF {
		// The receiver's own words are in the answer; Send says just EOF.
		if _, rerr := s.CloseAndRecv(); rerr != nil {
			err = rerr
		}
		return err
	}
	// A Send that failed looks like the end of the file; the answer tells.
	_, err = s.CloseAndRecv()
	return err
}

// ServeSnapshot serves PeerService.Snapshot: the content goes to a file, is
// verified, made durable and installed.
func (t *Transport) ServeSnapshot(s grpc.ClientStreamingServer[nodev1.SnapshotRequest, nodev1.SnapshotResponse]) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	h := first.GetHeader()
	if h == nil {
		return status.Error(codes.InvalidArgument, "the first frame must be a header")
	}
	if err := t.check(h.ClusterId, h.FromNode, h.ToNode); err != nil {
		return err
	}
	select {
	case t.incoming <- struct{}{}:
		defer func() { <-t.incoming }()
	default:
		return status.Errorf(codes.ResourceExhausted, "this node receives %d snapshots already", maxSnapshots)
	}
	if err := t.receive(s, h); err != nil {
		t.Stats.SnapshotsFailed.Add(1)
		t.log.Warn("snapshot could not be received", "shard", h.Shard, "from", h.FromNode, "error", err)
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
	if h.Size > maxSnapshotBytes {
		return status.Errorf(codes.InvalidArgument, "size %d is above %d", h.Size, uint64(maxSnapshotBytes))
	}
	m := messages[0]
	// A name of its own: an earlier try may still be in use.
	index := m.Msg.GetSnapshot().GetMetadata().GetIndex()
	m.SnapshotFile = fmt.Sprintf("%d-%d-%d-in%d-%d.snap", m.Shard, m.Msg.GetTo(), index, time.Now().UnixNano(), t.received.Add(1))
	f, err := t.cfg.Files.Create(m.SnapshotFile, m.Shard, index)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	defer f.Abort()
	size := uint64(0)
	for {
		c, err := s.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if crc32.Checksum(c.Chunk, castagnoli) != c.Crc {
			return status.Errorf(codes.DataLoss, "chunk at %d is damaged", size)
		}
		if size += uint64(len(c.Chunk)); size > h.Size {
			break
		}
		t.Stats.SnapshotBytesReceived.Add(uint64(len(c.Chunk)))
		if _, err := f.Write(c.Chunk); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
	}
	if size != h.Size {
		return status.Errorf(codes.DataLoss, "%d bytes came, %d were announced", size, h.Size)
	}
	if err := f.Commit(); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if err := t.cfg.Install(m); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}
