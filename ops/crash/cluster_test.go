package crash

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/mortise-lock/mortise/gateway"
	"github.com/mortise-lock/mortise/node/host"
	logdisk "github.com/mortise-lock/mortise/node/logstore/disk"
	"github.com/mortise-lock/mortise/node/worker"
	"github.com/mortise-lock/mortise/ops/loopback"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	nodes   = 3
	shards  = 8
	dataDir = "/data" // of each node, in its own file system
	// memTable is small, so that WAL files come and go.
	memTable = 256 << 10
)

var clusterKey = []byte("0123456789abcdef0123456789abcdef")

// snapshots are written all the time, so that crashes hit them, too.
var snapshots = worker.SnapshotPolicy{Entries: 150, Bytes: 32 << 10, KeepEntries: 16, KeepBytes: 8 << 10}

// cluster is three nodes on crashable file systems and a gateway.
type cluster struct {
	disks    []*vfs.MemFS
	power    [nodes]sync.RWMutex // of each node's disk
	endpoint string
}

// start runs a cluster until the test ends. The disks may lie.
func start(t *testing.T, l *lies) *cluster {
	t.Helper()
	c := &cluster{}
	addrs, err := loopback.Addrs(2*nodes + 1)
	if err != nil {
		t.Fatal(err)
	}
	c.endpoint = addrs[2*nodes]
	events := &journal{}
	t.Cleanup(func() { // after the nodes have stopped
		if t.Failed() {
			t.Logf("last events of the nodes:\n%s", events)
		}
	})
	for i := range nodes {
		fs := vfs.NewCrashableMem()
		c.disks = append(c.disks, fs)
		n, err := host.Open(host.Config{Name: fmt.Sprintf("n%d", i+1), Region: "eu", Zone: fmt.Sprint("z", i+1), DataDir: dataDir,
			Listen: addrs[i], Gossip: host.GossipConfig{Listen: addrs[nodes+i], Join: addrs[nodes : 2*nodes], Key: clusterKey},
			Logger:    slog.New(slog.NewTextHandler(events, nil)).With("node", i+1),
			Snapshots: snapshots, Store: logdisk.Options{FS: disk{fs, &c.power[i], l}, MemTableSize: memTable},
			OnFatal: func(err error) { t.Errorf("node %d stopped: %v", i+1, err) }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = n.Kill() })
	}
	conn, err := grpc.NewClient(addrs[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		_, err := placementv1.NewPlacementServiceClient(conn).Init(ctx, &placementv1.InitRequest{Nodes: new(uint32(nodes)), Shards: new(uint32(shards))})
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("init: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	g, err := gateway.New(gateway.Config{ClusterKey: clusterKey, Seeds: addrs[:nodes], Listen: c.endpoint})
	if err != nil {
		t.Fatal(err)
	}
	served, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Serve(served) }()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return c
}

// crashed is what the loss of power left, and what was known then.
type crashed struct {
	// disks are those after the crash; whole are those that lose nothing, if
	// asked for.
	disks, whole []*vfs.MemFS
	// before is what clients had been told when the last disk had stopped;
	// after, what they had asked for until all were cloned.
	before, after map[*attempt]attempt
}

// crash takes the power from one disk after the other, in any order. A node
// whose disk stands still acknowledges nothing that needs it, while the others
// go on: whatever clients are told until the last one stops must survive.
func (c *cluster) crash(rng *rand.Rand, r *record, percent int, whole bool) *crashed {
	out := &crashed{}
	apart := time.Duration(0) // at most, for each of them
	if rng.IntN(2) == 0 {
		apart = 5 * time.Millisecond
	}
	for k, i := range rng.Perm(nodes) {
		if k > 0 && apart > 0 {
			wait(time.Duration(rng.Int64N(int64(apart))))
		}
		c.power[i].Lock()
	}
	// The nodes still write, and answers to what was synced still arrive.
	wait(time.Duration(rng.Int64N(int64(5 * time.Millisecond))))
	out.before = r.copy()
	for _, d := range c.disks {
		out.disks = append(out.disks, d.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}))
		if whole {
			out.whole = append(out.whole, d.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng}))
		}
	}
	for i := range c.power {
		c.power[i].Unlock()
	}
	out.after = r.copy()
	r.prune(out.before)
	return out
}
