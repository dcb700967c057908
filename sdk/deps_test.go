package mortise

import (
	"os/exec"
	"strings"
	"testing"
)

// TestDependencies keeps the footprint of the SDK small: what an application
// imports with it is listed here, each with its reason.
func TestDependencies(t *testing.T) {
	allowed := map[string]string{
		"github.com/mortise-lock/mortise/sdk":                "the SDK itself",
		"github.com/mortise-lock/mortise/proto/mortise/lock": "the wire contract",
		"google.golang.org/grpc":                             "the transport",
		"google.golang.org/protobuf":                         "the encoding",
		"google.golang.org/genproto/googleapis/rpc":          "status details, imported by grpc",
		"golang.org/x/net":                                   "HTTP/2, imported by grpc",
		"golang.org/x/text":                                  "imported by x/net",
		"golang.org/x/sys":                                   "CLOCK_BOOTTIME; imported by grpc, too",
	}
	for _, pkg := range []string{".", "./fence"} {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", pkg).CombinedOutput()
		if err != nil {
			t.Fatalf("go list: %v: %s", err, out)
		}
		for _, p := range strings.Fields(string(out)) {
			ok := false
			for a := range allowed {
				ok = ok || p == a || strings.HasPrefix(p, a+"/")
			}
			if !ok || strings.Contains(p, "fakeservice") {
				t.Errorf("%s imports %s, which is not on the list", pkg, p)
			}
		}
	}
}
