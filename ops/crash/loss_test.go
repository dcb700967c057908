package crash

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/mortise-lock/mortise/shard"
)

// loss is what crashes took away, summed over the disks of all nodes.
type loss struct {
	crashes int // that took anything
	files   int // with at least one byte lost, or lost as a whole
	bytes   int // written before the crash and not there, or not the same, after it
	entries int // at the ends of the shards' logs
}

func (l loss) String() string {
	return fmt.Sprintf("%d of them lost something: %d bytes in %d files, and of the ends of logs %d entries", l.crashes, l.bytes, l.files, l.entries)
}

// add compares disks that lost nothing with those after the crash.
func (l *loss) add(whole, disks []*vfs.MemFS) {
	before := *l
	for i, w := range whole {
		l.compare(w, disks[i], "/")
		l.logs(w, disks[i])
	}
	if before != *l {
		l.crashes++
	}
}

func (l *loss) compare(whole, left *vfs.MemFS, dir string) {
	names, err := whole.List(dir)
	if err != nil {
		return
	}
	for _, name := range names {
		path := whole.PathJoin(dir, name)
		st, err := whole.Stat(path)
		if err != nil {
			continue
		}
		if st.IsDir() {
			l.compare(whole, left, path)
			continue
		}
		a, b := content(whole, path), content(left, path)
		lost := max(0, len(a)-len(b))
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				lost++
			}
		}
		l.bytes += lost
		if lost > 0 {
			l.files++
		}
	}
}

// content is nil if there is no such file.
func content(fs *vfs.MemFS, path string) []byte {
	f, err := fs.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() == 0 {
		return nil
	}
	b := make([]byte, st.Size())
	n, _ := f.ReadAt(b, 0)
	return b[:n]
}

// logs looks at copies: opening a store writes to its disk.
func (l *loss) logs(whole, left *vfs.MemFS) {
	a, err := recoverNode(whole)
	if err != nil {
		return
	}
	b, err := recoverNode(left.CrashClone(vfs.CrashCloneCfg{}))
	if err != nil {
		return
	}
	for id := range a.states {
		x, y := a.terms(id), b.terms(id)
		for index, term := range x {
			if y[index] != term && index > b.states[id].Base.Index {
				l.entries++
			}
		}
	}
}

// terms of the entries of a shard's log by index.
func (r *recovered) terms(id shard.ID) map[uint64]uint64 {
	out := map[uint64]uint64{}
	for _, e := range r.states[id].Entries {
		out[e.GetIndex()] = e.GetTerm()
	}
	return out
}
