package placement

import (
	"bytes"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// reseal changes a snapshot and makes its checksum right again, so that what
// lies behind the checksum is tested too.
func reseal(snapshot []byte, change func([]byte)) []byte {
	b := bytes.Clone(snapshot)
	change(b)
	n := len(b) - snapshotTail
	binary.BigEndian.PutUint64(b[n:], xxhash.Sum64(b[:n]))
	return b
}
