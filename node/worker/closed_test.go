package worker

import (
	"testing"

	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
)

// A frame of a stream that has ended may come after the resend by its
// successor. It must not take the wait over: the grant goes to who listens.
func TestClosedStreamTakesNoAnswersOver(t *testing.T) {
	s := newSim(t, 1, 3, 1)
	a, b := s.client(1, 60_000), s.client(1, 60_000)
	s.run(100 * milli)
	ask := func(c *client, stream StreamID) *nodev1.Request {
		return &nodev1.Request{Op: &nodev1.Request_Acquire{Acquire: &nodev1.Acquire{
			Acting: &nodev1.Acting{Registration: c.reg, Attachment: c.attach}, Id: &nodev1.AcquireId{Seq: 1}, Name: "x", Mode: 1, WaitMs: 60_000}}}
	}
	granted := s.do(1, a.stream, ask(a, a.stream)).GetAcquire().GetGranted()
	if granted == nil {
		t.Fatal("a free lock was not granted")
	}
	n := s.leader(1)
	old, fresh := StreamID(900), StreamID(901)
	s.send(n, old, 1, ask(b, old))
	s.run(100 * milli)
	n.in.StreamsClosed = append(n.in.StreamsClosed, old)
	s.run(100 * milli)
	resend := s.send(n, fresh, 1, ask(b, fresh))
	s.run(100 * milli)
	late := s.send(n, old, 1, ask(b, old)) // what was stuck in front of a full inbox
	s.run(100 * milli)
	s.do(1, a.stream, &nodev1.Request{Op: &nodev1.Request_Release{Release: &nodev1.Release{
		Acting: &nodev1.Acting{Registration: a.reg, Attachment: a.attach}, Id: &nodev1.AcquireId{Seq: 1}, Name: "x", Token: granted.Token}}})
	s.run(500 * milli)
	told := func(id uint64) bool {
		for _, r := range s.responses[id] {
			if r.GetAcquire().GetGranted() != nil {
				return true
			}
		}
		return false
	}
	if !told(resend) || told(late) {
		t.Errorf("the grant went to the living stream: %v, to the one that has ended: %v", told(resend), told(late))
	}
}
