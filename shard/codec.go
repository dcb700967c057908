package shard

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The bytes of a batch, the content of one log entry:
//
//	version  1 byte, batchVersion
//	time     varint, ns of leader time
//	wall     varint, ms
//	count    uvarint
//	count times a command: kind (1 byte), then the fields of that kind in the
//	order of coder.command
//
// Integers are varints (zigzag where negative values are legal), strings carry
// their length, an AcquireID is one tag byte (0 none, 1 seq, 2 request id) and
// its value. Only the fields that count for a kind are stored. A later format
// gets another version byte; a kind that a reader does not know is an error,
// because a replica that skipped it would differ from the others.
const batchVersion = 1

// maxTime bounds leader time: a century and a half, so that adding a wait
// limit can't overflow.
const maxTime = 1 << 62

// ErrBadBatch is wrapped by every error of DecodeBatch.
var ErrBadBatch = errors.New("shard: log entry can't be decoded")

// AppendTo appends the encoded batch to dst.
func (b *Batch) AppendTo(dst []byte) []byte {
	dst = append(dst, batchVersion)
	dst = binary.AppendVarint(dst, int64(b.Time))
	dst = binary.AppendVarint(dst, b.WallMS)
	dst = binary.AppendUvarint(dst, uint64(len(b.Commands)))
	c := coder{out: dst}
	for i := range b.Commands {
		c.out = append(c.out, byte(b.Commands[i].Kind))
		c.command(&b.Commands[i])
	}
	return c.out
}

// DecodeBatch decodes what AppendTo encoded. Strings of the result share one
// copy of data. Errors wrap ErrBadBatch.
func DecodeBatch(data []byte) (Batch, error) {
	var b Batch
	err := decodeBatch(data, &b)
	return b, err
}

func decodeBatch(data []byte, b *Batch) error {
	b.Commands = b.Commands[:0]
	c := coder{in: string(data), reading: true}
	if v := c.byte(); c.err == nil && v != batchVersion {
		return fmt.Errorf("%w: version %d, this build knows %d", ErrBadBatch, v, batchVersion)
	}
	c.varint((*int64)(&b.Time))
	if b.Time < 0 || b.Time > maxTime {
		c.fail("a leader time out of range")
	}
	c.varint(&b.WallMS)
	var n uint64
	c.uvarint(&n)
	if c.err == nil && n > uint64(len(c.in)) {
		c.fail("more commands than bytes")
	}
	for i := uint64(0); i < n && c.err == nil; i++ {
		b.Commands = append(b.Commands, Command{Kind: Kind(c.byte())})
		c.command(&b.Commands[len(b.Commands)-1])
	}
	if c.err == nil && len(c.in) != 0 {
		c.fail("bytes behind the last command")
	}
	if c.err != nil {
		b.Commands = nil
	}
	return c.err
}

// coder writes or reads one field after the other, so that both directions
// share the list of fields.
type coder struct {
	reading bool
	in      string
	out     []byte
	err     error
}

func (c *coder) fail(what string) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %s", ErrBadBatch, what)
		c.in = ""
	}
}

func (c *coder) command(x *Command) {
	switch x.Kind {
	case KindRegister:
		c.raw16((*[16]byte)(&x.Session))
		c.text(&x.Client)
		c.varint(&x.TTL)
		c.uvarint(&x.Attachment)
		c.uvarint(&x.DoneBelow)
	case KindAttach:
		c.acting(x)
	case KindAcquire:
		c.acting(x)
		c.id(&x.Acquire)
		c.text(&x.Name)
		c.small((*uint8)(&x.Mode))
		c.uvarint32(&x.Permits)
		c.uvarint32(&x.Limit)
		c.varint(&x.Wait)
		c.varint(&x.LockDelay)
	case KindWaitOver:
		c.uvarint((*uint64)(&x.Registration))
		c.id(&x.Acquire)
		c.text(&x.Name)
	case KindCancel:
		c.acting(x)
		c.id(&x.Acquire)
		c.text(&x.Name)
	case KindRelease:
		c.acting(x)
		c.id(&x.Acquire)
		c.text(&x.Name)
		c.uvarint((*uint64)(&x.Token))
	case KindExpire:
		c.uvarint((*uint64)(&x.Registration))
		c.uvarint(&x.Epoch)
		c.uvarint(&x.Term)
	case KindClose:
		c.acting(x)
		c.small((*uint8)(&x.Reason))
		c.text(&x.By)
		c.text(&x.Why)
	case KindLeave:
		c.uvarint((*uint64)(&x.Registration))
	case KindWake:
		c.text(&x.Name)
		c.uvarint((*uint64)(&x.Token))
	case KindForceRelease:
		c.text(&x.Name)
		c.uvarint((*uint64)(&x.Token))
		c.text(&x.By)
		c.text(&x.Why)
	case KindHandover:
		n := uint64(len(x.Handover))
		c.uvarint(&n)
		if c.reading {
			if n > uint64(len(c.in)) {
				c.fail("more remaining times than bytes")
				return
			}
			if n > 0 {
				x.Handover = make([]Remaining, n)
			}
		}
		for i := range x.Handover {
			r := &x.Handover[i]
			c.uvarint((*uint64)(&r.Registration))
			c.uvarint(&r.Epoch)
			c.varint(&r.Left)
		}
	default:
		c.fail(fmt.Sprintf("unknown command kind %d", x.Kind))
	}
}

func (c *coder) acting(x *Command) {
	c.uvarint((*uint64)(&x.Registration))
	c.uvarint(&x.Attachment)
	c.uvarint(&x.DoneBelow)
}

func (c *coder) id(x *AcquireID) {
	var tag byte
	if !c.reading {
		if x.Seq != 0 {
			tag = 1
		} else if x.RequestID != [16]byte{} {
			tag = 2
		}
	}
	c.small(&tag)
	switch tag {
	case 0:
	case 1:
		c.uvarint(&x.Seq)
		if c.reading && x.Seq == 0 {
			c.fail("an acquire seq of 0")
		}
	case 2:
		c.raw16(&x.RequestID)
		if c.reading && c.err == nil && x.RequestID == [16]byte{} {
			c.fail("a request id of 0")
		}
	default:
		c.fail("unknown kind of acquire id")
	}
}

func (c *coder) byte() byte {
	if len(c.in) == 0 {
		c.fail("it ends too early")
		return 0
	}
	b := c.in[0]
	c.in = c.in[1:]
	return b
}

func (c *coder) small(x *uint8) {
	if c.reading {
		*x = c.byte()
	} else {
		c.out = append(c.out, *x)
	}
}

func (c *coder) uvarint(x *uint64) {
	if !c.reading {
		c.out = binary.AppendUvarint(c.out, *x)
		return
	}
	var v uint64
	for shift := uint(0); ; shift += 7 {
		b := c.byte()
		if c.err != nil {
			return
		}
		if shift == 63 && b > 1 {
			c.fail("an integer above 64 bits")
			return
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			if b == 0 && shift > 0 {
				c.fail("an integer longer than needed")
				return
			}
			*x = v
			return
		}
	}
}

func (c *coder) uvarint32(x *uint32) {
	v := uint64(*x)
	c.uvarint(&v)
	if c.reading {
		if v > 1<<32-1 {
			c.fail("an integer above 32 bits")
			return
		}
		*x = uint32(v)
	}
}

func (c *coder) varint(x *int64) {
	v := uint64(*x)<<1 ^ uint64(*x>>63)
	c.uvarint(&v)
	if c.reading {
		*x = int64(v>>1) ^ -int64(v&1)
	}
}

func (c *coder) text(s *string) {
	n := uint64(len(*s))
	c.uvarint(&n)
	if !c.reading {
		c.out = append(c.out, *s...)
		return
	}
	if n > uint64(len(c.in)) {
		c.fail("a string longer than the rest")
		return
	}
	*s, c.in = c.in[:n], c.in[n:]
}

func (c *coder) raw16(x *[16]byte) {
	if !c.reading {
		c.out = append(c.out, x[:]...)
		return
	}
	if len(c.in) < 16 {
		c.fail("it ends too early")
		return
	}
	copy(x[:], c.in)
	c.in = c.in[16:]
}
