package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"

	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/shard"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Key prefixes.
const (
	prefixHard  = 'h'
	prefixEntry = 'l'
	prefixStore = 's'
	prefixBase  = 't'
)

var (
	keyFormat   = []byte("sformat")
	keyIdentity = []byte("sidentity")
	keySeq      = []byte("sseq")
)

const (
	entryKeyLen = 17
	shardKeyLen = 9
	sumLen      = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func entryKey(b []byte, s shard.ID, index uint64) []byte {
	b = append(b, prefixEntry)
	b = binary.BigEndian.AppendUint64(b, uint64(s))
	return binary.BigEndian.AppendUint64(b, index)
}

func shardKey(b []byte, prefix byte, s shard.ID) []byte {
	return binary.BigEndian.AppendUint64(append(b, prefix), uint64(s))
}

func metaKey(name string) []byte { return append([]byte("sm/"), name...) }

// parseKey returns the shard and, for an entry, the index.
func parseKey(key []byte) (s shard.ID, index uint64, err error) {
	want := shardKeyLen
	if key[0] == prefixEntry {
		want = entryKeyLen
	}
	if len(key) != want {
		return 0, 0, fmt.Errorf("%w: key %x has %d bytes, want %d", logstore.ErrCorrupt, key, len(key), want)
	}
	id := binary.BigEndian.Uint64(key[1:])
	if id > uint64(^shard.ID(0)) {
		return 0, 0, fmt.Errorf("%w: key %x names shard %d, which cannot be", logstore.ErrCorrupt, key, id)
	}
	if want == entryKeyLen {
		index = binary.BigEndian.Uint64(key[shardKeyLen:])
	}
	return shard.ID(id), index, nil
}

// seal puts the sum over key and payload into the first bytes of value, which
// the caller left free.
func seal(key, value []byte) []byte {
	sum := crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value[sumLen:])
	binary.LittleEndian.PutUint32(value, sum)
	return value
}

var errSum = errors.New("checksum does not match")

// unseal checks the sum and returns the payload, which aliases value.
func unseal(key, value []byte) ([]byte, error) {
	if len(value) < sumLen {
		return nil, fmt.Errorf("value has only %d bytes", len(value))
	}
	sum := crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value[sumLen:])
	if binary.LittleEndian.Uint32(value) != sum {
		return nil, errSum
	}
	return value[sumLen:], nil
}

// reader takes uvarints from a payload; the first failure sticks.
type reader struct {
	b   []byte
	err error
}

func (r *reader) uvarint(field string) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		if r.err == nil {
			r.err = fmt.Errorf("%s is cut off", field)
		}
		r.b = nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		return fmt.Errorf("%d bytes too many", len(r.b))
	}
	return r.err
}

// entrySize is the exact size of an entry's value.
func entrySize(e *raftpb.Entry) int {
	return sumLen + uvarintLen(e.GetTerm()) + uvarintLen(uint64(e.GetType())) + len(e.GetData())
}

func uvarintLen(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

func appendEntry(b []byte, e *raftpb.Entry) []byte {
	b = append(b, 0, 0, 0, 0)
	b = binary.AppendUvarint(b, e.GetTerm())
	b = binary.AppendUvarint(b, uint64(e.GetType()))
	return append(b, e.GetData()...)
}

func decodeEntry(key, value []byte, index uint64) (*raftpb.Entry, error) {
	p, err := unseal(key, value)
	if err != nil {
		return nil, err
	}
	r := reader{b: p}
	term, typ := r.uvarint("term"), r.uvarint("type")
	if r.err != nil {
		return nil, r.err
	}
	t := raftpb.EntryType(typ)
	if _, ok := raftpb.EntryType_name[int32(t)]; !ok {
		return nil, fmt.Errorf("unknown entry type %d", typ)
	}
	e := &raftpb.Entry{Term: &term, Index: &index, Type: &t}
	if len(r.b) > 0 {
		e.Data = append([]byte(nil), r.b...)
	}
	return e, nil
}

func appendHardState(b []byte, h logstore.HardState) []byte {
	b = append(b, 0, 0, 0, 0)
	b = binary.AppendUvarint(b, h.Term)
	b = binary.AppendUvarint(b, h.Vote)
	return binary.AppendUvarint(b, h.Commit)
}

func decodeHardState(key, value []byte) (h logstore.HardState, err error) {
	p, err := unseal(key, value)
	if err != nil {
		return h, err
	}
	r := reader{b: p}
	h = logstore.HardState{Term: r.uvarint("term"), Vote: r.uvarint("vote"), Commit: r.uvarint("commit")}
	return h, r.end()
}

func appendBase(b []byte, replica, truncated uint64, base *logstore.Base) ([]byte, error) {
	b = append(b, 0, 0, 0, 0)
	b = binary.AppendUvarint(b, replica)
	b = binary.AppendUvarint(b, base.Index)
	b = binary.AppendUvarint(b, base.Term)
	b = binary.AppendUvarint(b, truncated)
	b = binary.AppendUvarint(b, uint64(len(base.Snapshot)))
	b = append(b, base.Snapshot...)
	if base.ConfState == nil {
		return b, nil
	}
	return proto.MarshalOptions{}.MarshalAppend(b, base.ConfState)
}

func decodeBase(key, value []byte) (replica, truncated uint64, base logstore.Base, err error) {
	p, err := unseal(key, value)
	if err != nil {
		return 0, 0, base, err
	}
	r := reader{b: p}
	replica = r.uvarint("replica")
	base.Index, base.Term = r.uvarint("index"), r.uvarint("term")
	truncated = r.uvarint("truncated index")
	n := r.uvarint("length of the snapshot's name")
	if r.err != nil {
		return 0, 0, base, r.err
	}
	if n > uint64(len(r.b)) {
		return 0, 0, base, errors.New("the snapshot's name is cut off")
	}
	base.Snapshot = string(r.b[:n])
	base.ConfState = &raftpb.ConfState{}
	if err := proto.Unmarshal(r.b[n:], base.ConfState); err != nil {
		return 0, 0, base, fmt.Errorf("configuration: %w", err)
	}
	return replica, truncated, base, nil
}

func appendNumber(b []byte, n uint64) []byte { return binary.AppendUvarint(append(b, 0, 0, 0, 0), n) }
