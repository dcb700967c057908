// Package sessionid makes and reads session strings: what clients hold, and
// what any gateway of the cluster can verify without asking anybody.
//
// Format: "s_" + base64url(payload || MAC), without padding.
//
//	payload = version 1 (1 byte) | session id (16) | TTL in ms (uvarint) |
//	          wall clock of opening in ms (uvarint) |
//	          client name (uvarint length, bytes) |
//	          identity that opened it (uvarint length, bytes; empty for now)
//	MAC     = first 16 bytes of HMAC-SHA256(key, "mortise session" || payload)
//
// The key is derived from the cluster's key, so that the string proves nothing
// outside this use. The string is a bearer secret: it is not for logs.
package sessionid

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"github.com/mortise-lock/mortise/gateway/core"
)

const (
	prefix  = "s_"
	version = 1
	macSize = 16
	// maxLen bounds what Verify looks at: a client name of 256 bytes fits.
	maxLen = 1024
)

// Errors of Verify; texts continue "session_id is …".
var (
	ErrMalformed = errors.New("malformed: it must be a string that OpenSession or a session stream returned, unchanged")
	ErrForeign   = errors.New("not of this cluster: it was not made with this cluster's key")
	ErrVersion   = errors.New("of a newer format than this gateway knows")
)

// Codec mints and verifies under one cluster's key. Safe for concurrent use.
type Codec struct{ key []byte }

// New derives a Codec from the cluster's key.
func New(clusterKey []byte) *Codec {
	h := hmac.New(sha256.New, clusterKey)
	h.Write([]byte("mortise session key 1"))
	return &Codec{key: h.Sum(nil)}
}

func (c *Codec) mac(payload []byte) []byte {
	h := hmac.New(sha256.New, c.key)
	h.Write([]byte("mortise session"))
	h.Write(payload)
	return h.Sum(nil)[:macSize]
}

// Mint makes the string of a session.
func (c *Codec) Mint(id core.Identity) string {
	b := make([]byte, 0, 64+len(id.Client))
	b = append(b, version)
	b = append(b, id.Session[:]...)
	b = binary.AppendUvarint(b, uint64(id.TTL/time.Millisecond))
	b = binary.AppendUvarint(b, uint64(max(id.OpenedMS, 0)))
	b = binary.AppendUvarint(b, uint64(len(id.Client)))
	b = append(b, id.Client...)
	b = binary.AppendUvarint(b, 0)
	b = append(b, c.mac(b)...)
	return prefix + base64.RawURLEncoding.EncodeToString(b)
}

// Verify reads a string. Its error texts continue "session_id is …".
func (c *Codec) Verify(s string) (core.Identity, error) {
	var id core.Identity
	if len(s) > maxLen || !strings.HasPrefix(s, prefix) {
		return id, ErrMalformed
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s[len(prefix):])
	if err != nil || len(b) < 1+16+4+macSize {
		return id, ErrMalformed
	}
	b, mac := b[:len(b)-macSize], b[len(b)-macSize:]
	if !hmac.Equal(mac, c.mac(b)) {
		return id, ErrForeign
	}
	if b[0] != version {
		return id, ErrVersion
	}
	copy(id.Session[:], b[1:])
	b = b[17:]
	var n [3]uint64
	for i := range n {
		v, k := binary.Uvarint(b)
		if k <= 0 {
			return core.Identity{}, ErrMalformed
		}
		n[i], b = v, b[k:]
	}
	if n[2] > uint64(len(b)) {
		return core.Identity{}, ErrMalformed
	}
	id.TTL, id.OpenedMS = time.Duration(n[0])*time.Millisecond, int64(n[1])
	id.Client = string(b[:n[2]])
	return id, nil
}
