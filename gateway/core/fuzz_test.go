package core

import (
	"testing"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"google.golang.org/protobuf/proto"
)

// FuzzFrames feeds arbitrary frames of a client and of a node: nothing may
// panic, and another client's stream goes on.
func FuzzFrames(f *testing.F) {
	wait := uint64(5)
	seed, _ := proto.Marshal(&lockv1.SessionRequest{Ops: []*lockv1.SessionOp{
		{Op: &lockv1.SessionOp_Open{Open: &lockv1.OpenOp{Client: "c"}}},
		{Op: &lockv1.SessionOp_Acquire{Acquire: &lockv1.AcquireOp{Seq: 1, Name: "x", WaitMs: &wait}}},
		{Op: &lockv1.SessionOp_Cancel{Cancel: &lockv1.CancelOp{Seq: 1, Name: "x"}}},
		{Op: &lockv1.SessionOp_Release{Release: &lockv1.ReleaseOp{Seq: 1, Name: "x", Token: 3}}},
		{Op: &lockv1.SessionOp_Renew{Renew: &lockv1.RenewOp{Number: 1}}},
		{Op: &lockv1.SessionOp_Close{Close: &lockv1.CloseOp{}}}}})
	nodeSeed, _ := proto.Marshal(&nodev1.ExchangeResponse{Responses: []*nodev1.Response{{Id: 1, Failure: refuse(14, "NOT_LEADER").Failure,
		Leader: &nodev1.LeaderHint{Shard: 1, Term: 9, Node: 2}}}, Renewed: []*nodev1.Renewed{{SessionId: make([]byte, 16), Number: 1}},
		Pushes: []*nodev1.Push{{SessionId: make([]byte, 16)}}})
	f.Add(seed, nodeSeed)
	f.Fuzz(func(t *testing.T, frame, node []byte) {
		w := newSim(1, 2, 3)
		w.boot()
		other := w.open(7)
		var fr lockv1.SessionRequest
		w.step(Input{Kind: StreamOpened, Stream: 1})
		if proto.Unmarshal(frame, &fr) == nil {
			w.step(Input{Kind: StreamFrame, Stream: 1, Frame: &fr})
		}
		var nr nodev1.ExchangeResponse
		if proto.Unmarshal(node, &nr) == nil {
			w.step(Input{Kind: NodeFrame, Node: 1, Response: &nr})
		}
		w.settle()
		w.step(Input{Kind: StreamClosed, Stream: 1})
		if w.endedSt[other.id] {
			t.Fatal("another client's stream ended")
		}
	})
}
