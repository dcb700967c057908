package checker

import (
	"encoding/binary"
	"testing"

	"github.com/mortise-lock/mortise/ops/history"
)

// FuzzCheck: whatever events there are, Check comes to an end without a panic,
// and points only to events that exist.
func FuzzCheck(f *testing.F) {
	f.Add([]byte{})
	for seed := range uint64(4) {
		var b []byte
		for _, e := range randomHistory(seed, 400*ms) {
			b = encode(b, &e)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		events := decode(b)
		for _, v := range Check(events, Options{ServeWithin: 5, FreeWithin: 5, ForgivePaused: len(b)%2 == 0, MaxSteps: 2000}) {
			if v.Text == "" || v.Promise == "" || Checks[v.Check] == "" {
				t.Fatalf("a violation without words: %+v", v)
			}
			for _, i := range v.Events {
				if i < 0 || i >= len(events) {
					t.Fatalf("%v points to event %d of %d", v, i, len(events))
				}
			}
		}
	})
}

const eventSize = 16

func encode(b []byte, e *history.Event) []byte {
	b = append(b, byte(e.Kind), byte(e.Op), byte(e.Outcome), byte(e.Mode), byte(e.Client), byte(e.Permits), byte(e.Limit), byte(len(e.Name)))
	b = binary.LittleEndian.AppendUint16(b, uint16(e.Call))
	b = binary.LittleEndian.AppendUint16(b, uint16(e.Token))
	return append(b, byte(e.At/ms), byte(e.Seq), byte(len(e.Holders)), byte(e.Of))
}

func decode(b []byte) []history.Event {
	var events []history.Event
	at := history.Time(0)
	for ; len(b) >= eventSize && len(events) < 400; b = b[eventSize:] {
		at += history.Time(b[12] % 8)
		if b[12] == 255 {
			at -= 3
		}
		e := history.Event{Kind: history.Kind(b[0] % 20), Op: history.Op(b[1] % 7), Outcome: history.Outcome(b[2] % 7), Mode: history.Mode(b[3] % 5),
			Client: int(int8(b[4])), Node: int(b[4]), Permits: uint32(b[5]), Limit: uint32(b[6] % 8), Name: []string{"", "a", "b"}[b[7]%3],
			Call: uint64(binary.LittleEndian.Uint16(b[8:])) % 64, Token: uint64(binary.LittleEndian.Uint16(b[10:])) % 64, At: at,
			Seq: uint64(b[13] % 3), Of: uint64(b[15] % 64), Session: []string{"", "x", "y", "z"}[b[4]%4], TTL: history.Time(b[6]),
			Accepted: b[5]%2 == 0, Unchecked: b[6]%4 == 0, Shard: uint32(b[7] % 3), Index: uint64(b[8] % 4), Hash: uint64(b[9] % 2), Count: int64(b[5])}
		for i := range b[14] % 5 {
			e.Holders = append(e.Holders, history.Holder{Session: []string{"", "x", "y", "z"}[(b[15]+i)%4], Token: uint64(b[15]/4+3*i) % 64, Mode: history.Mode((b[3] + i) % 5), Permits: uint32(i)})
		}
		events = append(events, e)
	}
	return events
}
