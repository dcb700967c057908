package lint

import (
	"go/token"
	"slices"
	"strings"
	"testing"
)

// arrow says what the packages under one top folder may import of ours.
type arrow struct {
	may    []string // top folders, or folders below one
	reason string
}

// arrows are the architecture: who may know whom. Tests obey them too.
var arrows = map[string]arrow{
	"proto":     {nil, "wire contracts stand alone, so that any language and any part can start from them"},
	"shard":     {nil, "the lock state machine must be the same bytes-to-state function everywhere, so it depends on nothing that could change under it"},
	"placement": {[]string{"proto", "shard"}, "the map names shards and their selectors; planners must not depend on how nodes or gateways carry a plan out"},
	"node":      {[]string{"proto", "shard", "placement"}, "a node hosts shards by the map; it must run without knowing who its clients are"},
	"gateway":   {[]string{"proto", "shard", "placement", "sdk/redislock"}, "a gateway routes by the map and talks to nodes over the wire only, so that it can run anywhere"},
	"sdk":       {[]string{"proto"}, "what applications import must not pull in the service"},
	"ops":       {[]string{"proto", "shard", "placement", "node", "gateway", "sdk"}, "programs and checks put the parts together; nothing imports them"},
}

func TestImportArrows(t *testing.T) {
	for _, p := range goList(t, "./...") {
		from := top(p.ImportPath)
		rule, ok := arrows[from]
		if !ok {
			t.Errorf("%s: the top folder %q is not part of the architecture; put the package under one of the seven", p.ImportPath, from)
			continue
		}
		for _, to := range append(p.tests(), p.Imports...) {
			if top(to) == "" || top(to) == from {
				continue
			}
			folder := strings.TrimPrefix(to, module+"/")
			if !slices.ContainsFunc(rule.may, func(m string) bool { return folder == m || strings.HasPrefix(folder, m+"/") }) {
				t.Errorf("%s imports %s: %s/ may import only %v of ours: %s", p.ImportPath, to, from, rule.may, rule.reason)
			}
		}
	}
}

// sdkModules are the modules that a user of the SDK inherits, tests apart.
var sdkModules = map[string]string{
	"google.golang.org/grpc":                    "the session stream",
	"google.golang.org/protobuf":                "the wire contract",
	"google.golang.org/genproto/googleapis/rpc": "gRPC's status details; comes with grpc",
	"golang.org/x/net":                          "HTTP/2 of grpc",
	"golang.org/x/sys":                          "comes with grpc; CLOCK_BOOTTIME",
	"golang.org/x/text":                         "comes with x/net",
}

func TestSDKFootprint(t *testing.T) {
	for _, p := range goList(t, "-deps", "./sdk/...") {
		if p.Standard || p.Module == nil || p.Module.Path == module {
			continue
		}
		if _, ok := sdkModules[p.Module.Path]; !ok {
			t.Errorf("sdk/ pulls in %s of module %s: every user of the SDK would inherit it; do without, or put it into a package beside sdk/ and list it in sdkModules with its reason",
				p.ImportPath, p.Module.Path)
		}
	}
}

// narrow lists what a part may not use of a package that it may import.
var narrow = map[string]map[string]string{
	"gateway": {
		module + "/shard.Machine":           "a gateway routes; it never holds lock state",
		module + "/shard.New":               "a gateway routes; it never holds lock state",
		module + "/shard.Restore":           "a gateway routes; it never holds lock state",
		module + "/shard.Batch":             "log entries are made by leaders only",
		module + "/shard.DecodeBatch":       "log entries are read by replicas only",
		module + "/placement.Machine":       "a gateway follows the map; it never changes it",
		module + "/placement.NewMachine":    "a gateway follows the map; it never changes it",
		module + "/placement.EncodeCommand": "changes of the map go through the meta shard's leader",
	},
}

func TestNarrowImports(t *testing.T) {
	for _, f := range goFiles(t) {
		banned := narrow[strings.Split(f.path, "/")[0]]
		if banned == nil || f.test {
			continue
		}
		f.uses(func(name string, pos token.Pos) {
			if why, ok := banned[name]; ok {
				t.Errorf("%s: %s is not for this folder: %s", position(pos), name, why)
			}
		})
	}
}
