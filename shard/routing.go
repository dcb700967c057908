package shard

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
)

// Selector is a set of names, written out in full: those that begin with
// Prefix, less those that begin with one of Excluded, whose hash lies in
// [HashFirst, HashLast].
type Selector struct {
	Prefix    string
	Excluded  []string
	HashFirst uint64
	HashLast  uint64
}

// Contains reports whether the selector contains name.
func (s Selector) Contains(name string) bool { return s.contains(name, HashName(name)) }

func (s *Selector) contains(name string, hash uint64) bool {
	return s.containsPrefix(name) && hash >= s.HashFirst && hash <= s.HashLast
}

func (s *Selector) containsPrefix(name string) bool {
	if !strings.HasPrefix(name, s.Prefix) {
		return false
	}
	for _, x := range s.Excluded {
		if strings.HasPrefix(name, x) {
			return false
		}
	}
	return true
}

// Pin gives the names that begin with Prefix a home region; the longest prefix
// wins.
type Pin struct {
	Prefix string
	Region string
}

// Route says that a shard of a region owns a set of names. A shard with
// several selectors has several routes.
type Route struct {
	Region   string
	Selector Selector
	Shard    ID
}

// Router finds the shard of a name: longest pin, its region, hash range,
// shard. It is immutable and safe for concurrent use.
type Router struct {
	generation uint64
	// cells partition the names by their longest prefix among all prefixes
	// that pins and selectors speak of.
	cells   map[string][]span
	lengths []int // distinct lengths of the cells' prefixes, longest first
}

// span is a part of a cell's hash range.
type span struct {
	first, last uint64
	shard       ID
}

// NewRouter validates pins and routes and makes a router of them. The empty
// prefix must be pinned; within each part of the name space, the routes of its
// home region must cover every hash exactly once. Errors name the prefix and
// the hashes concerned. generation is only kept.
func NewRouter(generation uint64, pins []Pin, routes []Route) (*Router, error) {
	r := &Router{generation: generation, cells: make(map[string][]span)}
	home := make(map[string]string, len(pins))
	for _, p := range pins {
		if _, twice := home[p.Prefix]; twice {
			return nil, fmt.Errorf("pins: prefix %q is pinned twice", p.Prefix)
		}
		if p.Region == "" {
			return nil, fmt.Errorf("pins: prefix %q has no region", p.Prefix)
		}
		home[p.Prefix] = p.Region
	}
	if _, ok := home[""]; !ok {
		return nil, fmt.Errorf("pins: the empty prefix must be pinned")
	}
	regions := make(map[string][]int)
	cuts := make(map[string]bool, len(pins))
	for p := range home {
		cuts[p] = true
	}
	for i, ro := range routes {
		s := &ro.Selector
		if s.HashFirst > s.HashLast {
			return nil, fmt.Errorf("routes: shard %d: hash_first %#x is above hash_last %#x", ro.Shard, s.HashFirst, s.HashLast)
		}
		cuts[s.Prefix] = true
		for _, x := range s.Excluded {
			if !strings.HasPrefix(x, s.Prefix) || x == s.Prefix {
				return nil, fmt.Errorf("routes: shard %d: excluded prefix %q must be longer than the selector's prefix %q and begin with it", ro.Shard, x, s.Prefix)
			}
			cuts[x] = true
		}
		regions[ro.Region] = append(regions[ro.Region], i)
	}
	prefixes := make([]string, 0, len(cuts))
	for p := range cuts {
		prefixes = append(prefixes, p)
	}
	slices.Sort(prefixes)
	shared := make(map[string][]span) // equal cells share one slice
	var key []byte
	for _, p := range prefixes {
		region := pinned(home, p)
		var in []int
		key = append(key[:0], region...)
		for _, i := range regions[region] {
			if routes[i].Selector.containsPrefix(p) {
				in = append(in, i)
				key = append(key, 0, byte(i), byte(i>>8), byte(i>>16), byte(i>>24))
			}
		}
		spans, ok := shared[string(key)]
		if !ok {
			for _, i := range in {
				spans = append(spans, span{routes[i].Selector.HashFirst, routes[i].Selector.HashLast, routes[i].Shard})
			}
			slices.SortFunc(spans, func(a, b span) int {
				if a.first < b.first {
					return -1
				}
				if a.first > b.first {
					return 1
				}
				return 0
			})
			if err := checkSpans(spans); err != nil {
				return nil, fmt.Errorf("routes: names that begin with %q (region %q): %w", p, region, err)
			}
			shared[string(key)] = spans
		}
		r.cells[p] = spans
		if !slices.Contains(r.lengths, len(p)) {
			r.lengths = append(r.lengths, len(p))
		}
	}
	slices.Sort(r.lengths)
	slices.Reverse(r.lengths)
	return r, nil
}

// pinned returns the region of the longest pin that p begins with.
func pinned(home map[string]string, p string) string {
	for n := len(p); n > 0; n-- {
		if region, ok := home[p[:n]]; ok {
			return region
		}
	}
	return home[""]
}

func checkSpans(spans []span) error {
	next, full := uint64(0), false
	for i, s := range spans {
		if full || s.first < next {
			return fmt.Errorf("shards %d and %d both own hash %#x", spans[i-1].shard, s.shard, s.first)
		}
		if s.first > next {
			return fmt.Errorf("no shard owns the hashes from %#x to %#x", next, s.first-1)
		}
		next, full = s.last+1, s.last == math.MaxUint64
	}
	if !full {
		return fmt.Errorf("no shard owns the hashes from %#x on", next)
	}
	return nil
}

// Generation is that of the map the router was made of.
func (r *Router) Generation() uint64 { return r.generation }

// Route returns the shard that owns name. It is false only for a nil router.
func (r *Router) Route(name string) (ID, bool) {
	if r == nil {
		return 0, false
	}
	for _, n := range r.lengths {
		if n > len(name) {
			continue
		}
		spans, ok := r.cells[name[:n]]
		if !ok {
			continue
		}
		h := HashName(name)
		i := sort.Search(len(spans), func(i int) bool { return spans[i].last >= h })
		return spans[i].shard, true
	}
	return 0, false
}
