package transport

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mortise-lock/mortise/node/worker"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

const (
	flagVote = 1 << iota
	flagReject
	flagContext
	flagEntries
	flagSnapshot
	flagsKnown = 1<<iota - 1
)

// maxContext bounds Message.Context; raft uses 8 bytes, or a word.
const maxContext = 256

// appendMessage encodes a message. Peer is not part of it: the stream says it.
func appendMessage(dst []byte, m *worker.RaftMessage) []byte {
	p := m.Msg
	dst = binary.AppendUvarint(dst, uint64(m.Shard))
	flags := byte(0)
	if p.GetVote() != 0 {
		flags |= flagVote
	}
	if p.GetReject() {
		flags |= flagReject
	}
	if len(p.GetContext()) > 0 {
		flags |= flagContext
	}
	if len(p.GetEntries()) > 0 {
		flags |= flagEntries
	}
	if p.GetType() == raftpb.MsgSnap {
		flags |= flagSnapshot
	}
	dst = append(dst, byte(p.GetType()), flags)
	for _, v := range [...]uint64{p.GetTo(), p.GetFrom(), p.GetTerm(), p.GetLogTerm(), p.GetIndex(), p.GetCommit()} {
		dst = binary.AppendUvarint(dst, v)
	}
	if flags&flagVote != 0 {
		dst = binary.AppendUvarint(dst, p.GetVote())
	}
	if flags&flagReject != 0 {
		dst = binary.AppendUvarint(dst, p.GetRejectHint())
	}
	if flags&flagContext != 0 {
		dst = binary.AppendUvarint(dst, uint64(len(p.GetContext())))
		dst = append(dst, p.GetContext()...)
	}
	if flags&flagEntries != 0 {
		dst = binary.AppendUvarint(dst, uint64(len(p.GetEntries())))
		for _, e := range p.GetEntries() {
			dst = binary.AppendUvarint(dst, e.GetTerm()-p.GetLogTerm())
			dst = append(dst, byte(e.GetType()))
			dst = binary.AppendUvarint(dst, uint64(len(e.GetData())))
			dst = append(dst, e.GetData()...)
		}
	}
	if flags&flagSnapshot != 0 {
		md := p.GetSnapshot().GetMetadata()
		conf, err := proto.Marshal(md.GetConfState())
		if err != nil {
			panic(fmt.Sprintf("transport: a ConfState does not marshal: %v", err)) // it has no string and no required field
		}
		dst = binary.AppendUvarint(dst, md.GetIndex())
		dst = binary.AppendUvarint(dst, md.GetTerm())
		dst = binary.AppendUvarint(dst, uint64(len(conf)))
		dst = append(dst, conf...)
	}
	return dst
}

var errMalformed = errors.New("transport: malformed raft message")

// decoder takes fields off the front of b.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.bad = true
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

// decodeMessages appends a frame's messages to dst. Entry data aliases b, which
// must not be reused; scalars of one message share one allocation.
func decodeMessages(dst []worker.RaftMessage, b []byte, peer worker.NodeID) ([]worker.RaftMessage, error) {
	d := decoder{b: b}
	for len(d.b) > 0 {
		m, ok := d.message()
		if !ok {
			return dst, errMalformed
		}
		m.Peer = peer
		dst = append(dst, m)
	}
	return dst, nil
}

func (d *decoder) message() (worker.RaftMessage, bool) {
	id := d.uvarint()
	typ, flags := raftpb.MessageType(d.byte()), d.byte()
	if d.bad || id > 1<<32-1 || flags&^flagsKnown != 0 {
		return worker.RaftMessage{}, false
	}
	var n [8]uint64
	for i := range 6 {
		n[i] = d.uvarint()
	}
	p := &raftpb.Message{Type: &typ, To: &n[0], From: &n[1], Term: &n[2], LogTerm: &n[3], Index: &n[4], Commit: &n[5]}
	if flags&flagVote != 0 {
		n[6] = d.uvarint()
		p.Vote = &n[6]
	}
	if flags&flagReject != 0 {
		n[7] = d.uvarint()
		p.Reject, p.RejectHint = new(true), &n[7]
	}
	if flags&flagContext != 0 {
		if c := d.bytes(); len(c) > maxContext {
			d.bad = true
		} else {
			p.Context = append([]byte(nil), c...)
		}
	}
	if flags&flagEntries != 0 {
		p.Entries = d.entries(n[3], n[4])
	}
	if flags&flagSnapshot != 0 {
		md := &raftpb.SnapshotMetadata{Index: new(d.uvarint()), Term: new(d.uvarint()), ConfState: new(raftpb.ConfState)}
		if proto.Unmarshal(d.bytes(), md.ConfState) != nil {
			d.bad = true
		}
		p.Snapshot = &raftpb.Snapshot{Metadata: md}
	}
	if d.bad || (typ == raftpb.MsgSnap) != (flags&flagSnapshot != 0) {
		return worker.RaftMessage{}, false
	}
	return worker.RaftMessage{Shard: shard.ID(id), Msg: p}, true
}

// entries decodes into three allocations, however many entries there are.
func (d *decoder) entries(logTerm, index uint64) []*raftpb.Entry {
	count := d.uvarint()
	if d.bad || count == 0 || count > uint64(len(d.b)) {
		d.bad = true
		return nil
	}
	type scalars struct {
		term, index uint64
		typ         raftpb.EntryType
	}
	slab := make([]raftpb.Entry, count)
	nums := make([]scalars, count)
	out := make([]*raftpb.Entry, count)
	for i := range slab {
		v := &nums[i]
		v.term, v.index = logTerm+d.uvarint(), index+uint64(i)+1
		v.typ = raftpb.EntryType(d.byte())
		e := &slab[i]
		e.Term, e.Index, e.Type = &v.term, &v.index, &v.typ
		if data := d.bytes(); len(data) > 0 {
			e.Data = data[:len(data):len(data)]
		}
		if d.bad {
			return nil
		}
		out[i] = e
	}
	return out
}

// cost estimates the encoded size, for bounds of queues.
func cost(m *raftpb.Message) int {
	n := 64
	for _, e := range m.GetEntries() {
		n += len(e.GetData()) + 16
	}
	return n
}
