package disk

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/mortise-lock/mortise/node/logstore"
)

// Format is the version of the layout that this package writes; it reads all
// up to it.
const Format = 1

// maxMeta caps a record of PutMeta, in bytes.
const maxMeta = 1 << 20

// Identity says whose directory it is.
type Identity struct {
	ClusterID string
	NodeID    uint64
	// Format is the layout's version. Set by the store.
	Format uint64
}

// get returns a copy of the payload, or nil when there is none.
func (s *Store) get(key []byte) ([]byte, error) {
	v, c, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		if pebble.IsCorruptionError(err) {
			return nil, fmt.Errorf("%w: %q: %w", logstore.ErrCorrupt, key, err)
		}
		return nil, err
	}
	defer func() { _ = c.Close() }()
	p, err := unseal(key, v)
	if err != nil {
		return nil, fmt.Errorf("%w: %q: %w", logstore.ErrCorrupt, key, err)
	}
	return append([]byte{}, p...), nil
}

func (s *Store) getNumber(key []byte) (n uint64, found bool, err error) {
	p, err := s.get(key)
	if p == nil || err != nil {
		return 0, false, err
	}
	r := reader{b: p}
	n = r.uvarint("number")
	if err := r.end(); err != nil {
		return 0, false, fmt.Errorf("%w: %q: %w", logstore.ErrCorrupt, key, err)
	}
	return n, true, nil
}

// checkFormat refuses newer layouts and other people's stores, and marks a new
// one; made tells that it did so.
func (s *Store) checkFormat(existed bool) (made bool, err error) {
	format, found, err := s.getNumber(keyFormat)
	if err != nil {
		return false, err
	}
	if found {
		if format > Format {
			return false, fmt.Errorf("%w: format %d, this program knows up to %d", ErrNewer, format, Format)
		}
		return false, nil
	}
	if existed {
		// Killed before the first write of all, or not ours.
		it, err := s.db.NewIter(nil)
		if err != nil {
			return false, err
		}
		empty := !it.First()
		if err := it.Close(); err != nil {
			return false, err
		}
		if !empty {
			return false, fmt.Errorf("%w: it holds a store that this program did not make", ErrForeign)
		}
	}
	return true, s.set(keyFormat, appendNumber(nil, Format))
}

func (s *Store) loadIdentity() error {
	p, err := s.get(keyIdentity)
	if p == nil || err != nil {
		return err
	}
	r := reader{b: p}
	id := Identity{NodeID: r.uvarint("node id"), Format: Format}
	if r.err != nil {
		return fmt.Errorf("%w: identity: %w", logstore.ErrCorrupt, r.err)
	}
	id.ClusterID = string(r.b)
	s.identity = &id
	return nil
}

// Identity returns whose directory it is; false for a new one.
func (s *Store) Identity() (Identity, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.identity == nil {
		return Identity{}, false
	}
	return *s.identity, true
}

// PutIdentity makes a new directory this node's, durably. Repeating it is
// fine; another identity than the stored one is an error that wraps ErrForeign.
func (s *Store) PutIdentity(id Identity) error {
	if id.ClusterID == "" || id.NodeID == 0 {
		return errors.New("disk: Identity needs ClusterID and NodeID")
	}
	id.Format = Format
	if have, ok := s.Identity(); ok {
		return s.mustBe(have, id)
	}
	v := append(binary.AppendUvarint([]byte{0, 0, 0, 0}, id.NodeID), id.ClusterID...)
	if err := s.set(keyIdentity, v); err != nil {
		return err
	}
	s.mu.Lock()
	s.identity = &id
	s.mu.Unlock()
	return nil
}

// CheckIdentity refuses a directory of another cluster or node (ErrForeign). An
// empty ClusterID or a NodeID of 0 fits any. A new directory fits all.
func (s *Store) CheckIdentity(want Identity) error {
	have, ok := s.Identity()
	if !ok {
		return nil
	}
	if want.ClusterID == "" {
		want.ClusterID = have.ClusterID
	}
	if want.NodeID == 0 {
		want.NodeID = have.NodeID
	}
	return s.mustBe(have, want)
}

func (s *Store) mustBe(have, want Identity) error {
	switch {
	case have.ClusterID != want.ClusterID:
		return s.explain(fmt.Errorf("%w: it is of cluster %s, not %s", ErrForeign, have.ClusterID, want.ClusterID))
	case have.NodeID != want.NodeID:
		return s.explain(fmt.Errorf("%w: it is of node %d, not %d", ErrForeign, have.NodeID, want.NodeID))
	}
	return nil
}

// PutMeta stores a small record of the node under a name, durably: for what
// must survive a restart beside the logs. Up to 1 MiB. It waits for the disk.
func (s *Store) PutMeta(name string, value []byte) error {
	if len(value) > maxMeta {
		return fmt.Errorf("disk: record %q has %d bytes, at most %d are stored", name, len(value), maxMeta)
	}
	return s.set(metaKey(name), append([]byte{0, 0, 0, 0}, value...))
}

// Meta returns a record of PutMeta, or nil when there is none.
func (s *Store) Meta(name string) ([]byte, error) {
	if err := s.Failed(); err != nil {
		return nil, err
	}
	if !s.dbGone.TryRLock() {
		return nil, pebble.ErrClosed
	}
	defer s.dbGone.RUnlock()
	var v []byte
	err := s.guard(func() (err error) {
		v, err = s.get(metaKey(name))
		return err
	})
	return v, err
}

// set writes one record with a sync of its own. value has room for the sum.
func (s *Store) set(key, value []byte) error {
	if err := s.Failed(); err != nil {
		return err
	}
	if !s.dbGone.TryRLock() {
		return pebble.ErrClosed
	}
	defer s.dbGone.RUnlock()
	return s.guard(func() error {
		err := s.db.Set(key, seal(key, value), pebble.Sync)
		if err != nil {
			s.fail(err)
		}
		return err
	})
}
