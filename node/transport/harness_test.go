package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/mortise-lock/mortise/node/snapshot"
	"github.com/mortise-lock/mortise/node/worker"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"
)

// network joins nodes in memory, by address.
type network struct {
	mu    sync.Mutex
	lis   map[string]*bufconn.Listener
	mode  map[string]linkMode
	conns map[string][]*link
	dials map[string]int
	// fault is asked about each new connection.
	fault func(to string, l *link)
}

type linkMode int

const (
	reachable linkMode = iota
	refusing           // dials fail at once
	blackhole          // dials hang
)

func newNetwork() *network {
	return &network{lis: map[string]*bufconn.Listener{}, mode: map[string]linkMode{}, conns: map[string][]*link{}, dials: map[string]int{}}
}

func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	n.dials[address]++
	lis, mode := n.lis[address], n.mode[address]
	n.mu.Unlock()
	if mode == blackhole {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if lis == nil || mode == refusing {
		return nil, errors.New("connection refused")
	}
	c, err := lis.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	l := &link{Conn: c, closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[address] = append(n.conns[address], l)
	if n.fault != nil {
		n.fault(address, l)
	}
	return l, nil
}

// set changes how an address is reached, and cuts what is connected to it.
func (n *network) set(address string, mode linkMode) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mode[address] = mode
	if mode != reachable {
		for _, l := range n.conns[address] {
			_ = l.Close()
		}
		n.conns[address] = nil
	}
}

func (n *network) dialled(address string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials[address]
}

// link is the dialling end of a connection, with faults.
type link struct {
	net.Conn
	cutAfter, stallAfter int64 // bytes written; 0: never
	written              atomic.Int64
	once                 sync.Once
	closed               chan struct{}
}

// Close implements net.Conn; it ends a stall.
func (l *link) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Conn.Close()
}

// Write implements net.Conn. A cut lets only the bytes before it through, most
// likely half a frame.
func (l *link) Write(b []byte) (int, error) {
	at := l.written.Load()
	if l.cutAfter > 0 && at+int64(len(b)) > l.cutAfter {
		n, _ := l.Conn.Write(b[:max(l.cutAfter-at, 0)])
		_ = l.Close()
		return n, errors.New("connection reset")
	}
	if l.stallAfter > 0 && at+int64(len(b)) > l.stallAfter {
		<-l.closed
	}
	n, err := l.Conn.Write(b)
	l.written.Add(int64(n))
	return n, err
}

// node is a transport, its server, and what came out of it.
type node struct {
	t    *testing.T
	net  *network
	id   worker.NodeID
	addr string
	fs   *vfs.MemFS
	dir  *snapshot.Folder
	logs bytesLog

	tr  *Transport
	srv *grpc.Server

	mu          sync.Mutex
	got         []worker.RaftMessage
	unreachable map[worker.NodeID]int
	down        map[worker.NodeID]int
	sent        []worker.SnapshotSent
	installed   []worker.RaftMessage

	// Overrides.
	cluster string
	room    uint64
	wrap    func(File) File
	read    func(io.ReadCloser) io.ReadCloser
	install func(worker.RaftMessage) error
	deliver func([]worker.RaftMessage)
}

type bytesLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *bytesLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *bytesLog) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

func newNode(t *testing.T, net *network, id worker.NodeID) *node {
	n := &node{t: t, net: net, id: id, addr: fmt.Sprintf("n%d", id), fs: vfs.NewCrashableMem(), cluster: "c1", room: 1 << 40,
		unreachable: map[worker.NodeID]int{}, down: map[worker.NodeID]int{}}
	n.openFolder()
	return n
}

func (n *node) openFolder() {
	d, err := snapshot.Open("snapshots", n.fs)
	if err != nil {
		n.t.Fatal(err)
	}
	n.dir = d
}

// start runs the node, until stop or the end of the test.
func (n *node) start() *node {
	n.tr = New(Config{ClusterID: n.cluster, Node: n.id, Dial: n.net.dial, Files: testFiles{n},
		Logger: slog.New(slog.NewTextHandler(&n.logs, nil)),
		Deliver: func(ms []worker.RaftMessage) {
			if n.deliver != nil {
				n.deliver(ms)
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			n.got = append(n.got, ms...)
		},
		Install: func(m worker.RaftMessage) error {
			if n.install != nil {
				if err := n.install(m); err != nil {
					return err
				}
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			n.installed = append(n.installed, m)
			return nil
		},
		SnapshotSent: func(s worker.SnapshotSent) { n.mu.Lock(); defer n.mu.Unlock(); n.sent = append(n.sent, s) },
		Unreachable:  func(p worker.NodeID) { n.mu.Lock(); defer n.mu.Unlock(); n.unreachable[p]++ },
		PeerDown:     func(p worker.NodeID) { n.mu.Lock(); defer n.mu.Unlock(); n.down[p]++ },
	})
	lis := bufconn.Listen(256 << 10)
	n.net.mu.Lock()
	n.net.lis[n.addr] = lis
	n.net.mu.Unlock()
	// As node/host serves it.
	n.srv = grpc.NewServer(grpc.MaxRecvMsgSize(16<<20), grpc.StaticStreamWindowSize(4<<20), grpc.StaticConnWindowSize(8<<20),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}))
	nodev1.RegisterPeerServiceServer(n.srv, peerService{t: n.tr})
	go func() { _ = n.srv.Serve(lis) }()
	return n
}

func (n *node) stop() {
	if n.srv != nil {
		n.srv.Stop()
		n.tr.Close()
	}
}

func (n *node) peer(o *node) {
	if err := n.tr.SetPeer(o.id, o.addr); err != nil {
		n.t.Error(err)
	}
}

// take returns and forgets what was delivered.
func (n *node) take() []worker.RaftMessage {
	n.mu.Lock()
	defer n.mu.Unlock()
	got := n.got
	n.got = nil
	return got
}

func (n *node) counts(p worker.NodeID) (unreachable, down int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.unreachable[p], n.down[p]
}

func (n *node) sentSnapshots() []worker.SnapshotSent {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.sent)
}

func (n *node) installs() []worker.RaftMessage {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.installed)
}

// list is what the snapshot folder holds, unfinished files too.
func (n *node) list() []string {
	all, err := n.fs.List("snapshots")
	if err != nil {
		n.t.Error(err)
	}
	slices.Sort(all)
	return all
}

type peerService struct {
	nodev1.UnimplementedPeerServiceServer
	t *Transport
}

func (s peerService) Raft(g grpc.BidiStreamingServer[nodev1.RaftRequest, nodev1.RaftResponse]) error {
	return s.t.ServeRaft(g)
}

func (s peerService) Snapshot(g grpc.ClientStreamingServer[nodev1.SnapshotRequest, nodev1.SnapshotResponse]) error {
	return s.t.ServeSnapshot(g)
}

// testFiles is a real folder on a disk in memory.
type testFiles struct{ n *node }

func (f testFiles) Open(name string) (io.ReadCloser, int64, error) {
	file, err := f.n.dir.OpenFile(name)
	if err != nil {
		return nil, 0, err
	}
	if f.n.read != nil {
		return f.n.read(file), file.Size(), nil
	}
	return file, file.Size(), nil
}

func (f testFiles) Room() (uint64, error) { return f.n.room, nil }

func (f testFiles) Create(_ context.Context, name string, s shard.ID, index uint64) (File, error) {
	r, err := f.n.dir.Receive(name, s, index)
	if err != nil {
		return nil, err
	}
	if f.n.wrap != nil {
		return f.n.wrap(testFile{r}), nil
	}
	return testFile{r}, nil
}

type testFile struct{ *snapshot.Receiver }

func (f testFile) Commit() error {
	_, err := f.Receiver.Commit()
	return err
}

// inBubble runs a test with two nodes that know each other, on virtual time.
func inBubble(t *testing.T, test func(t *testing.T, net *network, a, b *node)) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork()
		a, b := newNode(t, net, 1), newNode(t, net, 2)
		defer a.stop()
		defer b.stop()
		test(t, net, a, b)
	})
}

// pair starts both and waits until their streams are up; stop both after.
func pair(a, b *node) {
	a.start()
	b.start()
	a.peer(b)
	b.peer(a)
	settle(time.Second)
}

// settle lets virtual time pass.
func settle(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func control(to *node, index uint64) worker.RaftMessage {
	m := message(raftpb.MsgHeartbeat)
	m.Index = &index
	return worker.RaftMessage{Shard: 1, Peer: to.id, Msg: m}
}

func entries(to *node, index uint64, size int) worker.RaftMessage {
	m := message(raftpb.MsgApp)
	m.Index = &index
	m.Entries = []*raftpb.Entry{{Term: new(uint64(12)), Index: new(index + 1), Type: new(raftpb.EntryNormal), Data: make([]byte, size)}}
	return worker.RaftMessage{Shard: 1, Peer: to.id, Msg: m}
}
