package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// field is one setting that has a value of its own.
type field struct {
	// path is the key as written in flags and messages: "gateway.grpc".
	path  string
	index []int
	typ   reflect.Type
	// reloadable: tagged reload:"true"; a running process can take a new value.
	reloadable bool
}

// fields lists every setting in the order of the struct.
func fields() []field { return walk(reflect.TypeFor[Config](), "", nil) }

func walk(t reflect.Type, prefix string, index []int) []field {
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		path, at := prefix+f.Tag.Get("yaml"), append(append([]int(nil), index...), i)
		if f.Type.Kind() == reflect.Struct {
			out = append(out, walk(f.Type, path+".", at)...)
			continue
		}
		out = append(out, field{path, at, f.Type, f.Tag.Get("reload") == "true"})
	}
	return out
}

// Env is the environment variable of a setting.
func Env(path string) string {
	return "MORTISE_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// Paths lists every setting's key.
func Paths() []string {
	var out []string
	for _, f := range fields() {
		out = append(out, f.path)
	}
	return out
}

// kindName says what a setting takes, for messages and the reference.
func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Uint64:
		return "a whole number"
	case reflect.Slice:
		return "a list of texts"
	default:
		return "text"
	}
}

// set parses text into the setting.
func (f field) set(c *Config, text string) error {
	v := reflect.ValueOf(c).Elem().FieldByIndex(f.index)
	bad := fmt.Errorf("%s must be %s; %q is not", f.path, kindName(f.typ), text)
	switch f.typ.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return bad
		}
		v.SetBool(b)
	case reflect.Int:
		n, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 0)
		if err != nil {
			return bad
		}
		v.SetInt(n)
	case reflect.Uint64:
		n, err := strconv.ParseUint(strings.ReplaceAll(text, "_", ""), 10, 64)
		if err != nil {
			return bad
		}
		v.SetUint(n)
	case reflect.Slice:
		var list []string
		for s := range strings.SplitSeq(text, ",") {
			if s = strings.TrimSpace(s); s != "" {
				list = append(list, s)
			}
		}
		v.Set(reflect.ValueOf(list))
	}
	return nil
}

// get returns the setting's value.
func (f field) get(c *Config) any { return reflect.ValueOf(c).Elem().FieldByIndex(f.index).Interface() }

// nearest returns the candidate with the fewest edits from key, or "" when
// none is near enough to be what was meant.
func nearest(key string, candidates []string) string {
	best, bestDistance := "", 1+len(key)/2
	for _, c := range candidates {
		if d := distance(strings.ToLower(key), c); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance is the Levenshtein distance, with a swap of neighbours as one edit.
func distance(a, b string) int {
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	for j := range rows[1] {
		rows[1][j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, row := rows[0], rows[1], rows[2]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		rows[0], rows[1], rows[2] = last, row, before
	}
	return rows[1][len(b)]
}
