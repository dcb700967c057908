package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFileBytes bounds a configuration file.
const maxFileBytes = 1 << 20

// Sources are where the settings come from, weakest first.
type Sources struct {
	// File is the path of the YAML file; empty: none.
	File string
	// Env is the environment as os.Environ gives it. Variables that name no
	// setting are ignored: service discovery and `lock run` set such.
	Env []string
	// Set are flags of the form key=value.
	Set []string
}

// Loaded is a checked configuration and where its parts were written.
type Loaded struct {
	Config
	// Key is the cluster's key, read and decoded.
	Key []byte
	// Origin says for each setting where it was written: "file:line", an
	// environment variable or a flag. Settings not written anywhere are absent.
	Origin map[string]string
}

// Problem is one thing that is wrong.
type Problem struct {
	// Where is "file:line", a variable, a flag, or the file's name alone.
	Where string
	// What names the setting and the rule.
	What string
	line int
}

func (p Problem) String() string {
	if p.Where == "" {
		return p.What
	}
	return p.Where + ": " + p.What
}

// Error is every problem of a configuration, in the order of the file, then
// environment, flags and what is missing.
type Error struct{ Problems []Problem }

func (e *Error) Error() string {
	var lines []string
	for _, p := range e.Problems {
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

// Load reads, merges and checks. A *Error lists all problems; any other error
// is about reading the file.
func Load(s Sources) (*Loaded, error) {
	l := &loader{Loaded: Loaded{Config: Default(), Origin: map[string]string{}}, lines: map[string]int{}}
	if s.File != "" {
		if err := l.file(s.File); err != nil {
			return nil, err
		}
	}
	l.environment(s.Env)
	l.flags(s.Set)
	if !l.unreadable {
		l.check()
	}
	if len(l.problems) > 0 {
		slices.SortStableFunc(l.problems, func(a, b Problem) int { return rank(a) - rank(b) })
		return nil, &Error{l.problems}
	}
	return &l.Loaded, nil
}

// rank puts problems with a line first, in order of line.
func rank(p Problem) int {
	if p.line == 0 {
		return maxFileBytes + 1
	}
	return p.line
}

type loader struct {
	Loaded
	name     string
	lines    map[string]int
	problems []Problem
	// unreadable: the file is no YAML, so what is missing means nothing.
	unreadable bool
}

// at reports a problem at a line of the file.
func (l *loader) at(line int, format string, args ...any) {
	l.problems = append(l.problems, Problem{fmt.Sprintf("%s:%d", l.name, line), fmt.Sprintf(format, args...), line})
}

// about reports a problem where a setting was written.
func (l *loader) about(path, format string, args ...any) {
	where := l.Origin[path]
	if where == "" {
		where = l.name
	}
	l.problems = append(l.problems, Problem{where, fmt.Sprintf(format, args...), l.lines[path]})
}

func (l *loader) file(path string) error {
	l.name = path
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("configuration file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return fmt.Errorf("configuration file: %w", err)
	}
	if len(b) > maxFileBytes {
		l.at(1, "the file is larger than %d bytes", maxFileBytes)
		return nil
	}
	d := yaml.NewDecoder(strings.NewReader(string(b)))
	var doc, more yaml.Node
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		l.syntax(err)
		return nil
	}
	if err := d.Decode(&more); err == nil {
		l.at(more.Line, "a second document begins here; the file must hold one")
	}
	root := doc.Content[0]
	if root.Tag == "!!null" {
		return nil
	}
	l.mapping(root, reflect.TypeFor[Config](), "")
	return nil
}

// syntax turns the parser's "yaml: line 3: …" into a problem with a line.
func (l *loader) syntax(err error) {
	l.unreadable = true
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 1
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if n, after, ok := strings.Cut(rest, ": "); ok {
			if v, err := strconv.Atoi(n); err == nil {
				line, text = v, after
			}
		}
	}
	l.at(line, "not YAML: %s", text)
}

// mapping reads the keys of one struct.
func (l *loader) mapping(n *yaml.Node, t reflect.Type, prefix string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		what := strings.TrimSuffix(prefix, ".")
		if what == "" {
			what = "the file"
		}
		l.at(n.Line, "%s must be a mapping of keys to values", what)
		return
	}
	keys := make(map[string]reflect.StructField)
	var names []string
	for i := range t.NumField() {
		f := t.Field(i)
		keys[f.Tag.Get("yaml")] = f
		names = append(names, f.Tag.Get("yaml"))
	}
	seen := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		f, ok := keys[key.Value]
		switch {
		case !ok:
			l.unknown(key, prefix, names)
		case seen[key.Value] != 0:
			l.at(key.Line, "%s%s was set on line %d already", prefix, key.Value, seen[key.Value])
		case f.Type.Kind() == reflect.Struct:
			if value.Tag != "!!null" {
				l.mapping(value, f.Type, prefix+key.Value+".")
			}
		default:
			l.value(prefix+key.Value, key.Line, value)
		}
		if ok && seen[key.Value] == 0 {
			seen[key.Value] = key.Line
		}
	}
}

// unknown reports a key that does not exist, with the one that was meant: of
// the same level, else of anywhere.
func (l *loader) unknown(key *yaml.Node, prefix string, names []string) {
	hint := ""
	if near := nearest(key.Value, names); near != "" {
		hint = fmt.Sprintf("; did you mean %s%s?", prefix, near)
	} else {
		for _, p := range Paths() {
			if p == key.Value || strings.HasSuffix(p, "."+key.Value) {
				hint = fmt.Sprintf("; did you mean %s?", p)
			}
		}
	}
	l.at(key.Line, "%s%s is no setting%s", prefix, key.Value, hint)
}

func (l *loader) value(path string, line int, n *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	f := find(path)
	target := reflect.ValueOf(&l.Config).Elem().FieldByIndex(f.index)
	l.Origin[path], l.lines[path] = fmt.Sprintf("%s:%d", l.name, line), line
	if n.Tag == "!!null" {
		// "key:" with nothing behind it would silently mean the default.
		l.at(line, "%s has no value; leave the key out or give it %s", path, kindName(f.typ))
		return
	}
	if f.typ.Kind() == reflect.Slice {
		var list []string
		if n.Kind != yaml.SequenceNode {
			l.at(n.Line, "%s must be a list of texts", path)
			return
		}
		for _, item := range n.Content {
			if item.Kind != yaml.ScalarNode || item.Tag != "!!str" {
				l.at(item.Line, "%s must be a list of texts; %q is none", path, item.Value)
				continue
			}
			list = append(list, item.Value)
		}
		target.Set(reflect.ValueOf(list))
		return
	}
	want := map[reflect.Kind]string{reflect.String: "!!str", reflect.Bool: "!!bool", reflect.Int: "!!int", reflect.Uint64: "!!int"}[f.typ.Kind()]
	if n.Kind != yaml.ScalarNode {
		l.at(n.Line, "%s must be %s, not a list or a mapping", path, kindName(f.typ))
		return
	}
	// A name or a key of digits alone is text all the same.
	if n.Tag != want && !(want == "!!str" && (n.Tag == "!!int" || n.Tag == "!!float")) {
		l.at(n.Line, "%s must be %s; %q is not", path, kindName(f.typ), n.Value)
		return
	}
	if err := f.set(&l.Config, n.Value); err != nil {
		l.at(n.Line, "%v", err)
	}
}

func find(path string) field {
	for _, f := range fields() {
		if f.path == path {
			return f
		}
	}
	panic("config: no setting " + path)
}

func (l *loader) environment(env []string) {
	byName := make(map[string]field)
	for _, f := range fields() {
		byName[Env(f.path)] = f
	}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if f, ok := byName[name]; ok {
			l.override(f, name, value)
		}
	}
}

func (l *loader) flags(set []string) {
	for _, kv := range set {
		path, value, ok := strings.Cut(kv, "=")
		if !ok || !slices.Contains(Paths(), path) {
			hint := ""
			if near := nearest(path, Paths()); ok && near != "" {
				hint = fmt.Sprintf("; did you mean %s?", near)
			}
			if !ok {
				hint = "; write --set key=value"
			}
			l.problems = append(l.problems, Problem{"--set " + kv, path + " is no setting" + hint, 0})
			continue
		}
		l.override(find(path), "--set "+path, value)
	}
}

func (l *loader) override(f field, where, value string) {
	l.Origin[f.path] = where
	delete(l.lines, f.path)
	if err := f.set(&l.Config, value); err != nil {
		l.problems = append(l.problems, Problem{where, err.Error(), 0})
	}
}
