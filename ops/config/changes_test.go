package config

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
)

// Every setting, changed alone, is the one change that is found; applying it
// leaves nothing to change. A setting added later is covered without a word.
func TestChangesOfEachSetting(t *testing.T) {
	for _, f := range fields() {
		was := &Loaded{Config: Default()}
		is := &Loaded{Config: Default()}
		text := "other"
		switch f.typ.Kind() {
		case reflect.Bool:
			text = fmt.Sprint(!f.get(&was.Config).(bool))
		case reflect.Int, reflect.Uint64:
			text = "77"
		}
		if err := f.set(&is.Config, text); err != nil {
			t.Fatal(err)
		}
		got := Changes(was, is)
		if len(got) != 1 || got[0].Path != f.path {
			t.Errorf("%s was changed; got %v", f.path, got)
			continue
		}
		got[0].Apply(&was.Config, &is.Config)
		if left := Changes(was, is); len(left) != 0 {
			t.Errorf("%s was applied; still %v", f.path, left)
		}
	}
}

func TestChangesShowNoKey(t *testing.T) {
	was, is := &Loaded{Config: Default(), Key: []byte("one")}, &Loaded{Config: Default(), Key: []byte("two")}
	was.ClusterKey, is.ClusterKey = "one", "two"
	if got := fmt.Sprint(Changes(was, is)); got != "[cluster_key]" {
		t.Errorf("got %s", got)
	}
	was.ClusterKey, is.ClusterKey, was.ClusterKeyFile, is.ClusterKeyFile = "", "", "/k", "/k"
	if got := fmt.Sprint(Changes(was, is)); got != "[cluster_key_file: the key in it]" {
		t.Errorf("got %s", got)
	}
}

// What a running process takes over is a decision for each setting.
func TestReloadableSettings(t *testing.T) {
	var got []string
	for _, f := range fields() {
		if f.reloadable {
			got = append(got, f.path)
		}
	}
	if want := []string{"log.level"}; !slices.Equal(got, want) {
		t.Errorf("reloadable are %v, want %v; ops/server must apply each", got, want)
	}
}
