package shard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"reflect"
	"testing"
)

func sampleBatch() Batch {
	id, rid := AcquireID{Seq: 300}, AcquireID{RequestID: [16]byte{1, 2}}
	return Batch{Time: 5, WallMS: -3, Commands: []Command{
		{Kind: KindRegister, Session: SessionID{9}, Client: "c", TTL: 1e10, Attachment: 2, DoneBelow: 4},
		{Kind: KindAttach, Registration: 1, Attachment: 2, DoneBelow: 3},
		{Kind: KindAcquire, Registration: 1, Attachment: 2, DoneBelow: 3, Acquire: id, Name: "n", Mode: Counted, Permits: 2, Limit: 3, Wait: 4, LockDelay: 5},
		{Kind: KindWaitOver, Registration: 1, Acquire: rid, Name: "n"},
		{Kind: KindCancel, Registration: 1, Attachment: 1, DoneBelow: 1, Acquire: rid, Name: "n"},
		{Kind: KindRelease, Registration: 1, Attachment: 1, DoneBelow: 1, Acquire: id, Name: "n", Token: 1 << 52},
		{Kind: KindExpire, Registration: 1, Epoch: 2, Term: 3},
		{Kind: KindClose, Registration: 1, Attachment: 2, DoneBelow: 3, Reason: ReasonRevoked, By: "op", Why: "gone"},
		{Kind: KindLeave, Registration: 1},
		{Kind: KindWake, Name: "n", Token: 7},
		{Kind: KindForceRelease, Name: "n", Token: 7, By: "op", Why: "stuck"},
		{Kind: KindHandover, Handover: []Remaining{{1, 2, 3}, {4, 5, -6}}},
	}}
}

func TestBatchRoundTrip(t *testing.T) {
	want := sampleBatch()
	data := want.AppendTo(nil)
	got, err := DecodeBatch(data)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%v\n got %+v\nwant %+v", err, got, want)
	}
	for i := range data {
		if _, err := DecodeBatch(data[:i]); !errors.Is(err, ErrBadBatch) {
			t.Fatalf("cut at %d: %v", i, err)
		}
	}
	if _, err := DecodeBatch(append(data, 0)); !errors.Is(err, ErrBadBatch) {
		t.Fatal(err)
	}
}

// TestUnknownIsNeverSkipped: an entry that this build can't understand stops
// the replica before anything of it applied.
func TestUnknownIsNeverSkipped(t *testing.T) {
	r := newRig(t)
	r.register(1)
	good := sampleBatch()
	data := good.AppendTo(nil)
	for name, bad := range map[string][]byte{
		"version": append([]byte{2}, data[1:]...),
		"kind":    (&Batch{Time: 1}).AppendTo(nil)[:3:3],
		"garbage": []byte("hello"),
	} {
		if name == "kind" {
			bad = append(bad, 1, 99)
		}
		hash, at := r.m.Hash(), r.m.Applied()
		if err := r.m.Apply(at+1, 1, bad, &r.out); !errors.Is(err, ErrBadBatch) {
			t.Fatalf("%s: %v", name, err)
		}
		if r.m.Hash() != hash || r.m.Applied() != at {
			t.Fatalf("%s: something changed", name)
		}
	}
	if err := r.m.Apply(r.m.Applied()+2, 1, nil, &r.out); err == nil {
		t.Fatal("a gap between entries is accepted")
	}
	if err := r.m.Apply(r.m.Applied()+1, 1, nil, &r.out); err != nil {
		t.Fatal("raft's own entries are refused:", err)
	}
}

func FuzzDecodeBatch(f *testing.F) {
	b := sampleBatch()
	f.Add(b.AppendTo(nil))
	f.Add([]byte{batchVersion, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := DecodeBatch(data)
		if err != nil {
			if !errors.Is(err, ErrBadBatch) {
				t.Fatal(err)
			}
			return
		}
		if again := b.AppendTo(nil); !bytes.Equal(again, data) {
			t.Fatalf("not canonical:\n%x\n%x", data, again)
		}
		m := New(Config{ID: 1, Floor: 1, Owns: everything()})
		var out Outcome
		if err := m.Apply(1, 1, data, &out); err != nil {
			t.Fatal(err)
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzHistory lets the fuzzer choose the seed and the number of steps of a
// random history beside the model.
func FuzzHistory(f *testing.F) {
	f.Add(int64(1), uint8(20))
	f.Fuzz(func(t *testing.T, seed int64, steps uint8) {
		h := newHistory(t, seed)
		for range steps {
			h.step()
		}
	})
}

// snapshotSamples are snapshots of a random history.
func snapshotSamples(t testing.TB) [][]byte {
	var out [][]byte
	for seed := range 4 {
		h := newHistory(t, int64(100+seed))
		for range 150 {
			h.step()
		}
		var buf bytes.Buffer
		s := h.rep[0].Snapshot()
		if _, err := s.WriteTo(&buf); err != nil {
			t.Fatal(err)
		}
		s.Close()
		out = append(out, buf.Bytes())
	}
	return out
}

// TestSnapshotDamage: every truncation and every flipped byte is noticed.
func TestSnapshotDamage(t *testing.T) {
	data := snapshotSamples(t)[0]
	if _, err := Restore(bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	for i := range data {
		if m, err := Restore(bytes.NewReader(data[:i])); !errors.Is(err, ErrCorrupt) || m != nil {
			t.Fatalf("cut at %d: %v", i, err)
		}
		bad := bytes.Clone(data)
		bad[i] ^= 0x10
		if m, err := Restore(bytes.NewReader(bad)); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerFormat) || m != nil {
			t.Fatalf("flipped at %d: %v", i, err)
		}
	}
	if _, err := Restore(bytes.NewReader(append(bytes.Clone(data), 0))); !errors.Is(err, ErrCorrupt) {
		t.Fatal("bytes behind the end are accepted")
	}
	newer := bytes.Clone(data)
	newer[len(snapshotMagic)] = snapshotFormat + 1
	if _, err := Restore(bytes.NewReader(newer)); !errors.Is(err, ErrNewerFormat) {
		t.Fatal(err)
	}
}

// payloadOf strips the frame of a snapshot of one chunk; frameOf puts it back
// with right checksums.
func payloadOf(snapshot []byte) []byte {
	b := snapshot[len(snapshotMagic)+4:]
	n := binary.LittleEndian.Uint32(b)
	return b[8 : 8+n]
}

func frameOf(payload []byte) []byte {
	b := append([]byte(snapshotMagic), snapshotFormat, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(payload, castagnoli))
	b = append(b, payload...)
	b = binary.LittleEndian.AppendUint32(b, 0)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func FuzzRestore(f *testing.F) {
	for _, s := range snapshotSamples(f) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Restore(bytes.NewReader(data))
		if err == nil {
			err = m.Check()
		} else if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerFormat) {
			t.Fatal(err)
		} else {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzRestoreRecords gets behind the checksums: what loads at all keeps every
// invariant and can go on.
func FuzzRestoreRecords(f *testing.F) {
	for _, s := range snapshotSamples(f) {
		f.Add(payloadOf(s))
	}
	b := sampleBatch()
	b.Time = 1 << 50
	entry := b.AppendTo(nil)
	f.Fuzz(func(t *testing.T, payload []byte) {
		if len(payload) == 0 || len(payload) > maxChunk {
			return
		}
		m, err := Restore(bytes.NewReader(frameOf(payload)))
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		if m.Applied() == 1<<64-1 {
			return
		}
		var out Outcome
		if err := m.Apply(m.Applied()+1, 1<<64-1, entry, &out); err != nil {
			t.Fatal(err)
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestMutatedRecords is a short deterministic run of FuzzRestoreRecords.
func TestMutatedRecords(t *testing.T) {
	loaded := 0
	for _, s := range snapshotSamples(t) {
		p := payloadOf(s)
		for i := range p {
			for _, x := range []byte{1, 2, 0x80, 0xff} {
				bad := bytes.Clone(p)
				bad[i] ^= x
				m, err := Restore(bytes.NewReader(frameOf(bad)))
				if err != nil {
					if !errors.Is(err, ErrCorrupt) {
						t.Fatal(err)
					}
					continue
				}
				loaded++
				if err := m.Check(); err != nil {
					t.Fatalf("byte %d xor %#x: %v", i, x, err)
				}
			}
		}
	}
	if loaded == 0 {
		t.Fatal("nothing loaded, so nothing was tested")
	}
}
