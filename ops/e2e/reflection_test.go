package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestGRPCByReflection does all of it with grpcurl, which knows of the service
// only what reflection tells.
func TestGRPCByReflection(t *testing.T) {
	dev := shared.use(t)
	tool := filepath.Join(repository, ".cache/bin/grpcurl")
	if _, err := os.Stat(tool); err != nil {
		t.Fatal("grpcurl is not built: run `make tools`")
	}
	grpcurl := func(body string, args ...string) (string, error) {
		all := []string{"-plaintext", "-emit-defaults"}
		if body != "" {
			all = append(all, "-d", body)
		}
		cmd := exec.Command(tool, append(append(all, dev.grpc), args...)...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("%w: %s", err, errs.String())
		}
		return out.String(), nil
	}
	do := func(method string, request object) object {
		t.Helper()
		body, err := json.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		out, err := grpcurl(string(body), "mortise.lock.v1.LockService/"+method)
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		var o object
		if err := json.Unmarshal([]byte(out), &o); err != nil {
			t.Fatalf("%s: %v in %s", method, err, out)
		}
		return o
	}
	list, err := grpcurl("", "list")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"mortise.lock.v1.LockService", "mortise.placement.v1.PlacementService", "grpc.health.v1.Health"} {
		if !strings.Contains(list, s) {
			t.Errorf("reflection does not list %s:\n%s", s, list)
		}
	}
	if out, err := grpcurl("{}", "grpc.health.v1.Health/Check"); err != nil || !strings.Contains(out, "SERVING") {
		t.Errorf("health: %v %s", err, out)
	}
	session := do("OpenSession", object{"client": "grpcurl", "ttl_ms": 60000})["sessionId"]
	granted := do("Acquire", object{"session_id": session, "name": "reflected", "wait_ms": 1000})
	token := granted["token"]
	if granted["granted"] != true || token == "0" || granted["fenced"] != true {
		t.Fatalf("acquire: %v", granted)
	}
	if o := do("Describe", object{"name": "reflected"}); !strings.Contains(fmt.Sprint(o), "grpcurl") {
		t.Errorf("describe: %v", o)
	}
	if o := do("CheckToken", object{"name": "reflected", "token": token}); o["current"] != true {
		t.Errorf("check token: %v", o)
	}
	if o := do("KeepAlive", object{"session_id": session}); o["renewed"] != true {
		t.Errorf("keep-alive: %v", o)
	}
	if o := do("List", object{"prefix": "reflec"}); !strings.Contains(fmt.Sprint(o), "reflected") {
		t.Errorf("list: %v", o)
	}
	if o := do("ListSessions", object{"client_prefix": "grpcurl"}); !strings.Contains(fmt.Sprint(o), "grpcurl") {
		t.Errorf("list sessions: %v", o)
	}
	// With the session a repetition is no error.
	do("Release", object{"name": "reflected", "token": token, "session_id": session})
	do("Release", object{"name": "reflected", "token": token, "session_id": session})
	_, err = grpcurl(fmt.Sprintf(`{"name":"reflected","token":%q}`, token), "mortise.lock.v1.LockService/Release")
	if err == nil || !strings.Contains(err.Error(), "FailedPrecondition") || !strings.Contains(err.Error(), "TOKEN_NOT_CURRENT") {
		t.Errorf("release of a token that is not current: %v, want FailedPrecondition with its detail", err)
	}
	again := do("Acquire", object{"session_id": session, "name": "reflected"})
	if o := do("ForceRelease", object{"name": "reflected", "reason": "end-to-end test"}); !strings.Contains(fmt.Sprint(o), fmt.Sprint(again["token"])) {
		t.Errorf("force-release: %v", o)
	}
	do("CloseSession", object{"session_id": session})
	// The stream, too. A client that says everything at once and listens hears
	// every answer, then a good end.
	for _, said := range []struct {
		ops  string
		want []string
	}{
		{`{"acquire":{"seq":1,"name":"said at once"}},{"close":{}}`, []string{`"opened"`, `"closed"`}},
		{`{"acquire":{"seq":1,"name":"said at once"}}`, []string{`"opened"`, `"renewed"`, `"granted"`, `"token"`}},
	} {
		heard, err := grpcurl(`{"ops":[{"open":{"client":"stream","ttl_ms":1000}},{"renew":{"number":1}},`+said.ops+`]}`,
			"mortise.lock.v1.LockService/Session")
		if err != nil {
			t.Errorf("a stream that was half-closed at once: %v", err)
		}
		for _, want := range said.want {
			if !strings.Contains(heard, want) {
				t.Errorf("a stream that was half-closed at once: no %s in %s", want, heard)
			}
		}
	}
	// One frame that opens, one that acquires: it lives as long as its input is
	// open.
	stream := exec.Command(tool, "-plaintext", "-d", "@", dev.grpc, "mortise.lock.v1.LockService/Session")
	in, err := stream.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	p := start(t, "grpcurl", stream)
	fmt.Fprintln(in, `{"ops":[{"open":{"client":"stream"}}]}`)
	p.waitLog(t, `"opened"`, 10*time.Second)
	fmt.Fprintln(in, `{"ops":[{"renew":{"number":1}},{"acquire":{"seq":1,"name":"reflected"}}]}`)
	p.waitLog(t, `"granted"`, 10*time.Second)
	fmt.Fprintln(in, `{"ops":[{"close":{}}]}`)
	p.waitLog(t, `"closed"`, 10*time.Second)
}
