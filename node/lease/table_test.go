package lease

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mortise-lock/mortise/shard"
)

const sec = int64(1e9)

func TestDeadlines(t *testing.T) {
	tab := NewTable(0)
	tab.Grant(1, 10*sec, 0)
	tab.Grant(2, 10*sec, 0)
	if !tab.Renew(1, 4*sec) || tab.Renew(3, 0) {
		t.Fatal("Renew must know registrations 1 and 2 only")
	}
	if left, _ := tab.Remaining(1, 4*sec); left != 10*sec {
		t.Fatalf("after a renewal %d ns are left, want a full TTL", left)
	}
	if got := tab.Expired(10*sec-1, 9, nil); got != nil {
		t.Fatalf("%v expired before their deadlines", got)
	}
	if got := tab.Expired(10*sec, 9, nil); !slices.Equal(got, []shard.Registration{2}) {
		t.Fatalf("expired %v, want [2]", got)
	}
	if !tab.Expiring(2) || tab.Expired(11*sec, 9, nil) != nil {
		t.Fatal("an expiring registration is named once")
	}
	tab.Undo(2)
	if got := tab.Expired(11*sec, 9, nil); !slices.Equal(got, []shard.Registration{2}) {
		t.Fatalf("expired %v after Undo, want [2] again", got)
	}
	tab.Forget(2)
	tab.Shift(5 * sec)
	if got := tab.Expired(19*sec-1, 9, nil); got != nil {
		t.Fatalf("%v expired although the node stood still", got)
	}
	if got := tab.Expired(19*sec, 9, nil); !slices.Equal(got, []shard.Registration{1}) {
		t.Fatalf("expired %v, want [1] at its shifted deadline", got)
	}
}

func TestSilentAndHand(t *testing.T) {
	tab := NewTable(0)
	for reg := range shard.Registration(3) {
		tab.Grant(reg+1, 9*sec, 0)
	}
	tab.Renew(1, 3*sec)
	tab.Renew(2, 1*sec)
	got := tab.Silent(5 * sec)
	want := []Left{{2, 5 * sec}, {3, 4 * sec}}
	if !slices.Equal(got, want) {
		t.Fatalf("silent %v, want %v", got, want)
	}
	next := NewTable(0)
	for reg := range shard.Registration(3) {
		next.Grant(reg+1, 9*sec, 100*sec)
	}
	for _, l := range got {
		next.Hand(l.Registration, l.Left, 100*sec)
	}
	if exp := next.Expired(105*sec, 9, nil); !slices.Equal(exp, []shard.Registration{3, 2}) {
		t.Fatalf("expired %v, want [3 2]", exp)
	}
	// Nobody was heard from by the new leader yet: all are silent.
	if s := next.Silent(100*sec + 1); len(s) != 3 {
		t.Fatalf("%d silent at a new leader, want all 3", len(s))
	}
}

// TestAgainstModel compares with a map that is searched in full.
func TestAgainstModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tab, model := NewTable(0), map[shard.Registration]int64{}
	const ttl = 100
	expiring := map[shard.Registration]bool{}
	var now int64
	for range 20000 {
		now += rng.Int64N(4)
		reg := shard.Registration(rng.IntN(40))
		switch rng.IntN(6) {
		case 0:
			tab.Grant(reg, ttl, now)
			model[reg] = now + ttl
			delete(expiring, reg)
		case 1, 2:
			if _, ok := model[reg]; ok != tab.Renew(reg, now) {
				t.Fatal("Renew disagrees about who is known")
			} else if ok {
				model[reg] = max(model[reg], now+ttl)
			}
		case 3:
			tab.Forget(reg)
			delete(model, reg)
			delete(expiring, reg)
		case 4:
			tab.Undo(reg)
			delete(expiring, reg)
		case 5:
			got := tab.Expired(now, 1000, nil)
			slices.Sort(got)
			var want []shard.Registration
			for r, d := range model {
				if d <= now && !expiring[r] {
					want = append(want, r)
					expiring[r] = true
				}
			}
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Fatalf("at %d expired %v, want %v", now, got, want)
			}
		}
		if tab.Len() != len(model) {
			t.Fatalf("table has %d, model %d", tab.Len(), len(model))
		}
		if next, ok := tab.Next(); ok {
			for r, d := range model {
				if !expiring[r] && d < next {
					t.Fatalf("Next is %d, but %d is due at %d", next, r, d)
				}
			}
		}
	}
}
