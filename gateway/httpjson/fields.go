package httpjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
)

// field reads one JSON value into a request; a non-empty rule refuses it.
type field func(v value) (rule string)

// fields are the fields of a call, by name.
type fields map[string]field

// value is a JSON value, or a query parameter (text set).
type value struct {
	raw  json.RawMessage
	text *string
}

func (v value) string() (string, bool) {
	if v.text != nil {
		return *v.text, true
	}
	var s string
	if len(v.raw) == 0 || v.raw[0] != '"' || json.Unmarshal(v.raw, &s) != nil {
		return "", false
	}
	return s, true
}

// number reads a whole number from 0; JSON strings are not numbers.
func (v value) number(bits int) (uint64, string) {
	s := string(v.raw)
	if v.text != nil {
		s = *v.text
	}
	n, err := strconv.ParseUint(s, 10, bits)
	switch {
	case err == nil:
		return n, ""
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Sprintf("must be at most %d (is %s)", uint64(1)<<(bits-1)<<1-1, clip(s))
	case strings.HasPrefix(s, "-"):
		return 0, fmt.Sprintf("must be 0 or more (is %s)", clip(s))
	}
	return 0, fmt.Sprintf("must be a whole number (is %s)", clip(s))
}

func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

func text(p *string) field {
	return func(v value) string {
		s, ok := v.string()
		if !ok {
			return "must be a string"
		}
		*p = s
		return ""
	}
}

func u64(p *uint64) field {
	return func(v value) (rule string) {
		*p, rule = v.number(64)
		return rule
	}
}

func optU64(p **uint64) field {
	return func(v value) string {
		n, rule := v.number(64)
		*p = &n
		return rule
	}
}

func optU32(p **uint32) field {
	return func(v value) string {
		n, rule := v.number(32)
		n32 := uint32(n)
		*p = &n32
		return rule
	}
}

var modeNames = map[string]lockv1.Mode{"exclusive": lockv1.Mode_MODE_EXCLUSIVE, "shared": lockv1.Mode_MODE_SHARED, "counted": lockv1.Mode_MODE_COUNTED}

func mode(p *lockv1.Mode) field {
	return func(v value) string {
		s, _ := v.string()
		m, ok := modeNames[s]
		if !ok {
			return fmt.Sprintf(`must be "exclusive", "shared" or "counted" (is %s)`, clip(string(v.raw)))
		}
		*p = m
		return ""
	}
}

func tier(p *lockv1.Tier) field {
	return func(v value) string {
		switch s, _ := v.string(); s {
		case "strict":
			*p = lockv1.Tier_TIER_STRICT
		case "fast":
			*p = lockv1.Tier_TIER_FAST
		default:
			return fmt.Sprintf(`must be "strict" or "fast" (is %s)`, clip(string(v.raw)))
		}
		return ""
	}
}

func modeName(m lockv1.Mode) string {
	switch m {
	case lockv1.Mode_MODE_EXCLUSIVE:
		return "exclusive"
	case lockv1.Mode_MODE_SHARED:
		return "shared"
	case lockv1.Mode_MODE_COUNTED:
		return "counted"
	}
	return ""
}

// readBody reads one JSON object of known fields. null counts as left out.
func readBody(w http.ResponseWriter, r *http.Request, fs fields) error {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooBig *http.MaxBytesError
	if errors.As(err, &tooBig) {
		return &fieldErr{"", fmt.Sprintf("the body must be at most %d bytes", maxBody)}
	}
	if err != nil {
		return &fieldErr{"", "the body could not be read: " + err.Error()}
	}
	if r.URL.RawQuery != "" {
		return &fieldErr{"", "this call takes its fields in a JSON body, not in the query"}
	}
	if !utf8.Valid(b) {
		// The decoder would put replacement characters, that is, another name.
		return &fieldErr{"", "the body must be UTF-8"}
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return &fieldErr{"", "the body must be one JSON object"}
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return &fieldErr{"", "the body must be one JSON object: " + fmt.Sprint(err)}
		}
		var v value
		if err := d.Decode(&v.raw); err != nil {
			return &fieldErr{name, "the body must be one JSON object: the value of " + strconv.Quote(clip(name)) + " is not JSON"}
		}
		if err := fs.set(name, v, seen); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return &fieldErr{"", "the body must be one JSON object: it ends too early"}
	}
	if _, err := d.Token(); err != io.EOF {
		return &fieldErr{"", "the body must be one JSON object and nothing after it"}
	}
	return nil
}

func readQuery(r *http.Request, fs fields) error {
	q := r.URL.Query()
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		for _, s := range q[name] {
			if err := fs.set(name, value{text: &s}, seen); err != nil {
				return err
			}
		}
	}
	return nil
}

func (fs fields) set(name string, v value, seen map[string]bool) error {
	f := fs[name]
	if f == nil {
		return &fieldErr{clip(name), fmt.Sprintf("unknown field %q; this call knows %s", clip(name),
			strings.Join(slices.Sorted(maps.Keys(fs)), ", "))}
	}
	if seen[name] {
		return fieldError(name, "must be given once")
	}
	seen[name] = true
	if string(v.raw) == "null" && v.text == nil {
		return nil
	}
	if rule := f(v); rule != "" {
		return fieldError(name, rule)
	}
	return nil
}
