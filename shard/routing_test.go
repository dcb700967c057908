package shard

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

const top = 1<<64 - 1

func region(name, prefix string, excluded []string, shards ...ID) []Route {
	var out []Route
	n := uint64(len(shards))
	step := top/n + 1
	for i, s := range shards {
		sel := Selector{Prefix: prefix, Excluded: excluded, HashFirst: uint64(i) * step, HashLast: uint64(i+1)*step - 1}
		if i == len(shards)-1 {
			sel.HashLast = top
		}
		out = append(out, Route{Region: name, Selector: sel, Shard: s})
	}
	return out
}

func TestRouterAgreesWithSelectors(t *testing.T) {
	pins := []Pin{{"", "eu"}, {"us/", "us"}, {"us/eu-team/", "eu"}}
	routes := append(region("eu", "", []string{"us/"}, 1, 2, 3, 4), region("us", "us/", []string{"us/eu-team/"}, 5, 6)...)
	routes = append(routes, region("eu", "us/eu-team/", nil, 2, 3)...)
	r, err := NewRouter(9, pins, routes)
	if err != nil {
		t.Fatal(err)
	}
	if r.Generation() != 9 {
		t.Fatal(r.Generation())
	}
	seen := map[ID]int{}
	for i := range 3000 {
		for _, p := range []string{"", "us/", "us/eu-team/", "u", "us", "us/eu"} {
			name := fmt.Sprintf("%sx%d", p, i)
			got, ok := r.Route(name)
			if !ok {
				t.Fatal(name)
			}
			seen[got]++
			owners := 0
			for _, ro := range routes {
				if ro.Selector.Contains(name) {
					owners++
					if ro.Shard != got {
						t.Fatalf("%s goes to shard %d, shard %d owns it", name, got, ro.Shard)
					}
				}
			}
			if owners != 1 {
				t.Fatalf("%s has %d owners", name, owners)
			}
		}
	}
	if len(seen) != 6 {
		t.Fatal(seen)
	}
	if _, ok := (*Router)(nil).Route("x"); ok {
		t.Fatal("a nil router routes")
	}
}

func TestRouterOneHotName(t *testing.T) {
	h := HashName("hot")
	routes := []Route{
		{"eu", Selector{HashLast: h - 1}, 1}, {"eu", Selector{HashFirst: h, HashLast: h}, 2}, {"eu", Selector{HashFirst: h + 1, HashLast: top}, 3},
	}
	r, err := NewRouter(1, []Pin{{"", "eu"}}, routes)
	if err != nil {
		t.Fatal(err)
	}
	if id, _ := r.Route("hot"); id != 2 {
		t.Fatal(id)
	}
}

func TestRouterRefuses(t *testing.T) {
	eu := []Pin{{"", "eu"}}
	whole := Selector{HashLast: top}
	for _, c := range []struct {
		pins   []Pin
		routes []Route
		want   string
	}{
		{nil, nil, "empty prefix must be pinned"},
		{[]Pin{{"", "eu"}, {"", "us"}}, nil, "pinned twice"},
		{[]Pin{{"", ""}}, nil, "no region"},
		{eu, nil, "no shard owns the hashes from 0x0"},
		{eu, []Route{{"eu", Selector{HashLast: 5}, 1}}, "no shard owns the hashes from 0x6"},
		{eu, []Route{{"eu", Selector{HashFirst: 5, HashLast: top}, 1}}, "from 0x0 to 0x4"},
		{eu, []Route{{"eu", whole, 1}, {"eu", Selector{HashFirst: 7, HashLast: 8}, 2}}, "both own hash 0x7"},
		{eu, []Route{{"eu", whole, 1}, {"eu", Selector{HashFirst: top, HashLast: top}, 2}}, "both own hash"},
		{eu, []Route{{"eu", Selector{HashFirst: 8, HashLast: 7}, 2}}, "is above hash_last"},
		{eu, []Route{{"eu", Selector{Prefix: "a", Excluded: []string{"b"}, HashLast: top}, 2}}, "begin with it"},
		{[]Pin{{"", "eu"}, {"a", "us"}}, []Route{{"eu", whole, 1}}, `"a" (region "us")`},
		{eu, []Route{{"eu", whole, 1}, {"eu", Selector{Prefix: "a", HashLast: top}, 2}}, `begin with "a"`},
	} {
		_, err := NewRouter(1, c.pins, c.routes)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

func TestValidateName(t *testing.T) {
	for name, want := range map[string]string{
		"":                                  "1 to 512 bytes",
		"ok":                                "",
		"grüße/名前":                          "",
		strings.Repeat("a", MaxName):        "",
		strings.Repeat("a", MaxName+1):      "1 to 512 bytes",
		"a\nb":                              "control characters",
		"a\x7f":                             "control characters",
		"a\u0085":                           "control characters",
		"a\xff":                             "valid UTF-8",
		"a\xc3":                             "valid UTF-8",
		"replacement \ufffd is a character": "",
	} {
		err := ValidateName(name)
		if want == "" {
			if err != nil {
				t.Errorf("%q: %v", name, err)
			}
			continue
		}
		var rule *RuleError
		if !errors.As(err, &rule) || rule.Field != "name" || !strings.Contains(rule.Rule, want) {
			t.Errorf("%q: %v", name, err)
		}
	}
	// Stored in maps and logs: it must never change.
	if HashName("a") != 0xd24ec4f1a98c6e5b {
		t.Errorf("HashName(a) = %#x", HashName("a"))
	}
}
