package server

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mortise-lock/mortise/ops/config"
	"github.com/mortise-lock/mortise/ops/loopback"
	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the tables in docs/metrics.md")

// labels are all labels that a metric may have, with what bounds their values.
// Nothing that clients choose may be here: names, sessions, owners.
var labels = map[string]string{
	"method":   "the methods of the services in `proto/`, such as `Acquire`",
	"code":     "the 17 codes of gRPC, such as `OK` and `Unavailable`",
	"op":       "the kinds of operations on a session stream, 8 and `unknown`",
	"event":    "the kinds of events on a session stream, 14 and `unknown`",
	"quantile": "`0.5` and `0.99`",
	"version":  "the one version of the process",
}

// units of metrics whose name does not end with theirs.
var units = map[string]string{
	"mortise_node_info":              "always 1",
	"mortise_node_low_on_space":      "0 or 1",
	"mortise_node_map_generation":    "number",
	"mortise_gateway_map_generation": "number",
}

// startOne runs a node with its gateway, made a cluster of one node.
func startOne(t *testing.T) (*Server, *grpc.ClientConn) {
	t.Helper()
	at, err := loopback.Addrs(4)
	if err != nil {
		t.Fatal(err)
	}
	l, err := config.Load(config.Sources{Set: []string{"name=n1", "data_dir=" + t.TempDir(), "cluster_key=" + strings.Repeat("ab", 32),
		"listen=" + at[0], "gossip.listen=" + at[1], "gateway.grpc=" + at[2], "gateway.http=" + at[3]}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(l, "v0.0.0-test", slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // nobody to send clients or leaderships to
		s.Stop(ctx)
	})
	dial := func(to string) *grpc.ClientConn {
		cc, err := grpc.NewClient("passthrough:///"+to, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cc.Close() })
		return cc
	}
	one := uint32(1)
	shards := uint32(2)
	until(t, "a cluster of one", func() bool {
		_, err = placementv1.NewPlacementServiceClient(dial(s.Address())).Init(t.Context(), &placementv1.InitRequest{Nodes: &one, Shards: &shards})
		return err == nil
	})
	until(t, "ready", s.Ready)
	return s, dial(at[2])
}

// until looks again and again, for at most 20 seconds.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

// use does one of everything that counts, with a client and a lock of the
// given name.
func use(t *testing.T, cc *grpc.ClientConn, name string) {
	t.Helper()
	c, ctx := lockv1.NewLockServiceClient(cc), t.Context()
	s, err := c.OpenSession(ctx, &lockv1.OpenSessionRequest{Client: "client-" + name})
	if err != nil {
		t.Fatal(err)
	}
	g, err := c.Acquire(ctx, &lockv1.AcquireRequest{SessionId: s.SessionId, Name: "lock-" + name})
	if err != nil || !g.Granted {
		t.Fatalf("%v, %v", g, err)
	}
	if _, err := c.Describe(ctx, &lockv1.DescribeRequest{Name: "lock-" + name}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Release(ctx, &lockv1.ReleaseRequest{Name: "lock-" + name, Token: g.Token}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Release(ctx, &lockv1.ReleaseRequest{Name: "lock-" + name, Token: g.Token}); err == nil {
		t.Fatal("a second release of the same hold was not refused")
	}
	if _, err := c.CloseSession(ctx, &lockv1.CloseSessionRequest{SessionId: s.SessionId}); err != nil {
		t.Fatal(err)
	}
}

// ours are the metrics of this project.
func ours(name string) bool { return strings.HasPrefix(name, "mortise_") }

// standard are those of the Go runtime and the process.
func standard(name string) bool {
	return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_")
}

// described lists everything registered: its help and its labels.
func described(t *testing.T, reg *prometheus.Registry) map[string]metric {
	t.Helper()
	descs := make(chan *prometheus.Desc, 1000)
	go func() { reg.Describe(descs); close(descs) }()
	form := regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: ("(?:[^"\\]|\\.)*"), (?:unit: "[^"]*", )?constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	out := map[string]metric{}
	for d := range descs {
		m := form.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("a description of another form: %s", d)
		}
		help, err := strconv.Unquote(m[2])
		if err != nil {
			t.Fatal(err)
		}
		if m[3] != "" && ours(m[1]) {
			t.Errorf("%s has constant labels: %s", m[1], m[3])
		}
		x := metric{help: help}
		if m[4] != "" {
			x.labels = strings.Split(m[4], ",")
		}
		out[m[1]] = x
	}
	return out
}

type metric struct {
	help, kind string
	labels     []string
}

// TestMetricsDocument compares docs/metrics.md with everything that a node
// with its gateway registers.
func TestMetricsDocument(t *testing.T) {
	s, cc := startOne(t)
	use(t, cc, "x")
	all := described(t, s.registry)
	families, err := s.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		m, ok := all[f.GetName()]
		if !ok {
			t.Errorf("%s is gathered but not described", f.GetName())
		}
		m.kind = strings.ToLower(f.GetType().String())
		all[f.GetName()] = m
	}
	var rows []string
	for name, m := range all {
		if standard(name) {
			continue
		}
		switch {
		case !ours(name):
			t.Errorf("%s: names begin with mortise_", name)
		case m.kind == "":
			t.Errorf("%s was not seen: the test must do what makes it", name)
		case !strings.HasSuffix(m.help, "."):
			t.Errorf("%s: its help is no sentence: %q", name, m.help)
		case strings.HasSuffix(name, "_total") != (m.kind == "counter"):
			t.Errorf("%s is a %s; counters and only they end with _total", name, m.kind)
		}
		for _, l := range m.labels {
			if labels[l] == "" {
				t.Errorf("%s has the label %s, of which nothing says what bounds its values", name, l)
			}
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s | %s |", name, m.kind, orNone(strings.Join(m.labels, ", ")), unit(name), m.help))
	}
	slices.Sort(rows)
	table := "\n| name | type | labels | unit | meaning |\n| --- | --- | --- | --- | --- |\n" + strings.Join(rows, "\n") + "\n"
	var bounds []string
	for l, b := range labels {
		bounds = append(bounds, fmt.Sprintf("| `%s` | %s |", l, b))
	}
	slices.Sort(bounds)
	table += "\n| label | values |\n| --- | --- |\n" + strings.Join(bounds, "\n") + "\n\n"

	file := filepath.Join("..", "..", "docs", "metrics.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- begin -->\n", "<!-- end -->\n"
	before, rest, ok1 := strings.Cut(string(text), begin)
	was, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s lacks the lines %s%s", file, begin, end)
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(before+begin+table+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		was = table
	}
	if was != table {
		t.Errorf("%s is not up to date; go test ./ops/server -run TestMetricsDocument -rewrite. Want:\n%s", file, table)
	}
	for _, name := range regexp.MustCompile(`mortise_[a-z0-9_]+`).FindAllString(before+after, -1) {
		if _, ok := all[name]; !ok {
			t.Errorf("%s names %s, which does not exist", file, name)
		}
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func unit(name string) string {
	switch base := strings.TrimSuffix(name, "_total"); {
	case units[name] != "":
		return units[name]
	case strings.HasSuffix(base, "_seconds"):
		return "seconds"
	case strings.HasSuffix(base, "_bytes"):
		return "bytes"
	default:
		return "count"
	}
}

// However many locks, sessions and clients there were, there are as many
// series as after the first.
func TestSeriesAreBounded(t *testing.T) {
	s, cc := startOne(t)
	use(t, cc, "first")
	before := series(t, s.registry)
	for i := range 100 {
		use(t, cc, fmt.Sprintf("another-%d", i))
	}
	after := series(t, s.registry)
	for _, x := range after {
		if !slices.Contains(before, x) {
			t.Errorf("a series more: %s", x)
		}
	}
}

// series lists all series of this project, by name and labels.
func series(t *testing.T, reg *prometheus.Registry) (out []string) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !ours(f.GetName()) {
			continue
		}
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += fmt.Sprintf(" %s=%q", l.GetName(), l.GetValue())
			}
			out = append(out, name)
		}
	}
	return out
}
