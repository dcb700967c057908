package disk

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/mortise-lock/mortise/node/logstore"
	"github.com/mortise-lock/mortise/shard"
)

// rangeDeleteAbove is how many entries must go at once before a range
// tombstone is worth it: every table load reads all of its range tombstones.
const rangeDeleteAbove = 100_000

// replica is what the writer knows about a replica: enough to check a step and
// to find the keys that it makes obsolete, without a read.
type replica struct {
	id   uint64
	hard logstore.HardState
	// base and truncated as stored. Entries are at truncated+1 ... last, none
	// when last == truncated.
	base            logstore.Base
	truncated, last uint64
}

// plan is the next state of a replica and what the step deletes.
type plan struct {
	next replica
	// del are ranges of indexes to delete, both ends included.
	del [2][2]uint64
	// base and hard say which of the two are to be written.
	base, hard bool
}

// step works out what a step does; r is nil for a new replica. An impossible
// step is an error that wraps logstore.ErrInvalid.
func (r *replica) step(a *logstore.Append) (p plan, err error) {
	bad := func(format string, args ...any) (plan, error) {
		return p, fmt.Errorf("%w: shard %d, replica %d: %s", logstore.ErrInvalid, a.Shard, a.Replica, fmt.Sprintf(format, args...))
	}
	fresh := r == nil
	if !fresh {
		p.next = *r
	}
	n := &p.next
	if a.Replica == 0 {
		return bad("it has no replica id")
	}
	if fresh || n.id != a.Replica {
		if a.Base == nil || a.HardState == nil || !fresh && !a.ResetLog {
			return bad("a replica begins with Base and HardState (and ResetLog in place of replica %d)", n.id)
		}
		n.id = a.Replica
	}
	if a.Base != nil {
		if !a.ResetLog && !fresh && a.Base.Index < n.base.Index {
			return bad("base %d is before base %d", a.Base.Index, n.base.Index)
		}
		n.base, p.base = *a.Base, true
	} else if a.ResetLog {
		return bad("ResetLog without Base")
	}
	if fresh || a.ResetLog {
		p.del[0] = [2]uint64{n.truncated + 1, n.last}
		n.truncated, n.last = n.base.Index, n.base.Index
	}
	if a.TruncateTo > n.truncated {
		if a.TruncateTo > n.base.Index {
			return bad("truncation to %d is past the base %d", a.TruncateTo, n.base.Index)
		}
		p.del[0] = [2]uint64{n.truncated + 1, min(a.TruncateTo, n.last)}
		n.truncated, p.base = a.TruncateTo, true
	}
	if len(a.Entries) > 0 {
		first := a.Entries[0].GetIndex()
		if first <= n.truncated || first > n.last+1 {
			return bad("entries begin at %d but the log is %d to %d", first, n.truncated+1, n.last)
		}
		for i, e := range a.Entries {
			if e.GetIndex() != first+uint64(i) {
				return bad("entry %d follows entry %d", e.GetIndex(), first+uint64(i)-1)
			}
		}
		end := first + uint64(len(a.Entries)) - 1
		if end < n.last {
			p.del[1] = [2]uint64{end + 1, n.last}
		}
		n.last = end
	}
	if a.HardState != nil {
		n.hard = *a.HardState
	}
	p.hard = a.HardState != nil || p.base
	if n.hard.Commit < n.base.Index || n.hard.Commit > n.last {
		return bad("commit index %d would not be within base %d and last index %d", n.hard.Commit, n.base.Index, n.last)
	}
	return p, nil
}

// encoder writes steps into a batch; its buffers are reused.
type encoder struct {
	key, value []byte
}

// write puts a step and what it makes obsolete into b.
func (c *encoder) write(b *pebble.Batch, a *logstore.Append, p *plan) error {
	for _, d := range p.del {
		if err := c.delete(b, a.Shard, d[0], d[1]); err != nil {
			return err
		}
	}
	for _, e := range a.Entries {
		op := b.SetDeferred(entryKeyLen, entrySize(e))
		entryKey(op.Key[:0], a.Shard, e.GetIndex())
		seal(op.Key, appendEntry(op.Value[:0], e))
		if err := op.Finish(); err != nil {
			return err
		}
	}
	if p.base {
		var err error
		c.key = shardKey(c.key[:0], prefixBase, a.Shard)
		if c.value, err = appendBase(c.value[:0], p.next.id, p.next.truncated, &p.next.base); err != nil {
			return fmt.Errorf("shard %d: configuration cannot be encoded: %w", a.Shard, err)
		}
		if err := b.Set(c.key, seal(c.key, c.value), nil); err != nil {
			return err
		}
	}
	if p.hard {
		c.key = shardKey(c.key[:0], prefixHard, a.Shard)
		c.value = appendHardState(c.value[:0], p.next.hard)
		return b.Set(c.key, seal(c.key, c.value), nil)
	}
	return nil
}

// delete removes the entries from one index to another, both included.
func (c *encoder) delete(b *pebble.Batch, s shard.ID, from, to uint64) error {
	if from == 0 || from > to {
		return nil
	}
	c.key = entryKey(c.key[:0], s, from)
	if to-from >= rangeDeleteAbove {
		return b.DeleteRange(c.key, entryKey(nil, s, to+1), nil)
	}
	for i := from; i <= to; i++ {
		c.key = entryKey(c.key[:0], s, i)
		if err := b.Delete(c.key, nil); err != nil {
			return err
		}
	}
	return nil
}

// stepSize estimates a step's bytes in a batch.
func stepSize(a *logstore.Append) int {
	n := 64
	for _, e := range a.Entries {
		n += entryKeyLen + entrySize(e) + 4
	}
	return n
}
