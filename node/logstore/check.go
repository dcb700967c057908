package logstore

import "fmt"

// Check tells whether s is a state that a replica can have on disk. Its error
// wraps ErrCorrupt and names the shard and, where there is one, the index.
//
//  1. A replica has an id and a base.
//  2. Entries have no gap, and reach back to the base at least.
//  3. Terms begin at 1 or later and never fall; an entry at the base has the
//     base's term, and one after it no lower term.
//  4. Base.Index <= HardState.Commit <= last index.
//  5. HardState.Term >= the term of the last entry and of the base.
func Check(s *ReplicaState) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: shard %d: %s", ErrCorrupt, s.Shard, fmt.Sprintf(format, args...))
	}
	if s.Replica == 0 {
		return bad("no replica id is stored")
	}
	last, lastTerm := s.Base.Index, s.Base.Term
	for i, e := range s.Entries {
		index, term := e.GetIndex(), e.GetTerm()
		switch {
		case i == 0 && index > s.Base.Index+1:
			return bad("entries begin at index %d, after the base %d: entries are missing", index, s.Base.Index)
		case i > 0 && index != s.Entries[i-1].GetIndex()+1:
			return bad("index %d follows index %d: entries are missing", index, s.Entries[i-1].GetIndex())
		case term == 0:
			return bad("index %d has term 0", index)
		case i > 0 && term < s.Entries[i-1].GetTerm():
			return bad("index %d has term %d, lower than term %d before it", index, term, s.Entries[i-1].GetTerm())
		case index == s.Base.Index && term != s.Base.Term:
			return bad("index %d has term %d but the base there has term %d", index, term, s.Base.Term)
		case index > s.Base.Index && term < s.Base.Term:
			return bad("index %d has term %d, lower than the base's term %d", index, term, s.Base.Term)
		}
	}
	if n := len(s.Entries); n > 0 {
		if i := s.Entries[n-1].GetIndex(); i < s.Base.Index {
			return bad("entries end at index %d, before the base %d", i, s.Base.Index)
		}
		last, lastTerm = s.Entries[n-1].GetIndex(), s.Entries[n-1].GetTerm()
	}
	if c := s.HardState.Commit; c < s.Base.Index || c > last {
		return bad("commit index %d is not within base %d and last index %d", c, s.Base.Index, last)
	}
	if s.HardState.Term < lastTerm {
		return bad("hard state has term %d, lower than term %d at index %d", s.HardState.Term, lastTerm, last)
	}
	return nil
}
