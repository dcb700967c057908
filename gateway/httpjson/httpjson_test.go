package httpjson

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fake answers every call with what the test sets.
type fake struct {
	Service
	acquire   *lockv1.AcquireResponse
	err       error
	last      *lockv1.AcquireRequest
	hold      bool // Acquire answers only when its caller has left
	entered   chan struct{}
	delivered chan bool
	describe  *lockv1.DescribeResponse
}

func (f *fake) OpenSession(_ context.Context, r *lockv1.OpenSessionRequest) (*lockv1.OpenSessionResponse, error) {
	return &lockv1.OpenSessionResponse{SessionId: "s_" + r.Client}, f.err
}

func (f *fake) KeepAlive(context.Context, *lockv1.KeepAliveRequest) (*lockv1.KeepAliveResponse, error) {
	return &lockv1.KeepAliveResponse{Renewed: true, LeaseForMs: 10000}, f.err
}

func (f *fake) CloseSession(context.Context, *lockv1.CloseSessionRequest) (*lockv1.CloseSessionResponse, error) {
	return &lockv1.CloseSessionResponse{}, f.err
}

func (f *fake) AcquireAndDeliver(ctx context.Context, r *lockv1.AcquireRequest, deliver func(*lockv1.AcquireResponse, error) bool) {
	f.last = r
	if f.hold {
		f.entered <- struct{}{}
		<-ctx.Done()
	}
	w := deliver(f.acquire, f.err)
	if f.delivered != nil {
		f.delivered <- w
	}
}

func (f *fake) Release(context.Context, *lockv1.ReleaseRequest) (*lockv1.ReleaseResponse, error) {
	return &lockv1.ReleaseResponse{}, f.err
}

func (f *fake) Describe(context.Context, *lockv1.DescribeRequest) (*lockv1.DescribeResponse, error) {
	return f.describe, f.err
}

func (f *fake) List(context.Context, *lockv1.ListRequest) (*lockv1.ListResponse, error) {
	return &lockv1.ListResponse{Locks: []*lockv1.DescribeResponse{f.describe}, NextPageToken: "bmV4dA"}, f.err
}

func (f *fake) CheckToken(context.Context, *lockv1.CheckTokenRequest) (*lockv1.CheckTokenResponse, error) {
	return &lockv1.CheckTokenResponse{Current: true}, f.err
}

func do(t *testing.T, h http.Handler, method, path, body string) (int, string, http.Header) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	b, _ := io.ReadAll(w.Body)
	return w.Code, strings.TrimSpace(string(b)), w.Header()
}

func TestShapes(t *testing.T) {
	f := &fake{}
	held := &lockv1.DescribeResponse{Name: "invoice/INV-55102", Mode: lockv1.Mode_MODE_EXCLUSIVE, Waiters: 3,
		Holders: []*lockv1.Holder{{Client: "payouts-worker-17", Token: 90412, Mode: lockv1.Mode_MODE_EXCLUSIVE, Permits: 1, HeldForMs: 1840}}}
	h := New(Config{Service: f, Ready: func() (bool, string) { return false, "no map" }})
	const p = "/v1/LockService/"
	granted := &lockv1.AcquireResponse{Granted: true, Token: 90412, LeaseForMs: 10000, LeaseUntilUnixMs: 1790000010000}
	for _, tc := range []struct {
		name, method, path, body string
		code                     int
		want                     string
		acquire                  *lockv1.AcquireResponse
		describe                 *lockv1.DescribeResponse
	}{
		{name: "open", method: "POST", path: p + "OpenSession", body: `{"client":"w","ttl_ms":10000}`, code: 200, want: `{"session_id":"s_w"}`},
		{name: "keep alive", method: "POST", path: p + "KeepAlive", body: `{"session_id":"s_"}`, code: 200, want: `{"renewed":true,"lease_for_ms":10000,"lost":[]}`},
		{name: "granted", method: "POST", path: p + "Acquire", body: `{"session_id":"s_","name":"invoice/INV-55102","mode":"exclusive","tier":"strict","wait_ms":2000}`,
			code: 200, want: `{"granted":true,"token":90412,"lease_until_ms":1790000010000,"lease_for_ms":10000}`, acquire: granted},
		{name: "not granted", method: "POST", path: p + "Acquire", body: `{"session_id":"s_","name":"x"}`, code: 200,
			want: `{"granted":false,"holder":"payouts-worker-03"}`, acquire: &lockv1.AcquireResponse{Holders: []*lockv1.Holder{{Client: "payouts-worker-03"}}}},
		{name: "release", method: "POST", path: p + "Release", body: `{"name":"x","token":90412}`, code: 200, want: `{}`},
		{name: "close", method: "POST", path: p + "CloseSession", body: `{"session_id":"s_"}`, code: 200, want: `{}`},
		{name: "check", method: "POST", path: p + "CheckToken", body: `{"name":"x","token":90412}`, code: 200, want: `{"current":true}`},
		{name: "describe", method: "GET", path: p + "Describe?name=invoice/INV-55102", code: 200, describe: held,
			want: `{"holder":"payouts-worker-17","token":90412,"waiters":3,"held_for_ms":1840,"mode":"exclusive","holders":[{"holder":"payouts-worker-17","token":90412,"mode":"exclusive","permits":1,"held_for_ms":1840}]}`},
		{name: "describe free", method: "GET", path: p + "Describe?name=x", code: 200, describe: &lockv1.DescribeResponse{},
			want: `{"holder":"","token":0,"waiters":0,"held_for_ms":0,"mode":"","holders":[]}`},
		{name: "list", method: "GET", path: p + "List?prefix=invoice/&page_token=", code: 200, describe: held,
			want: `{"locks":[{"name":"invoice/INV-55102","mode":"exclusive","holder":"payouts-worker-17","token":90412,"waiters":3,"held_for_ms":1840}],"next_page_token":"bmV4dA"}`},
		{name: "livez", method: "GET", path: "/livez", code: 200, want: "ok"},
		{name: "readyz", method: "GET", path: "/readyz", code: 503, want: "not ready: no map"},
	} {
		f.acquire, f.describe = tc.acquire, tc.describe
		code, body, _ := do(t, h, tc.method, tc.path, tc.body)
		if code != tc.code || body != tc.want {
			t.Errorf("%s: %d %s\nwant %d %s", tc.name, code, body, tc.code, tc.want)
		}
	}
}

func TestRefusals(t *testing.T) {
	h := New(Config{Service: &fake{acquire: &lockv1.AcquireResponse{}}})
	const p = "/v1/LockService/"
	for _, tc := range []struct {
		method, path, body string
		code               int
		part               string
	}{
		{"POST", p + "Acquire", `{"nmae":"x"}`, 400, `"field":"nmae"`},
		{"POST", p + "Acquire", `{"name":7}`, 400, `name must be a string`},
		{"POST", p + "Acquire", `{"mode":"excl"}`, 400, `"field":"mode"`},
		{"POST", p + "Acquire", `{"tier":1}`, 400, `"field":"tier"`},
		{"POST", p + "Acquire", `{"wait_ms":30001}`, 400, `must be at most 30000 over HTTP`},
		{"POST", p + "Acquire", `{"wait_ms":-1}`, 400, `wait_ms must be 0 or more`},
		{"POST", p + "Acquire", `{"wait_ms":"5"}`, 400, `wait_ms must be a whole number`},
		{"POST", p + "Acquire", `{"wait_ms":1.5}`, 400, `wait_ms must be a whole number`},
		{"POST", p + "Acquire", `{"permits":4294967296}`, 400, `must be at most 4294967295`},
		{"POST", p + "Release", `{"token":18446744073709551616}`, 400, `must be at most 18446744073709551615`},
		{"POST", p + "Acquire", `{"name":"x","name":"y"}`, 400, `name must be given once`},
		{"POST", p + "Acquire", `[]`, 400, `one JSON object`},
		{"POST", p + "Acquire", ``, 400, `one JSON object`},
		{"POST", p + "Acquire", `{"name":"x"`, 400, `ends too early`},
		{"POST", p + "Acquire", `{"name":"x"}{}`, 400, `nothing after it`},
		{"POST", p + "Acquire", `{"name":"` + strings.Repeat("x", maxBody) + `"}`, 400, `at most 65536 bytes`},
		{"POST", p + "Acquire?name=x", `{}`, 400, `not in the query`},
		{"GET", p + "Acquire", ``, 405, `takes POST`},
		{"POST", p + "Describe", ``, 405, `takes GET`},
		{"GET", p + "Describe?nmae=x", ``, 400, `"field":"nmae"`},
		{"GET", p + "List?page_size=x", ``, 400, `page_size must be a whole number`},
		{"POST", p + "Nothing", `{}`, 404, `NOT_FOUND`},
		{"GET", "/other", ``, 404, `NOT_FOUND`},
	} {
		code, body, _ := do(t, h, tc.method, tc.path, tc.body)
		if code != tc.code || !strings.Contains(body, tc.part) || !strings.HasPrefix(body, `{"error":{"code":"`) {
			t.Errorf("%s %s %.60s: %d %s\nwant %d with %s", tc.method, tc.path, tc.body, code, body, tc.code, tc.part)
		}
	}
}

func TestErrorOfTheService(t *testing.T) {
	st, _ := status.New(codes.FailedPrecondition, "the token is not current").WithDetails(
		&lockv1.ErrorDetail{Reason: "TOKEN_NOT_CURRENT", Field: "token", RetryAfterMs: 1500})
	h := New(Config{Service: &fake{err: st.Err()}})
	code, body, head := do(t, h, "POST", "/v1/LockService/Release", `{"name":"x","token":1}`)
	if code != 400 || body != `{"error":{"code":"FAILED_PRECONDITION","message":"the token is not current","field":"token"}}` {
		t.Errorf("%d %s", code, body)
	}
	if head.Get("Retry-After") != "2" {
		t.Errorf("Retry-After: %q", head.Get("Retry-After"))
	}
}

func TestLeavingCallerGetsNothing(t *testing.T) {
	f := &fake{hold: true, acquire: &lockv1.AcquireResponse{Granted: true, Token: 5}, entered: make(chan struct{}, 1), delivered: make(chan bool, 1)}
	srv := httptest.NewServer(New(Config{Service: f}))
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "POST", srv.URL+"/v1/LockService/Acquire", strings.NewReader(`{"session_id":"s","name":"x"}`))
	go func() {
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
	}()
	<-f.entered
	cancel()
	if <-f.delivered {
		t.Error("an answer to a caller that had left counts as written")
	}
}

func FuzzBody(f *testing.F) {
	h := New(Config{Service: &fake{acquire: &lockv1.AcquireResponse{}}})
	f.Add(`{"session_id":"s","name":"x","wait_ms":5,"mode":"shared"}`)
	f.Fuzz(func(t *testing.T, body string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "/v1/LockService/Acquire", strings.NewReader(body)))
		if w.Code != 200 && w.Code != 400 {
			t.Errorf("%q: %d", body, w.Code)
		}
	})
}
