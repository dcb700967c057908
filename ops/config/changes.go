package config

import (
	"bytes"
	"fmt"
	"reflect"
)

// Change is one setting that differs between two configurations.
type Change struct {
	// Path is the setting's key, such as "log.level".
	Path string
	// Reloadable: it can be applied to a running process.
	Reloadable bool
	text       string
	field      field
}

// String is the setting with its old and its new value; of the cluster's key,
// the setting alone.
func (c Change) String() string { return c.text }

// Apply copies this one setting.
func (c Change) Apply(to, from *Config) {
	v := reflect.ValueOf(to).Elem().FieldByIndex(c.field.index)
	v.Set(reflect.ValueOf(c.field.get(from)))
}

// Changes lists the settings that differ, in the order of the reference.
func Changes(was, is *Loaded) []Change {
	var out []Change
	for _, f := range fields() {
		before, after := f.get(&was.Config), f.get(&is.Config)
		c := Change{Path: f.path, Reloadable: f.reloadable, field: f, text: fmt.Sprintf("%s: %s -> %s", f.path, shown(before), shown(after))}
		switch {
		case f.path == "cluster_key":
			// The key itself never shows.
			c.text = f.path
		case f.path == "cluster_key_file" && reflect.DeepEqual(before, after) && !bytes.Equal(was.Key, is.Key) && after != "":
			c.text = f.path + ": the key in it"
			out = append(out, c)
			continue
		}
		if !reflect.DeepEqual(before, after) {
			out = append(out, c)
		}
	}
	return out
}

// shown is a value in a message.
func shown(v any) string {
	if s := fmt.Sprint(v); s != "" {
		return s
	}
	return "unset"
}
