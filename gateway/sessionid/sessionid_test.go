package sessionid

import (
	"errors"
	"testing"
	"time"

	"github.com/mortise-lock/mortise/gateway/core"
)

func TestRoundTripAndRefusals(t *testing.T) {
	c := New([]byte("k1"))
	id := core.Identity{Session: [16]byte{1, 2, 15: 9}, TTL: 10 * time.Second, Client: "payouts-worker-17", OpenedMS: 1790000000000}
	s := c.Mint(id)
	got, err := c.Verify(s)
	if err != nil || got != id {
		t.Fatalf("Verify = %+v, %v", got, err)
	}
	if _, err := New([]byte("k2")).Verify(s); !errors.Is(err, ErrForeign) {
		t.Errorf("foreign key: %v", err)
	}
	for i := range s {
		b := []byte(s)
		b[i] ^= 1
		if got, err := c.Verify(string(b)); err == nil {
			t.Errorf("flipping a bit of byte %d was accepted: %+v", i, got)
		}
	}
	for _, bad := range []string{"", "s_", "x_abc", s[:20], s + "AAAA"} {
		if _, err := c.Verify(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func FuzzVerify(f *testing.F) {
	c := New([]byte("k1"))
	f.Add(c.Mint(core.Identity{Client: "a", TTL: time.Second}))
	f.Add("s_AAAA")
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := c.Verify(s); err == nil && c.Mint(id) != s {
			t.Fatalf("%q verified, but is not what minting gives", s)
		}
	})
}
