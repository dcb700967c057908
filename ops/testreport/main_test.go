package main

import (
	"strings"
	"testing"
)

func summary(t *testing.T, events string) (string, bool) {
	t.Helper()
	var out strings.Builder
	r := &report{out: &out, logs: map[string]string{}}
	if err := r.read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	ok := r.finish()
	return out.String(), ok
}

func TestSummaryOfAPass(t *testing.T) {
	out, ok := summary(t, `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:9: figure: TestA: 3 ms\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.5}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:1: no postgres\n"}
{"Action":"skip","Package":"p","Test":"TestB","Elapsed":0}
{"Action":"pass","Package":"p","Elapsed":0.7}
`)
	if !ok {
		t.Error("not ok")
	}
	for _, want := range []string{"TestA: 3 ms", "p TestB: b_test.go:1: no postgres", "ok  \tp\t0.7s"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if !strings.HasSuffix(out, "\n1 passed, 0 failed\n") {
		t.Errorf("ends with %q", out[max(0, len(out)-40):])
	}
}

func TestSummaryOfFailures(t *testing.T) {
	out, ok := summary(t, `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:9: it broke\n"}
{"Action":"fail","Package":"p","Test":"TestA","Elapsed":0.5}
{"Action":"fail","Package":"p","Elapsed":0.7}
{"ImportPath":"q","Action":"build-output","Output":"q.go:1: no such thing\n"}
{"Action":"fail","Package":"q","Elapsed":0,"FailedBuild":"q"}
{"Action":"output","Package":"r","Output":"panic: outside of tests\n"}
{"Action":"fail","Package":"r","Elapsed":0}
`)
	if ok {
		t.Error("ok")
	}
	for _, want := range []string{"it broke", "no such thing", "panic: outside of tests"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if !strings.HasSuffix(out, "\n0 passed, 3 failed\n") {
		t.Errorf("ends with %q", out[max(0, len(out)-40):])
	}
}

func TestNothingRunIsAFailure(t *testing.T) {
	if _, ok := summary(t, "go: no such module\n"); ok {
		t.Error("ok")
	}
}
