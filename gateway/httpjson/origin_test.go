package httpjson

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
)

// A page of another site in an operator's browser can send a POST without
// asking first; it is refused. Programs and pages of the gateway itself are not.
func TestOtherOriginsAreRefused(t *testing.T) {
	h := New(Config{Service: &fake{acquire: &lockv1.AcquireResponse{}}})
	for _, c := range []struct {
		header, value string
		refused       bool
	}{
		{"", "", false},
		{"Origin", "http://example.com", false}, // the server's own
		{"Origin", "http://evil.test", true},
		{"Sec-Fetch-Site", "cross-site", true},
		{"Sec-Fetch-Site", "same-origin", false},
	} {
		r := httptest.NewRequest(http.MethodPost, "http://example.com/v1/LockService/Acquire", strings.NewReader(`{"session_id":"s","name":"x"}`))
		if c.header != "" {
			r.Header.Set(c.header, c.value)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Code == http.StatusForbidden; got != c.refused {
			t.Errorf("%s %s: status %d %s", c.header, c.value, w.Code, w.Body)
		}
	}
}
