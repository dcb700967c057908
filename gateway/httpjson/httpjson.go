// Package httpjson is the HTTP/JSON edge of a gateway: LockService under
// /v1/LockService/…, beside /livez, /readyz and /metrics.
//
// Names are snake_case, numbers are numbers, and every field of an answer is
// always there. Calls that change something are POST with a JSON object;
// Describe and List are GET with a query. An unknown field or parameter is
// refused by name. Errors look like
//
//	{"error":{"code":"FAILED_PRECONDITION","message":"…","field":"token"}}
//
// with the usual HTTP status of that gRPC code. A wait is at most 30,000 ms; a
// call takes at most its wait and 5 s. When the client leaves before any byte
// of the answer to an Acquire was written, and it named no request_id, the
// acquire is cancelled.
package httpjson

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// maxBody bounds a request's body in bytes.
	maxBody = 64 << 10
	// maxWaitMS bounds a wait over HTTP.
	maxWaitMS = 30_000
	prefix    = "/v1/LockService/"
)

// Service is what the edge needs of a gateway.
type Service interface {
	OpenSession(context.Context, *lockv1.OpenSessionRequest) (*lockv1.OpenSessionResponse, error)
	KeepAlive(context.Context, *lockv1.KeepAliveRequest) (*lockv1.KeepAliveResponse, error)
	CloseSession(context.Context, *lockv1.CloseSessionRequest) (*lockv1.CloseSessionResponse, error)
	// AcquireAndDeliver calls deliver once with the outcome. deliver reports
	// whether the caller may have got any of it; if not, and the request named
	// no request id, a granted lock is given back.
	AcquireAndDeliver(ctx context.Context, r *lockv1.AcquireRequest, deliver func(*lockv1.AcquireResponse, error) (written bool))
	Release(context.Context, *lockv1.ReleaseRequest) (*lockv1.ReleaseResponse, error)
	Cancel(context.Context, *lockv1.CancelRequest) (*lockv1.CancelResponse, error)
	Describe(context.Context, *lockv1.DescribeRequest) (*lockv1.DescribeResponse, error)
	List(context.Context, *lockv1.ListRequest) (*lockv1.ListResponse, error)
	CheckToken(context.Context, *lockv1.CheckTokenRequest) (*lockv1.CheckTokenResponse, error)
	ForceRelease(context.Context, *lockv1.ForceReleaseRequest) (*lockv1.ForceReleaseResponse, error)
	ListSessions(context.Context, *lockv1.ListSessionsRequest) (*lockv1.ListSessionsResponse, error)
	RevokeSession(context.Context, *lockv1.RevokeSessionRequest) (*lockv1.RevokeSessionResponse, error)
}

// Config of the handler.
type Config struct {
	Service Service
	// Metrics serves /metrics; nil: not found.
	Metrics http.Handler
	// Ready answers /readyz; nil: always ready. The text says why.
	Ready func() (ok bool, why string)
}

type handler struct {
	origin *http.CrossOriginProtection
	cfg    Config
	calls  map[string]endpoint
}

// endpoint is one call.
type endpoint struct {
	method string
	serve  func(w http.ResponseWriter, r *http.Request)
}

// New returns the handler. It is safe for concurrent use.
func New(cfg Config) http.Handler {
	h := &handler{cfg: cfg, origin: http.NewCrossOriginProtection()}
	s := cfg.Service
	h.calls = map[string]endpoint{
		"OpenSession":   post(openSessionIn, s.OpenSession, openSessionOut),
		"KeepAlive":     post(keepAliveIn, s.KeepAlive, keepAliveOut),
		"CloseSession":  post(closeSessionIn, s.CloseSession, empty[lockv1.CloseSessionResponse]),
		"Acquire":       {http.MethodPost, h.acquire},
		"Release":       post(releaseIn, s.Release, empty[lockv1.ReleaseResponse]),
		"Cancel":        post(cancelIn, s.Cancel, empty[lockv1.CancelResponse]),
		"CheckToken":    post(checkTokenIn, s.CheckToken, checkTokenOut),
		"ForceRelease":  post(forceReleaseIn, s.ForceRelease, forceReleaseOut),
		"ListSessions":  post(listSessionsIn, s.ListSessions, listSessionsOut),
		"RevokeSession": post(revokeSessionIn, s.RevokeSession, revokeSessionOut),
		"Describe":      get(describeIn, s.Describe, describeOut),
		"List":          get(listIn, s.List, listOut),
	}
	mux := http.NewServeMux()
	mux.HandleFunc(prefix, h.call)
	mux.HandleFunc("/livez", func(w http.ResponseWriter, r *http.Request) { plain(w, http.StatusOK, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		if cfg.Ready != nil {
			if ok, why := cfg.Ready(); !ok {
				plain(w, http.StatusServiceUnavailable, "not ready: "+why)
				return
			}
		}
		plain(w, http.StatusOK, "ready")
	})
	if cfg.Metrics != nil {
		mux.Handle("/metrics", cfg.Metrics)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, status.Error(codes.NotFound, "no such path; calls are under "+prefix))
	})
	return mux
}

func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	io.WriteString(w, text+"\n")
}

func (h *handler) call(w http.ResponseWriter, r *http.Request) {
	e, ok := h.calls[r.URL.Path[len(prefix):]]
	if !ok {
		writeError(w, status.Errorf(codes.NotFound, "no such call %q", r.URL.Path))
		return
	}
	if r.Method != e.method {
		w.Header().Set("Allow", e.method)
		writeErrorStatus(w, http.StatusMethodNotAllowed, status.Errorf(codes.Unimplemented, "%s takes %s", r.URL.Path, e.method))
		return
	}
	// A page from elsewhere in an operator's browser may not take or free locks.
	if err := h.origin.Check(r); err != nil {
		writeError(w, status.Errorf(codes.PermissionDenied, "requests of web pages from other origins are refused: %v", err))
		return
	}
	e.serve(w, r)
}

// post builds the endpoint of a call with a JSON body.
func post[Q, A any](in func(*Q) fields, call func(context.Context, *Q) (*A, error), out func(*A) any) endpoint {
	return endpoint{http.MethodPost, func(w http.ResponseWriter, r *http.Request) {
		q := new(Q)
		if err := readBody(w, r, in(q)); err != nil {
			writeError(w, err)
			return
		}
		a, err := call(r.Context(), q)
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, out(a))
	}}
}

// get builds the endpoint of a call with a query.
func get[Q, A any](in func(*Q) fields, call func(context.Context, *Q) (*A, error), out func(*A) any) endpoint {
	return endpoint{http.MethodGet, func(w http.ResponseWriter, r *http.Request) {
		q := new(Q)
		if err := readQuery(r, in(q)); err != nil {
			writeError(w, err)
			return
		}
		a, err := call(r.Context(), q)
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, out(a))
	}}
}

// acquire delivers its answer itself, since what becomes of the lock depends
// on whether the answer could be written.
func (h *handler) acquire(w http.ResponseWriter, r *http.Request) {
	q := &lockv1.AcquireRequest{}
	if err := readBody(w, r, acquireIn(q)); err != nil {
		writeError(w, err)
		return
	}
	if q.GetWaitMs() > maxWaitMS {
		writeError(w, fieldError("wait_ms", fmt.Sprintf("must be at most %d over HTTP (is %d)", maxWaitMS, q.GetWaitMs())))
		return
	}
	ctx := r.Context()
	h.cfg.Service.AcquireAndDeliver(ctx, q, func(a *lockv1.AcquireResponse, err error) bool {
		if ctx.Err() != nil {
			return false
		}
		if err != nil {
			writeError(w, err)
			return true
		}
		writeJSON(w, http.StatusOK, acquireOut(a))
		// A failed flush may have sent a part: the caller may know its token.
		_ = http.NewResponseController(w).Flush()
		return true
	})
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		code, b = http.StatusInternalServerError, []byte(`{"error":{"code":"INTERNAL","message":"the answer has no JSON form","field":""}}`)
	}
	b = append(b, '\n')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	w.Write(b)
}

// errorBody is the body of every refusal.
type errorBody struct {
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Field   string `json:"field"`
	} `json:"error"`
}

// fieldErr is a refusal of one field, found here.
type fieldErr struct{ field, message string }

func (e *fieldErr) Error() string { return e.message }

func fieldError(field, rule string) error { return &fieldErr{field, field + " " + rule} }

func writeError(w http.ResponseWriter, err error) { writeErrorStatus(w, 0, err) }

func writeErrorStatus(w http.ResponseWriter, code int, err error) {
	var body errorBody
	var fe *fieldErr
	if errors.As(err, &fe) {
		body.Error.Code, body.Error.Message, body.Error.Field = "INVALID_ARGUMENT", fe.message, fe.field
		writeJSON(w, http.StatusBadRequest, body)
		return
	}
	st := status.Convert(err)
	c, name := httpStatus(st.Code())
	if code == 0 {
		code = c
	}
	body.Error.Code, body.Error.Message = name, st.Message()
	for _, d := range st.Details() {
		if d, ok := d.(*lockv1.ErrorDetail); ok {
			body.Error.Field = d.Field
			if d.RetryAfterMs > 0 {
				w.Header().Set("Retry-After", strconv.FormatUint((d.RetryAfterMs+999)/1000, 10))
			}
		}
	}
	writeJSON(w, code, body)
}

// httpStatus gives the usual HTTP status and the upper-case name of a code.
func httpStatus(c codes.Code) (int, string) {
	switch c {
	case codes.Canceled:
		return 499, "CANCELLED"
	case codes.InvalidArgument:
		return http.StatusBadRequest, "INVALID_ARGUMENT"
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout, "DEADLINE_EXCEEDED"
	case codes.NotFound:
		return http.StatusNotFound, "NOT_FOUND"
	case codes.AlreadyExists:
		return http.StatusConflict, "ALREADY_EXISTS"
	case codes.PermissionDenied:
		return http.StatusForbidden, "PERMISSION_DENIED"
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests, "RESOURCE_EXHAUSTED"
	case codes.FailedPrecondition:
		return http.StatusBadRequest, "FAILED_PRECONDITION"
	case codes.Aborted:
		return http.StatusConflict, "ABORTED"
	case codes.OutOfRange:
		return http.StatusBadRequest, "OUT_OF_RANGE"
	case codes.Unimplemented:
		return http.StatusNotImplemented, "UNIMPLEMENTED"
	case codes.Internal:
		return http.StatusInternalServerError, "INTERNAL"
	case codes.Unavailable:
		return http.StatusServiceUnavailable, "UNAVAILABLE"
	case codes.DataLoss:
		return http.StatusInternalServerError, "DATA_LOSS"
	case codes.Unauthenticated:
		return http.StatusUnauthorized, "UNAUTHENTICATED"
	}
	return http.StatusInternalServerError, "UNKNOWN"
}
