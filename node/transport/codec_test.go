package transport

import (
	"bytes"
	"testing"

	"github.com/mortise-lock/mortise/node/worker"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

func message(typ raftpb.MessageType) *raftpb.Message {
	return &raftpb.Message{Type: &typ, To: new(uint64(7)), From: new(uint64(9)), Term: new(uint64(12)), LogTerm: new(uint64(11)),
		Index: new(uint64(300)), Commit: new(uint64(299))}
}

func samples() []worker.RaftMessage {
	app := message(raftpb.MsgApp)
	for i := range 3 {
		app.Entries = append(app.Entries, &raftpb.Entry{Term: new(uint64(11 + i/2)), Index: new(uint64(301 + i)),
			Type: new(raftpb.EntryNormal), Data: bytes.Repeat([]byte{byte(i)}, i*100+1)})
	}
	rej := message(raftpb.MsgAppResp)
	rej.Reject, rej.RejectHint = new(true), new(uint64(44))
	beat := message(raftpb.MsgHeartbeat)
	beat.Context = []byte("12345678")
	vote := message(raftpb.MsgPreVote)
	vote.Vote = new(uint64(3))
	snap := message(raftpb.MsgSnap)
	snap.Snapshot = &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: new(uint64(5)), Term: new(uint64(2)),
		ConfState: &raftpb.ConfState{Voters: []uint64{1, 2, 3}, Learners: []uint64{9}}}}
	var all []worker.RaftMessage
	for i, m := range []*raftpb.Message{app, rej, beat, vote, snap, message(raftpb.MsgTimeoutNow)} {
		all = append(all, worker.RaftMessage{Shard: 1 << (5 * uint32(i)), Peer: 4, Msg: m})
	}
	return all
}

func TestMessagesSurviveTheWire(t *testing.T) {
	want := samples()
	var b []byte
	for i := range want {
		b = appendMessage(b, &want[i])
	}
	got, err := decodeMessages(nil, b, 4)
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d messages, %v", len(got), err)
	}
	for i := range want {
		if got[i].Shard != want[i].Shard || got[i].Peer != want[i].Peer {
			t.Errorf("message %d: envelope %v %v", i, got[i].Shard, got[i].Peer)
		}
		if !proto.Equal(got[i].Msg, want[i].Msg) {
			t.Errorf("message %d:\n got %v\nwant %v", i, got[i].Msg, want[i].Msg)
		}
	}
}

func TestTruncatedFramesAreRefused(t *testing.T) {
	for _, m := range samples() {
		b := appendMessage(nil, &m)
		for n := 1; n < len(b); n++ {
			if got, err := decodeMessages(nil, b[:n], 1); err == nil {
				t.Fatalf("%v cut to %d of %d bytes decoded to %v", m.Msg.GetType(), n, len(b), got)
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range samples() {
		f.Add(appendMessage(nil, &m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeMessages(nil, b, 1)
		if err != nil {
			return
		}
		var again []byte
		for i := range got {
			again = appendMessage(again, &got[i])
		}
		more, err := decodeMessages(nil, again, 1)
		if err != nil || len(more) != len(got) {
			t.Fatalf("what decoded does not encode and decode again: %v", err)
		}
		for i := range got {
			if !proto.Equal(got[i].Msg, more[i].Msg) {
				t.Fatalf("message %d changed", i)
			}
		}
	})
}
