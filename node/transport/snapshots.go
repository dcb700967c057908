package transport

import (
	"context"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mortise-lock/mortise/node/worker"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	chunkSize = 256 << 10
	// maxSnapshots are sent at once, and as many received; one per peer.
	maxSnapshots = 2
	// snapshotRate caps all outbound snapshots together, in bytes per second: a
	// quarter of a 1 Gbit/s link, so that appends keep most of it. The receiver
	// writes no faster than it comes.
	snapshotRate  = 32 << 20
	snapshotBurst = 4 * chunkSize
	// snapshotPatience is the longest a snapshot may take beyond what its size
	// needs at a sixteenth of the rate.
	snapshotPatience = 30 * time.Second
	// snapshotStall ends a snapshot of which the peer takes no more.
	snapshotStall = 20 * time.Second
	// A failed snapshot is reported, and so tried again, after a pause that
	// doubles with each further failure.
	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Second
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	errNoPeer  = errors.New("the peer is not known")
	errClosed  = errors.New("the transport is closed")
	errSlow    = errors.New("the snapshot took longer than its size allows")
	errStalled = errors.New("the peer takes no more of the snapshot")
)

// failures counts the failed snapshots in a row, by shard.
type failures struct {
	mu  sync.Mutex
	run map[shard.ID]int
}

// note returns how long to wait before the failure is told: between half of
// the present pause and all of it.
func (f *failures) note(s shard.ID, failed bool) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !failed {
		delete(f.run, s)
		return 0
	}
	if f.run == nil {
		f.run = map[shard.ID]int{}
	}
	pause := min(retryMin<<min(f.run[s], 10), retryMax)
	f.run[s]++
	return pause/2 + rand.N(pause/2)
}

// sendSnapshot streams a snapshot on a goroutine of its own (T3).
func (t *Transport) sendSnapshot(p *peer, m worker.RaftMessage) {
	done := worker.SnapshotSent{Shard: m.Shard, Replica: m.Msg.GetTo(), Err: errNoPeer}
	if p == nil {
		t.Stats.SnapshotsFailed.Add(1)
		t.cfg.SnapshotSent(done)
		return
	}
	if !t.serving() {
		done.Err = errClosed
		t.cfg.SnapshotSent(done)
		return
	}
	go func() {
		defer t.work.Done()
		if done.Err = p.slots(&m); done.Err != nil {
			t.Stats.SnapshotsFailed.Add(1)
		} else {
			t.Stats.SnapshotsSent.Add(1)
		}
		if pause := p.failures.note(m.Shard, done.Err != nil); pause > 0 {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-p.ctx.Done():
			}
			timer.Stop()
		}
		t.cfg.SnapshotSent(done)
	}()
}

// slots waits for its turn, first among the snapshots to the peer.
func (p *peer) slots(m *worker.RaftMessage) error {
	for _, slot := range []chan struct{}{p.snapshot, p.t.outgoing} {
		select {
		case slot <- struct{}{}:
			defer func() { <-slot }()
		case <-p.ctx.Done():
			return p.ctx.Err()
		}
	}
	return p.streamSnapshot(m)
}

func (p *peer) streamSnapshot(m *worker.RaftMessage) error {
	f, size, err := p.t.cfg.Files.Open(m.SnapshotFile)
	if err != nil {
		return err
	}
	defer f.Close()
	limit := snapshotPatience + time.Duration(size)*time.Second/(snapshotRate/16)
	ctx, stop := context.WithTimeoutCause(p.ctx, limit, errSlow)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(snapshotStall, func() { cancel(errStalled) })
	defer stall.Stop()
	s, err := nodev1.NewPeerServiceClient(p.conns[classes]).Snapshot(outgoingContext(ctx))
	if err != nil {
		return because(ctx, err)
	}
	q := &nodev1.SnapshotRequest{Header: &nodev1.SnapshotHeader{ClusterId: p.t.cfg.ClusterID,
		FromNode: uint64(p.t.cfg.Node), ToNode: uint64(p.node), Shard: uint32(m.Shard), Message: appendMessage(nil, m), Size: uint64(size)}}
	buf := make([]byte, chunkSize)
	for left := size; ; {
		if s.Send(q) != nil {
			break // the answer says why
		}
		stall.Reset(snapshotStall)
		if left == 0 {
			break
		}
		chunk := buf[:min(left, chunkSize)]
		if _, err := io.ReadFull(f, chunk); err != nil {
			// Not to be mistaken for the end of the content: the stream is cancelled.
			return err
		}
		if err := p.t.sendPace.Wait(ctx, len(chunk)); err != nil {
			return because(ctx, err)
		}
		left -= int64(len(chunk))
		p.t.Stats.SnapshotBytesSent.Add(uint64(len(chunk)))
		q = &nodev1.SnapshotRequest{Chunk: chunk, Crc: crc32.Checksum(chunk, castagnoli)}
	}
	// The limit by size alone bounds the checking and restoring that follow.
	stall.Stop()
	_, err = s.CloseAndRecv()
	return because(ctx, err)
}

// because returns why a call failed: ctx's cause if it ended the call.
func because(ctx context.Context, err error) error {
	if c := status.Code(err); err != nil && ctx.Err() != nil && (c == codes.Canceled || c == codes.DeadlineExceeded || c == codes.Unknown) {
		return context.Cause(ctx)
	}
	return err
}
