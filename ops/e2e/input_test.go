package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestBadInput sends requests that must be refused: each answer has the usual
// HTTP status, the code, the field at fault and the rule.
func TestBadInput(t *testing.T) {
	dev := shared.use(t)
	session := dev.session(t, "bad-input")
	acquire := func(fields string) string {
		return fmt.Sprintf(`{"session_id":%q,"name":"bad/input",%s}`, session, fields)
	}
	named := func(name string) string { return fmt.Sprintf(`{"session_id":%q,"name":%s}`, session, name) }
	long := strings.Repeat("n", 513)
	for _, c := range []struct {
		what, method, body string
		code, field, rule  string
	}{
		{"no name", "Acquire", fmt.Sprintf(`{"session_id":%q}`, session), "INVALID_ARGUMENT", "name", "512"},
		{"empty name", "Acquire", named(`""`), "INVALID_ARGUMENT", "name", "512"},
		{"long name", "Acquire", named(`"` + long + `"`), "INVALID_ARGUMENT", "name", "512"},
		{"control character", "Acquire", named(`"a\u0007b"`), "INVALID_ARGUMENT", "name", "control"},
		{"newline", "Acquire", named(`"a\nb"`), "INVALID_ARGUMENT", "name", "control"},
		{"not UTF-8", "Acquire", named("\"a\xffb\""), "INVALID_ARGUMENT", "", "UTF-8"},
		{"name is a number", "Acquire", named(`5`), "INVALID_ARGUMENT", "name", "string"},
		{"long name described", "Describe?name=" + long, "", "INVALID_ARGUMENT", "name", "512"},
		{"unknown mode", "Acquire", acquire(`"mode":"mutex"`), "INVALID_ARGUMENT", "mode", "exclusive"},
		{"unknown tier", "Acquire", acquire(`"tier":"best"`), "INVALID_ARGUMENT", "tier", "strict"},
		{"negative wait", "Acquire", acquire(`"wait_ms":-1`), "INVALID_ARGUMENT", "wait_ms", "0"},
		{"long wait", "Acquire", acquire(`"wait_ms":30001`), "INVALID_ARGUMENT", "wait_ms", "30000"},
		{"fractional wait", "Acquire", acquire(`"wait_ms":1.5`), "INVALID_ARGUMENT", "wait_ms", "whole"},
		{"wait as text", "Acquire", acquire(`"wait_ms":"5"`), "INVALID_ARGUMENT", "wait_ms", "whole"},
		{"long lock-delay", "Acquire", acquire(`"lock_delay_ms":60001`), "INVALID_ARGUMENT", "lock_delay_ms", "60000"},
		{"counted without limit", "Acquire", acquire(`"mode":"counted"`), "INVALID_ARGUMENT", "limit", ""},
		{"limit 0", "Acquire", acquire(`"mode":"counted","limit":0`), "INVALID_ARGUMENT", "limit", "1"},
		{"permits 0", "Acquire", acquire(`"mode":"counted","limit":3,"permits":0`), "INVALID_ARGUMENT", "permits", "1"},
		{"more permits than the limit", "Acquire", acquire(`"mode":"counted","limit":3,"permits":4`), "INVALID_ARGUMENT", "permits", "limit"},
		{"limit of an exclusive lock", "Acquire", acquire(`"mode":"exclusive","limit":3`), "INVALID_ARGUMENT", "limit", "counted"},
		{"bad request id", "Acquire", acquire(`"request_id":"zz"`), "INVALID_ARGUMENT", "request_id", "32"},
		{"no session", "Acquire", `{"name":"bad/input"}`, "INVALID_ARGUMENT", "session_id", ""},
		{"no session string", "Acquire", `{"session_id":"s_nonsense","name":"bad/input"}`, "INVALID_ARGUMENT", "session_id", ""},
		{"tampered session", "KeepAlive", fmt.Sprintf(`{"session_id":%q}`, tamper(session)), "INVALID_ARGUMENT", "session_id", ""},
		{"TTL 0", "OpenSession", `{"client":"c","ttl_ms":0}`, "INVALID_ARGUMENT", "ttl_ms", "1000"},
		{"short TTL", "OpenSession", `{"client":"c","ttl_ms":999}`, "INVALID_ARGUMENT", "ttl_ms", "1000"},
		{"long TTL", "OpenSession", `{"client":"c","ttl_ms":600001}`, "INVALID_ARGUMENT", "ttl_ms", "600000"},
		{"no client", "OpenSession", `{}`, "INVALID_ARGUMENT", "client", "256"},
		{"long client", "OpenSession", `{"client":"` + strings.Repeat("c", 257) + `"}`, "INVALID_ARGUMENT", "client", "256"},
		{"no token", "Release", `{"name":"bad/input"}`, "INVALID_ARGUMENT", "token", ""},
		{"stale token", "Release", `{"name":"bad/input","token":1}`, "FAILED_PRECONDITION", "token", ""},
		{"page size 0", "List?prefix=a&page_size=0", "", "INVALID_ARGUMENT", "page_size", "1"},
		{"large page", "List?prefix=a&page_size=1001", "", "INVALID_ARGUMENT", "page_size", "1000"},
		{"foreign page token", "List?prefix=a&page_token=nonsense", "", "INVALID_ARGUMENT", "page_token", ""},
		{"unknown field", "Acquire", acquire(`"modus":"exclusive"`), "INVALID_ARGUMENT", "modus", "knows"},
		{"unknown parameter", "Describe?name=a&x=1", "", "INVALID_ARGUMENT", "x", "knows"},
		{"twice the same field", "Acquire", acquire(`"wait_ms":1,"wait_ms":2`), "INVALID_ARGUMENT", "wait_ms", "once"},
		{"no JSON", "Acquire", `hello`, "INVALID_ARGUMENT", "", "JSON"},
		{"half a JSON object", "Acquire", `{"name":`, "INVALID_ARGUMENT", "", "JSON"},
		{"two JSON objects", "KeepAlive", `{}{}`, "INVALID_ARGUMENT", "", "JSON"},
		{"huge body", "KeepAlive", `{"session_id":"` + strings.Repeat("s", 1<<20) + `"}`, "INVALID_ARGUMENT", "", "bytes"},
	} {
		var body any
		if c.body != "" {
			body = c.body
		}
		status, o := call(t, dev.http, c.method, body)
		e, _ := o["error"].(map[string]any)
		message, _ := e["message"].(string)
		if status != http.StatusBadRequest || e["code"] != c.code || e["field"] != c.field && c.field != "" || !strings.Contains(plainNumbers(message), c.rule) {
			t.Errorf("%s: %d %v; want %d with code %s, field %q, and %q in the message", c.what, status, o, http.StatusBadRequest, c.code, c.field, c.rule)
		}
		if c.field != "" && !strings.Contains(message, c.field) {
			t.Errorf("%s: the message %q does not name the field %q", c.what, message, c.field)
		}
	}
	// Nothing of all this took the lock.
	if o := describe(t, dev.http, "bad/input"); o.text(t, "holder") != "" {
		t.Errorf("a refused request holds the lock: %v", o)
	}
	status, o := call(t, dev.http, "Nonsense", "{}")
	if e, _ := o["error"].(map[string]any); status != http.StatusNotFound && status != http.StatusNotImplemented || e["code"] == nil {
		t.Errorf("an unknown call: %d %v", status, o)
	}
}

// plainNumbers drops the commas that group digits.
func plainNumbers(s string) string {
	var b strings.Builder
	for i, r := range s {
		if r == ',' && i > 0 && i+1 < len(s) && isDigit(s[i-1]) && isDigit(s[i+1]) {
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// tamper changes one character in the middle of a session string.
func tamper(s string) string {
	i := len(s) / 2
	c := byte('A')
	if s[i] == c {
		c = 'B'
	}
	return s[:i] + string(c) + s[i+1:]
}

// TestCountedLimitsDisagree: another limit, or another mode, than the one in
// force is refused, and the answer says what is in force.
func TestCountedLimitsDisagree(t *testing.T) {
	dev := shared.use(t)
	session := dev.session(t, "counted")
	take := func(fields object) (int, object) {
		fields["session_id"], fields["name"] = session, "counted/disagree"
		return call(t, dev.http, "Acquire", fields)
	}
	if code, o := take(object{"mode": "counted", "limit": 3, "permits": 2}); code != http.StatusOK || o["granted"] != true {
		t.Fatalf("counted acquire: %d %v", code, o)
	}
	for _, c := range []struct {
		fields         object
		field, inForce string
	}{
		{object{"mode": "counted", "limit": 5}, "limit", "3"},
		{object{"mode": "exclusive"}, "mode", "counted"},
		{object{"mode": "shared"}, "mode", "counted"},
	} {
		code, o := take(c.fields)
		e, _ := o["error"].(map[string]any)
		message, _ := e["message"].(string)
		if code != http.StatusBadRequest || e["code"] != "FAILED_PRECONDITION" || e["field"] != c.field || !strings.Contains(message, c.inForce) {
			t.Errorf("%v while 3 permits are in force: %d %v", c.fields, code, o)
		}
	}
	if code, o := take(object{"mode": "counted", "limit": 3, "permits": 2}); code != http.StatusOK || o["granted"] != false {
		t.Errorf("a fourth permit of three: %d %v", code, o)
	}
}

// TestBadFrameEndsItsStreamOnly sends a frame that is too large: that stream
// ends with the rule, others go on.
func TestBadFrameEndsItsStreamOnly(t *testing.T) {
	dev := shared.use(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	open := func(client string) lockv1.LockService_SessionClient {
		s, err := locks(t, dev.grpc).Session(ctx)
		if err != nil {
			t.Fatal(err)
		}
		err = s.Send(&lockv1.SessionRequest{Ops: []*lockv1.SessionOp{{Op: &lockv1.SessionOp_Open{Open: &lockv1.OpenOp{Client: client}}}}})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := s.Recv(); err != nil || len(r.Events) == 0 || r.Events[0].GetOpened() == nil {
			t.Fatalf("open: %v %v", r, err)
		}
		return s
	}
	good, bad := open("good"), open("bad")
	var ops []*lockv1.SessionOp
	for range 1025 {
		ops = append(ops, &lockv1.SessionOp{Op: &lockv1.SessionOp_Inventory{Inventory: &lockv1.InventoryOp{}}})
	}
	_ = bad.Send(&lockv1.SessionRequest{Ops: ops}) // the answer below tells
	said := ""
	for {
		r, err := bad.Recv()
		if err != nil {
			if code := status.Code(err); code == codes.DeadlineExceeded || code == codes.Canceled {
				t.Fatalf("the bad stream did not end: %v", err)
			}
			said += err.Error()
			break
		}
		for _, e := range r.Events {
			said += e.GetFailed().GetFailure().GetMessage()
		}
	}
	if !strings.Contains(plainNumbers(said), "1024") {
		t.Errorf("a frame of 1,025 operations was answered %q, which does not name the limit", said)
	}
	err := good.Send(&lockv1.SessionRequest{Ops: []*lockv1.SessionOp{{Op: &lockv1.SessionOp_Renew{Renew: &lockv1.RenewOp{Number: 1}}}}})
	if err != nil {
		t.Fatal(err)
	}
	err = good.Send(&lockv1.SessionRequest{Ops: []*lockv1.SessionOp{{Op: &lockv1.SessionOp_Acquire{Acquire: &lockv1.AcquireOp{Seq: 1, Name: "frames/good"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	for granted := false; !granted; {
		r, err := good.Recv()
		if err != nil {
			t.Fatalf("the good stream ended: %v", err)
		}
		for _, e := range r.Events {
			granted = granted || e.GetGranted() != nil
		}
	}
}
