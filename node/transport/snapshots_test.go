package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/mortise-lock/mortise/node/worker"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	snapIndex = 300
	// The last chunk is small, and later than the first that has to wait for the
	// pacer, so that what happens at 99% happens before it is sent.
	snapSize = snapshotBurst + chunkSize + 12345
)

func fileName(s shard.ID) string { return fmt.Sprintf("%d-7-%d.snap", s, snapIndex) }

func pattern(size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // never fails
	return b
}

// put writes a snapshot of a shard into a node's folder.
func put(t *testing.T, n *node, s shard.ID, size int) {
	t.Helper()
	w, err := n.dir.Create(fileName(s), s, snapIndex)
	if err != nil {
		t.Fatal(err)
	}
	// In pieces that are buffered: a vfs.File may change what it is handed.
	for p := range slices.Chunk(pattern(size), 32<<10) {
		if _, err := w.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Commit(); err != nil {
		t.Fatal(err)
	}
}

func snapshotOf(s shard.ID, to *node) worker.RaftMessage {
	m := message(raftpb.MsgSnap)
	m.Snapshot = &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: new(uint64(snapIndex)), Term: new(uint64(11)),
		ConfState: &raftpb.ConfState{Voters: []uint64{1, 2, 3}}}}
	return worker.RaftMessage{Shard: s, Peer: to.id, Msg: m, SnapshotFile: fileName(s)}
}

// content checks that a node installed exactly one snapshot of a shard, whole.
func content(t *testing.T, n *node, s shard.ID, size int) {
	t.Helper()
	var file string
	for _, m := range n.installs() {
		if m.Shard == s && file != "" {
			t.Errorf("shard %d was installed twice", s)
		} else if m.Shard == s {
			file = m.SnapshotFile
		}
	}
	if file == "" {
		t.Errorf("shard %d was not installed", s)
		return
	}
	r, err := n.dir.Open(file)
	if err != nil {
		t.Error(err)
		return
	}
	defer r.Close()
	if b, err := io.ReadAll(r); err != nil || !bytes.Equal(b, pattern(size)) {
		t.Errorf("%s has %d bytes, %v", file, len(b), err)
	}
}

// watched calls at once after a share of the content was written.
type watched struct {
	File
	left int
	at   func()
}

func (w *watched) Write(b []byte) (int, error) {
	n, err := w.File.Write(b)
	if w.left -= n; w.left <= 0 && w.at != nil {
		w.at()
		w.at = nil
	}
	return n, err
}

// spoilt changes one byte of what is read.
type spoilt struct {
	io.ReadCloser
	at int
}

func (s *spoilt) Read(b []byte) (int, error) {
	n, err := s.ReadCloser.Read(b)
	if s.at >= 0 && s.at < n {
		b[s.at] ^= 0x40
	}
	s.at -= n
	return n, err
}

// broken fails after so many bytes.
type broken struct {
	io.ReadCloser
	left int
}

var errDisk = errors.New("the disk does not read")

func (s *broken) Read(b []byte) (int, error) {
	if s.left <= 0 {
		return 0, errDisk
	}
	n, err := s.ReadCloser.Read(b[:min(len(b), s.left)])
	s.left -= n
	return n, err
}

// A snapshot that is interrupted anywhere leaves nothing at the receiver, is
// reported once to the sender, and comes through when tried again.
func TestInterruptedSnapshot(t *testing.T) {
	after := func(b *node, at int, then func()) {
		b.wrap = func(f File) File { return &watched{f, at, then} }
	}
	faults := map[string]func(net *network, a, b *node, at int) (repair func()){
		"connection cut": func(net *network, a, b *node, at int) func() {
			net.mu.Lock()
			defer net.mu.Unlock()
			net.fault = func(to string, l *link) { l.cutAfter = int64(at) }
			return func() { net.mu.Lock(); defer net.mu.Unlock(); net.fault = nil }
		},
		"receiver unreachable": func(net *network, a, b *node, at int) func() {
			after(b, at, func() { net.set(b.addr, blackhole) })
			return func() { net.set(b.addr, reachable) }
		},
		"sender dies": func(net *network, a, b *node, at int) func() {
			after(b, at, func() { go a.stop() })
			return func() { a.start(); a.peer(b) }
		},
		"receiver dies": func(net *network, a, b *node, at int) func() {
			after(b, at, func() { go b.stop() })
			return func() { b.start(); b.peer(a) }
		},
		"content corrupted": func(net *network, a, b *node, at int) func() {
			a.read = func(r io.ReadCloser) io.ReadCloser { return &spoilt{r, at} }
			return func() { a.read = nil }
		},
		"sender can't read": func(net *network, a, b *node, at int) func() {
			a.read = func(r io.ReadCloser) io.ReadCloser { return &broken{r, at} }
			return func() { a.read = nil }
		},
		"receiver can't write": func(net *network, a, b *node, at int) func() {
			b.wrap = func(f File) File { return &fullDisk{f, at} }
			return func() {}
		},
		"receiver stops reading": func(net *network, a, b *node, at int) func() {
			release := make(chan struct{})
			after(b, at, func() { <-release })
			return func() { close(release) }
		},
		"restore fails": func(net *network, a, b *node, at int) func() {
			b.install = func(m worker.RaftMessage) error {
				return errors.Join(errors.New("no state of a shard"), b.dir.Remove(m.SnapshotFile))
			}
			return func() { b.install = nil }
		},
	}
	for name, fault := range faults {
		for _, percent := range []int{10, 50, 99} {
			size := snapSize
			if name == "receiver stops reading" {
				if percent == 99 {
					continue // the rest fits in the windows: the sender just waits
				}
				size = 12 << 20 // more than the windows of a connection hold
			}
			t.Run(fmt.Sprintf("%s at %d%%", name, percent), func(t *testing.T) {
				inBubble(t, func(t *testing.T, net *network, a, b *node) {
					put(t, a, 1, size)
					pair(a, b)
					repair := fault(net, a, b, size*percent/100)
					a.tr.Send([]worker.RaftMessage{snapshotOf(1, b)})
					settle(40 * time.Second)
					sent := a.sentSnapshots()
					if len(sent) != 1 || sent[0].Err == nil {
						t.Fatalf("the sender was told %v, want one error", sent)
					}
					if want := (worker.SnapshotSent{Shard: 1, Replica: 7, Err: sent[0].Err}); sent[0] != want {
						t.Errorf("told %+v", sent[0])
					}
					t.Log(sent[0].Err)
					b.wrap = nil
					repair()
					settle(3 * time.Second)
					if got := b.list(); len(got) != 0 {
						t.Errorf("left behind: %v", got)
					}
					if got := b.installs(); len(got) != 0 {
						t.Errorf("installed: %v", got)
					}
					a.tr.Send([]worker.RaftMessage{snapshotOf(1, b)})
					settle(10 * time.Second)
					if sent := a.sentSnapshots(); len(sent) != 2 || sent[1].Err != nil {
						t.Fatalf("the second try: %v", sent[1:])
					}
					content(t, b, 1, size)
					if got := b.list(); len(got) != 1 {
						t.Errorf("the receiver has %v", got)
					}
					exchange(t, a, b)
				})
			})
		}
	}
}

// fullDisk is a disk that fills up.
type fullDisk struct {
	File
	left int
}

func (f *fullDisk) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, errors.New("no space left on device")
	}
	return f.File.Write(b)
}

// rawSnapshot speaks the protocol by hand.
func rawSnapshot(n *network, b *node, change func(i int, q *nodev1.SnapshotRequest) []*nodev1.SnapshotRequest, file []byte, header *nodev1.SnapshotHeader) error {
	c, err := grpc.NewClient("passthrough:///"+b.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(n.dial))
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := nodev1.NewPeerServiceClient(c).Snapshot(context.Background())
	if err != nil {
		return err
	}
	all := []*nodev1.SnapshotRequest{{Header: header}}
	for i := 0; len(file) > 0; i++ {
		n := min(len(file), chunkSize)
		q := &nodev1.SnapshotRequest{Chunk: file[:n], Crc: crc32.Checksum(file[:n], castagnoli)}
		all = append(all, change(i, q)...)
		file = file[n:]
	}
	for _, q := range all {
		if s.Send(q) != nil {
			break
		}
	}
	_, err = s.CloseAndRecv()
	return err
}

func TestSpoiltSnapshotStreams(t *testing.T) {
	type request = nodev1.SnapshotRequest
	same := func(_ int, q *request) []*request { return []*request{q} }
	second := func(f func(q *request) []*request) func(int, *request) []*request {
		return func(i int, q *request) []*request {
			if i != 1 {
				return []*request{q}
			}
			return f(q)
		}
	}
	for name, c := range map[string]struct {
		change func(int, *request) []*request
		header func(h *nodev1.SnapshotHeader)
		code   codes.Code
		says   string
	}{
		"as it should be": {same, nil, codes.OK, ""},
		"chunk corrupted": {second(func(q *request) []*request {
			q.Chunk = bytes.Clone(q.Chunk)
			q.Chunk[7] ^= 1
			return []*request{q}
		}), nil, codes.DataLoss, "chunk at 262144 is damaged"},
		"wrong chunk checksum": {second(func(q *request) []*request { q.Crc++; return []*request{q} }), nil, codes.DataLoss, "damaged"},
		"chunk twice":          {second(func(q *request) []*request { return []*request{q, q} }), nil, codes.DataLoss, "more came than"},
		"chunk missing":        {second(func(q *request) []*request { return nil }), nil, codes.DataLoss, "were announced"},
		"chunk twice, announced": {second(func(q *request) []*request { return []*request{q, q} }),
			func(h *nodev1.SnapshotHeader) { h.Size += chunkSize }, codes.Internal, "checksum does not match"},
		"chunk missing, announced": {second(func(q *request) []*request { return nil }),
			func(h *nodev1.SnapshotHeader) { h.Size -= chunkSize }, codes.Internal, "checksum does not match"},
		"empty chunk":       {second(func(q *request) []*request { return []*request{{}, q} }), nil, codes.InvalidArgument, "is empty"},
		"announced shorter": {same, func(h *nodev1.SnapshotHeader) { h.Size-- }, codes.DataLoss, "more came than"},
		"announced longer":  {same, func(h *nodev1.SnapshotHeader) { h.Size++ }, codes.DataLoss, "were announced"},
		"announced huge":    {same, func(h *nodev1.SnapshotHeader) { h.Size = 1<<64 - 1 }, codes.ResourceExhausted, "free disk space"},
		"no header":         {same, func(h *nodev1.SnapshotHeader) { h.Message = nil }, codes.InvalidArgument, "does not hold the MsgSnap"},
		"shards differ":     {same, func(h *nodev1.SnapshotHeader) { h.Shard++ }, codes.InvalidArgument, "does not hold the MsgSnap"},
		"another cluster":   {same, func(h *nodev1.SnapshotHeader) { h.ClusterId = "c2" }, codes.FailedPrecondition, "gossip.join"},
		"of another index": {same, func(h *nodev1.SnapshotHeader) {
			m := snapshotOf(1, &node{})
			*m.Msg.Snapshot.Metadata.Index++
			h.Message = appendMessage(nil, &m)
		}, codes.Internal, "index 301"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, net *network, a, b *node) {
				put(t, a, 1, snapSize)
				f, err := a.dir.OpenFile(fileName(1))
				if err != nil {
					t.Fatal(err)
				}
				raw, err := io.ReadAll(f)
				if err != nil || f.Close() != nil {
					t.Fatal(err)
				}
				pair(a, b)
				m := snapshotOf(1, b)
				h := &nodev1.SnapshotHeader{ClusterId: "c1", FromNode: 1, ToNode: 2, Shard: 1, Message: appendMessage(nil, &m), Size: uint64(len(raw))}
				if c.header != nil {
					c.header(h)
				}
				err = rawSnapshot(net, b, c.change, raw, h)
				if status.Code(err) != c.code || err != nil && !strings.Contains(err.Error(), c.says) {
					t.Errorf("answered %v, want %v with %q", err, c.code, c.says)
				}
				if c.code == codes.OK {
					content(t, b, 1, snapSize)
				} else {
					synctest.Wait()
					if l, i := b.list(), b.installs(); len(l)+len(i) != 0 {
						t.Errorf("left behind: %v, installed %v", l, i)
					}
					if left := b.tr.incoming.unwritten; left != 0 || len(b.tr.incoming.slots)+len(b.tr.incoming.shards) != 0 {
						t.Errorf("still reserved: %d bytes, %d slots", left, len(b.tr.incoming.slots))
					}
					a.tr.Send([]worker.RaftMessage{snapshotOf(1, b)})
					settle(5 * time.Second)
					content(t, b, 1, snapSize)
				}
			})
		})
	}
}

// Only the answer is lost: the sender must take it for a failure, and the same
// snapshot comes a second time, to a file of its own.
func TestAnswerToSnapshotIsLost(t *testing.T) {
	inBubble(t, func(t *testing.T, net *network, a, b *node) {
		put(t, a, 1, snapSize)
		pair(a, b)
		b.install = func(worker.RaftMessage) error { net.set(b.addr, refusing); return nil }
		a.tr.Send([]worker.RaftMessage{snapshotOf(1, b)})
		settle(10 * time.Second)
		if sent := a.sentSnapshots(); len(sent) != 1 || sent[0].Err == nil {
			t.Fatalf("the sender was told %v, want one error", sent)
		}
		content(t, b, 1, snapSize)
		first := b.list()
		b.install = nil
		net.set(b.addr, reachable)
		a.tr.Send([]worker.RaftMessage{snapshotOf(1, b)})
		settle(10 * time.Second)
		if sent := a.sentSnapshots(); len(sent) != 2 || sent[1].Err != nil {
			t.Fatalf("the second try: %v", sent[1:])
		}
		if got := b.list(); len(first) != 1 || len(got) != 2 || len(b.installs()) != 2 {
			t.Errorf("first %v, then %v, %d installs", first, got, len(b.installs()))
		}
	})
}

// What a killed process left of a snapshot goes at its next start; the file
// that the log begins with stays.
func TestLeftoversOfCrash(t *testing.T) {
	inBubble(t, func(t *testing.T, net *network, a, b *node) {
		put(t, a, 1, snapSize)
		put(t, b, 5, 1000)
		pair(a, b)
		var after *vfs.MemFS
		b.wrap = func(f File) File {
			return &watched{f, snapSize / 2, func() {
				after = b.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))})
			}}
		}
		a.tr.Send([]worker.RaftMessage{snapshotOf(1, b)})
		settle(5 * time.Second)
		b.stop()
		if after == nil {
			t.Fatal("nothing was written")
		}
		b.fs, b.wrap = after, nil
		b.openFolder()
		if got := b.list(); len(got) != 2 || !strings.HasSuffix(got[0], ".tmp") {
			t.Fatalf("after the crash there are %v; want an unfinished file and one snapshot", got)
		}
		if n, err := b.dir.Collect(map[string]bool{fileName(5): true}); n != 1 || err != nil {
			t.Fatalf("%d removed, %v", n, err)
		}
		if got := b.list(); len(got) != 1 || got[0] != fileName(5) {
			t.Fatalf("after the start there are %v", got)
		}
		b.installed = nil
		b.start()
		b.peer(a)
		settle(time.Second)
		a.tr.Send([]worker.RaftMessage{snapshotOf(1, b)})
		settle(5 * time.Second)
		content(t, b, 1, snapSize)
	})
}
