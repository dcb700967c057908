package shard

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
)

// The bytes of a snapshot:
//
//	magic    8 bytes, snapshotMagic
//	format   uint32, little-endian like all fixed integers
//	chunks   each: length uint32 (1 to maxChunk), CRC-32C of the payload
//	         uint32, payload: whole records, each a kind byte and its fields
//	end      length 0 uint32, CRC-32C of everything before this field uint32
//
// The records are: one header; registrations in order of number; locks, each
// followed by its holds and its waits; outcomes in order of their end; an end
// record with the counts of all of them. Nothing may follow.
const (
	snapshotMagic  = "mortshrd"
	snapshotFormat = 1
	chunkTarget    = 256 << 10
	maxChunk       = 4 << 20
)

// Errors of Restore; they are wrapped.
var (
	// ErrCorrupt: the snapshot is damaged, incomplete, or no snapshot.
	ErrCorrupt = errors.New("shard: snapshot is corrupt")
	// ErrNewerFormat: a newer build wrote the snapshot.
	ErrNewerFormat = errors.New("shard: snapshot has a newer format than this build knows")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Snapshot is the state as it was at one applied index. It shares memory with
// the machine, which copies what it changes while a snapshot is open. Its
// methods may be called from one goroutine that need not be the machine's.
type Snapshot struct {
	state
	mark *shareMark
}

// Snapshot takes the state at Applied. It copies only lists of pages, some
// 20 microseconds per million locks. Close it when it is no longer needed.
func (m *Machine) Snapshot() *Snapshot {
	s := &Snapshot{state: m.state}
	s.locks, s.extras, s.acqs = m.locks.view(), m.extras.view(), m.acqs.view()
	s.waits, s.rids, s.regs = m.waits.view(), m.rids.view(), m.regs.view()
	s.names = m.names.view()
	s.mark = m.cow.take()
	return s
}

// Index is the applied index of the state.
func (s *Snapshot) Index() uint64 { return s.index }

// Term is the term of the entry at Index.
func (s *Snapshot) Term() uint64 { return s.term }

// Hash is that of the machine when the snapshot was taken.
func (s *Snapshot) Hash() uint64 { return s.hash() }

// Close ends the use of the snapshot. It may be called more than once.
func (s *Snapshot) Close() { s.mark.closed.Store(true) }

// WriteTo implements io.WriterTo. It returns the first error of w. The bytes
// restore to an equal state; two replicas' bytes may differ in the order of
// locks.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	k := chunker{w: w}
	head := append([]byte(snapshotMagic), 0, 0, 0, 0)
	binary.LittleEndian.PutUint32(head[len(snapshotMagic):], snapshotFormat)
	k.write(head)
	c := &k.c
	var n endRecord
	s.writeHeader(c)
	for slot := s.firstReg; slot != none && k.err == nil; slot = s.regs.at(slot).next {
		s.writeRegistration(c, slot)
		n.registrations++
		k.mayFlush()
	}
	for h := uint32(1); h < s.locks.next && k.err == nil; h++ {
		s.writeLock(c, h, &n, k.mayFlush)
	}
	for h := s.outcomes.head; h != none && k.err == nil && !mutantForgetfulSnapshot; h = s.acqs.at(h).lnext {
		if s.writeOutcome(c, h) {
			n.outcomes++
			k.mayFlush()
		}
	}
	c.kind(recEnd)
	c.end(&n)
	k.flush()
	end := binary.LittleEndian.AppendUint32(nil, 0)
	end = binary.LittleEndian.AppendUint32(end, crc32.Update(k.crc, castagnoli, end))
	k.write(end)
	return k.n, k.err
}

// chunker cuts records into chunks.
type chunker struct {
	w   io.Writer
	c   coder
	n   int64
	crc uint32
	err error
}

func (k *chunker) mayFlush() {
	if len(k.c.out) >= chunkTarget {
		k.flush()
	}
}

func (k *chunker) flush() {
	if len(k.c.out) == 0 {
		return
	}
	var head [8]byte
	binary.LittleEndian.PutUint32(head[:], uint32(len(k.c.out)))
	binary.LittleEndian.PutUint32(head[4:], crc32.Checksum(k.c.out, castagnoli))
	k.write(head[:])
	k.write(k.c.out)
	k.c.out = k.c.out[:0]
}

func (k *chunker) write(b []byte) {
	if k.err != nil {
		return
	}
	n, err := k.w.Write(b)
	k.n += int64(n)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	k.err = err
	k.crc = crc32.Update(k.crc, castagnoli, b)
}
