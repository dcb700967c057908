package placement

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cespare/xxhash/v2"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"google.golang.org/protobuf/proto"
)

// Errors of Restore.
var (
	// ErrCorrupt: the snapshot's bytes are not what was written.
	ErrCorrupt = errors.New("placement: snapshot is corrupt")
	// ErrNewerFormat: a newer build wrote the snapshot.
	ErrNewerFormat = errors.New("placement: snapshot was written by a newer build")
)

// MaxSnapshotBytes bounds what Restore reads.
const MaxSnapshotBytes = 64 << 20

const (
	snapshotMagic  = "MPLM"
	snapshotFormat = 1
	snapshotHead   = 4 + 1 + 8 + 4
	snapshotTail   = 8
)

// Machine is the replicated state of the meta shard. Not safe for concurrent
// use; the maps that it returns are, because nobody changes them.
type Machine struct {
	applied uint64
	m       *placementv1.Map
}

// Result is what applying one entry did.
type Result struct {
	// Map is the map after the entry. The same pointer as before when nothing
	// changed.
	Map *placementv1.Map
	// Changed is set when the entry made a new generation.
	Changed bool
	// Refused is a *RuleError when the command breaks a rule; nothing changed.
	Refused error
}

// NewMachine starts from a map that is contained in everything up to index
// applied. The caller gives m up.
func NewMachine(m *placementv1.Map, applied uint64) (*Machine, error) {
	if err := Validate(m); err != nil {
		return nil, err
	}
	return &Machine{applied: applied, m: m}, nil
}

// Map returns the present map. It is shared: never change it.
func (m *Machine) Map() *placementv1.Map { return m.m }

// Applied returns the index of the last applied entry.
func (m *Machine) Applied() uint64 { return m.applied }

// Apply applies one entry; index must follow Applied. Empty data is raft's own
// entry and changes nothing. An error means that this replica can't go on.
func (m *Machine) Apply(index, term uint64, data []byte) (Result, error) {
	if index != m.applied+1 {
		return Result{}, fmt.Errorf("placement: entry %d of term %d does not follow applied index %d", index, term, m.applied)
	}
	if len(data) == 0 {
		m.applied = index
		return Result{Map: m.m}, nil
	}
	c, err := DecodeCommand(data)
	if err != nil {
		return Result{}, fmt.Errorf("placement: entry %d of term %d: %w", index, term, err)
	}
	m.applied = index
	next := &mutableMap{proto.CloneOf(m.m)}
	changed, err := c.apply(next)
	if err != nil || !changed {
		return Result{Map: m.m, Refused: err}, nil
	}
	next.Generation++
	if err := Validate(next.Map); err != nil {
		// A command can't lead from a valid map to an invalid one; refusing alike on
		// every replica is safe all the same.
		return Result{Map: m.m, Refused: err}, nil
	}
	m.m = next.Map
	return Result{Map: m.m, Changed: true}, nil
}

// Hash is equal on replicas with equal Applied.
func (m *Machine) Hash() uint64 {
	var d xxhash.Digest
	d.Reset()
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], m.applied)
	d.Write(b[:])
	d.Write(marshal(m.m))
	return d.Sum64()
}

// Snapshot is the machine's state at one index. Safe to write on another
// goroutine while the machine goes on.
type Snapshot struct {
	applied uint64
	m       *placementv1.Map
}

// Snapshot returns the state as it is now; it costs nothing.
func (m *Machine) Snapshot() *Snapshot { return &Snapshot{m.applied, m.m} }

// Index is the index of the last entry contained.
func (s *Snapshot) Index() uint64 { return s.applied }

// Close frees nothing; it is there for symmetry with a lock shard's snapshot.
func (s *Snapshot) Close() {}

// Bytes returns the snapshot in the format of doc.go.
func (s *Snapshot) Bytes() []byte {
	body := marshal(s.m)
	b := make([]byte, 0, snapshotHead+len(body)+snapshotTail)
	b = append(b, snapshotMagic...)
	b = append(b, snapshotFormat)
	b = binary.BigEndian.AppendUint64(b, s.applied)
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	b = append(b, body...)
	return binary.BigEndian.AppendUint64(b, xxhash.Sum64(b))
}

// WriteTo writes Bytes to w.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(s.Bytes())
	return int64(n), err
}

// Restore reads a snapshot to its end. The error is, or wraps, ErrCorrupt or
// ErrNewerFormat, or is that of r; nothing is ever half loaded.
func Restore(r io.Reader) (*Machine, error) {
	b, err := io.ReadAll(io.LimitReader(r, MaxSnapshotBytes+1))
	if err != nil {
		return nil, err
	}
	corrupt := func(format string, args ...any) (*Machine, error) {
		return nil, fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
	}
	switch {
	case len(b) > MaxSnapshotBytes:
		return corrupt("more than %d bytes", MaxSnapshotBytes)
	case len(b) < snapshotHead+snapshotTail:
		return corrupt("%d bytes are too few", len(b))
	case !bytes.HasPrefix(b, []byte(snapshotMagic)):
		return corrupt("it does not begin with %s", snapshotMagic)
	}
	content, sum := b[:len(b)-snapshotTail], binary.BigEndian.Uint64(b[len(b)-snapshotTail:])
	if xxhash.Sum64(content) != sum {
		return corrupt("checksum does not match")
	}
	if content[4] > snapshotFormat {
		return nil, fmt.Errorf("%w: it has format %d, this build knows %d", ErrNewerFormat, content[4], snapshotFormat)
	}
	if content[4] == 0 {
		return corrupt("format 0")
	}
	if n := binary.BigEndian.Uint32(content[13:]); int(n) != len(content)-snapshotHead {
		return corrupt("the map should have %d bytes and has %d", n, len(content)-snapshotHead)
	}
	m := new(placementv1.Map)
	if err := proto.Unmarshal(content[snapshotHead:], m); err != nil {
		return corrupt("%v", err)
	}
	machine, err := NewMachine(m, binary.BigEndian.Uint64(content[5:]))
	if err != nil {
		return corrupt("%v", err)
	}
	return machine, nil
}

// mutableMap is a clone that a command may change.
type mutableMap struct{ *placementv1.Map }

func (m *mutableMap) node(id uint64) *placementv1.Node {
	for _, n := range m.Nodes {
		if n.Id == id {
			return n
		}
	}
	return nil
}

// marshal is deterministic: a map has no protobuf map fields, so the bytes are
// its fields in order of number.
func marshal(m *placementv1.Map) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		// Only a string that is no UTF-8 can do this, and Validate refuses those.
		panic(fmt.Sprintf("placement: a valid map does not marshal: %v", err))
	}
	return b
}
