package worker

import (
	"github.com/mortise-lock/mortise/node/logstore"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// entryOverhead is what an entry costs in memory besides its data.
const entryOverhead = 160

// log is a replica's whole live log in memory, from the kept tail to the last
// entry, as raft.Storage. It may lead the disk: raft itself tracks what is
// durable. It holds the very entries that raft handed out, which nobody
// changes.
type log struct {
	// dummy is the index and term before the first entry.
	dummyIndex, dummyTerm uint64
	entries               []*raftpb.Entry
	bytes                 int64

	// base is where the newest durable snapshot file stands.
	base logstore.Base
	hard logstore.HardState
	conf *raftpb.ConfState
}

func newLog(s *logstore.ReplicaState) *log {
	l := &log{dummyIndex: s.Base.Index, dummyTerm: s.Base.Term, base: s.Base, hard: s.HardState, conf: s.Base.ConfState}
	es := s.Entries
	if len(es) > 0 && es[0].GetIndex() <= s.Base.Index {
		// The term before the kept tail is not stored; its first entry stands in.
		l.dummyIndex, l.dummyTerm = es[0].GetIndex(), es[0].GetTerm()
		es = es[1:]
	}
	l.append(es)
	return l
}

func (l *log) last() uint64 { return l.dummyIndex + uint64(len(l.entries)) }

// append replaces everything from es[0] on.
func (l *log) append(es []*raftpb.Entry) {
	if len(es) == 0 {
		return
	}
	first := es[0].GetIndex()
	if first <= l.dummyIndex || first > l.last()+1 {
		panic("worker: append leaves a gap in the log")
	}
	for i := first; i <= l.last(); i++ {
		l.bytes -= size(l.at(i))
	}
	keep := int(first - l.dummyIndex - 1)
	clear(l.entries[keep:])
	l.entries = append(l.entries[:keep], es...)
	for _, e := range es {
		l.bytes += size(e)
	}
}

func (l *log) at(i uint64) *raftpb.Entry { return l.entries[i-l.dummyIndex-1] }

// truncate drops everything up to and including index i.
func (l *log) truncate(i uint64) {
	if i <= l.dummyIndex {
		return
	}
	n := int(i - l.dummyIndex)
	l.dummyIndex, l.dummyTerm = i, l.entries[n-1].GetTerm()
	for _, e := range l.entries[:n] {
		l.bytes -= size(e)
	}
	// A fresh slice, so that the dropped entries can be freed.
	l.entries = append(make([]*raftpb.Entry, 0, len(l.entries)-n+64), l.entries[n:]...)
}

// reset begins the log anew behind a snapshot.
func (l *log) reset(base logstore.Base) {
	l.dummyIndex, l.dummyTerm = base.Index, base.Term
	l.entries, l.bytes = nil, 0
	l.base, l.conf = base, base.ConfState
}

// tail returns the last index to drop at a truncation behind base, so that at
// most keep entries and keepBytes stay below it.
func (l *log) tail(base uint64, keep uint64, keepBytes int64) uint64 {
	i := base
	for i > l.dummyIndex && base-i < keep {
		if keepBytes -= size(l.at(i)); keepBytes < 0 {
			break
		}
		i--
	}
	return i
}

func size(e *raftpb.Entry) int64 { return int64(len(e.GetData())) + entryOverhead }

// InitialState implements raft.Storage.
func (l *log) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	h := l.hard
	return &raftpb.HardState{Term: &h.Term, Vote: &h.Vote, Commit: &h.Commit}, l.conf, nil
}

// Entries implements raft.Storage.
func (l *log) Entries(lo, hi, maxSize uint64) ([]*raftpb.Entry, error) {
	if lo <= l.dummyIndex {
		return nil, raft.ErrCompacted
	}
	if hi > l.last()+1 {
		return nil, raft.ErrUnavailable
	}
	es := l.entries[lo-l.dummyIndex-1 : hi-l.dummyIndex-1]
	var sum uint64
	for i, e := range es {
		// Raft asks in encoded bytes; this counts a little more, which is as good.
		if sum += uint64(len(e.GetData())) + 32; i > 0 && sum > maxSize {
			es = es[:i]
			break
		}
	}
	return es[:len(es):len(es)], nil
}

// Term implements raft.Storage.
func (l *log) Term(i uint64) (uint64, error) {
	switch {
	case i == l.dummyIndex:
		return l.dummyTerm, nil
	case i < l.dummyIndex:
		return 0, raft.ErrCompacted
	case i > l.last():
		return 0, raft.ErrUnavailable
	}
	return l.at(i).GetTerm(), nil
}

// LastIndex implements raft.Storage.
func (l *log) LastIndex() (uint64, error) { return l.last(), nil }

// FirstIndex implements raft.Storage.
func (l *log) FirstIndex() (uint64, error) { return l.dummyIndex + 1, nil }

// Snapshot implements raft.Storage: metadata only, the content travels as a
// file.
func (l *log) Snapshot() (*raftpb.Snapshot, error) {
	if l.base.Snapshot == "" {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	return &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
		ConfState: l.base.ConfState, Index: new(l.base.Index), Term: new(l.base.Term)}}, nil
}
