package worker

import (
	"testing"

	"github.com/mortise-lock/mortise/node/logstore"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
)

// BenchmarkPairs runs acquire+release pairs through the loops of a shard's
// three replicas, with disk and network at no cost: what the workers take.
func BenchmarkPairs(b *testing.B) {
	s := newSim(b, 1, 3, 1)
	l := s.waitLeader(1)
	const clients = 64
	var cs []*client
	for range clients {
		cs = append(cs, s.client(1, 600_000))
	}
	s.run(100 * milli)
	var names []string
	for i := range clients {
		names = append(names, s.nameIn(1, i))
	}
	now := s.now
	ins := [3]Input{}
	outs := [3]Output{}
	var id uint64 = 1 << 40
	pairs := 0
	// route carries everything that came out to where it goes.
	route := func() {
		for i, n := range s.nodes {
			o := &outs[i]
			ins[i].Synced = append(ins[i].Synced, o.Appends...)
			for _, m := range o.Messages {
				to := m.Peer - 1
				m.Peer = n.id
				ins[to].Messages = append(ins[to].Messages, m)
			}
			for _, sn := range o.Snapshots {
				sn.Snapshot.Close()
				ins[i].SnapshotsWritten = append(ins[i].SnapshotsWritten, SnapshotWritten{Shard: sn.Shard, File: sn.File, Index: sn.Index, Bytes: 1})
			}
			for _, r := range o.Replies {
				if r.Response == nil {
					continue
				}
				c := int(r.Stream) - 1
				if g := r.Response.GetAcquire().GetGranted(); g != nil {
					id++
					ins[l.id-1].Requests = append(ins[l.id-1].Requests, Request{Stream: r.Stream, Req: &nodev1.Request{Id: id, Shard: 1, Op: &nodev1.Request_Release{Release: &nodev1.Release{
						Acting: &nodev1.Acting{Registration: cs[c].reg, Attachment: 1, DoneBelow: g.Seq}, Id: &nodev1.AcquireId{Seq: g.Seq}, Name: names[c], Token: g.Token}}}})
				} else if r.Response.GetDone() != nil {
					pairs++
					cs[c].seq++
					id++
					req := cs[c].acquireReq(cs[c].seq, names[c], 0)
					req.Id, req.Shard = id, 1
					ins[l.id-1].Requests = append(ins[l.id-1].Requests, Request{Stream: r.Stream, Req: req})
				}
			}
		}
	}
	reset := func(in *Input) {
		*in = Input{Messages: in.Messages[:0], Requests: in.Requests[:0], Synced: append([]logstore.Append(nil), in.Synced[:0]...)}
	}
	for c := range cs {
		cs[c].seq++
		id++
		req := cs[c].acquireReq(cs[c].seq, names[c], 0)
		req.Id, req.Shard = id, 1
		ins[l.id-1].Requests = append(ins[l.id-1].Requests, Request{Stream: StreamID(c + 1), Req: req})
	}
	b.ResetTimer()
	b.ReportAllocs()
	for pairs < b.N {
		now += milli / 10
		for i, n := range s.nodes {
			ins[i].Now = now
			n.w.Step(&ins[i], &outs[i])
			reset(&ins[i])
		}
		route()
	}
}
