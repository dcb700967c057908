package config

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// keyBytes is the length of a cluster key.
const keyBytes = 32

// maxTokenFloor leaves room above it: tokens stay below 2^53.
const maxTokenFloor = 1 << 52

func (l *loader) check() {
	c := &l.Config
	c.DataDir, c.ClusterKeyFile = l.relative("data_dir", c.DataDir), l.relative("cluster_key_file", c.ClusterKeyFile)
	c.PIDFile = l.relative("pid_file", c.PIDFile)
	if c.Mode == ModeGateway && l.Origin["data_dir"] == "" {
		c.DataDir = "" // a gateway needs none, and must not get in a node's way
	}
	if c.Mode != ModeNode && c.Mode != ModeGateway {
		l.about("mode", "mode must be node or gateway; %q is neither", c.Mode)
	}
	l.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	l.oneOf("log.format", c.Log.Format, "text", "json")
	l.key()
	l.limit("limits.streams", c.Limits.Streams, 1_000_000)
	l.limit("limits.stream_ops", c.Limits.StreamOps, 1_000_000)
	l.limit("limits.calls", c.Limits.Calls, 1_000_000)
	l.limit("limits.unary_sessions", c.Limits.UnarySessions, 10_000_000)
	if c.TokenFloor > maxTokenFloor {
		l.about("token_floor", "token_floor must be at most 2^52 (%d); %d is not", uint64(maxTokenFloor), c.TokenFloor)
	}
	if c.Mode == ModeGateway {
		l.checkGateway()
	} else {
		l.checkNode()
	}
	l.listeners()
}

func (l *loader) checkNode() {
	c := &l.Config
	l.label("name", c.Name, false)
	l.label("region", c.Region, false)
	l.label("zone", c.Zone, true)
	if c.DataDir == "" {
		l.about("data_dir", "data_dir must name a folder")
	}
	l.advertised("advertise", c.Advertise, "listen", c.Listen)
	l.advertised("gossip.advertise", c.Gossip.Advertise, "gossip.listen", c.Gossip.Listen)
	for i, a := range c.Gossip.Join {
		l.address(fmt.Sprintf("gossip.join[%d]", i), "gossip.join", a)
	}
	if l.Origin["gateway.seeds"] != "" {
		l.about("gateway.seeds", "gateway.seeds has no use in a node, whose gateway asks the node itself; remove it, or set mode: gateway")
	}
	if !c.Gateway.Enabled {
		for _, p := range []string{"gateway.grpc", "gateway.http"} {
			if l.Origin[p] != "" {
				l.about(p, "%s has no use while gateway.enabled is false; remove one of the two (for /metrics without a gateway use metrics_listen)", p)
			}
		}
	}
}

func (l *loader) checkGateway() {
	c := &l.Config
	if len(c.Gateway.Seeds) == 0 {
		l.about("gateway.seeds", "gateway.seeds must name the internal address (host:port) of at least one node in mode gateway")
	}
	for i, a := range c.Gateway.Seeds {
		l.address(fmt.Sprintf("gateway.seeds[%d]", i), "gateway.seeds", a)
	}
	if !c.Gateway.Enabled {
		l.about("gateway.enabled", "gateway.enabled is false in mode gateway, which leaves nothing to do")
	}
	for _, p := range []string{"listen", "advertise", "gossip.listen", "gossip.advertise", "gossip.join", "zone", "token_floor"} {
		if l.Origin[p] != "" {
			l.about(p, "%s has no use in mode gateway; remove it, or set mode: node", p)
		}
	}
}

// listeners checks form, duplicates, and who may listen beyond loopback.
func (l *loader) listeners() {
	c := &l.Config
	type listener struct {
		path, address string
		emptyOK, on   bool
	}
	node := c.Mode != ModeGateway
	taken := make(map[string]string)
	for _, n := range []listener{
		{"listen", c.Listen, false, node},
		{"gossip.listen", c.Gossip.Listen, false, node},
		{"gateway.grpc", c.Gateway.GRPC, false, c.Gateway.Enabled},
		{"gateway.http", c.Gateway.HTTP, true, c.Gateway.Enabled},
		{"metrics_listen", c.MetricsListen, true, true},
	} {
		if !n.on || (n.emptyOK && n.address == "") || !l.address(n.path, n.path, n.address) {
			continue
		}
		if other := taken[n.address]; other != "" {
			l.about(n.path, "%s is %s, and so is %s; each needs a port of its own", n.path, n.address, other)
		}
		taken[n.address] = n.path
		if host, _, _ := net.SplitHostPort(n.address); !isLoopback(host) && !c.Insecure {
			l.about(n.path, "%s listens beyond loopback (%s) without TLS; anybody who reaches it can take and release every lock: "+
				"listen on 127.0.0.1, or accept that with insecure: true (--insecure)", n.path, n.address)
		}
	}
}

// address checks host:port; what is its name in the message.
func (l *loader) address(what, path, a string) bool {
	host, port, err := net.SplitHostPort(a)
	if err != nil {
		l.about(path, "%s must be host:port; %q is not", what, a)
		return false
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		l.about(path, "%s must have a port from 1 to 65535; %q has not", what, a)
		return false
	}
	if host == "" {
		l.about(path, "%s must name a host; write 0.0.0.0:%s for every address of this one", what, port)
		return false
	}
	return true
}

// advertised checks what others are told, explicit or taken from listen.
func (l *loader) advertised(path, a, listenPath, listen string) {
	if a != "" {
		if !l.address(path, path, a) {
			return
		}
		if host, _, _ := net.SplitHostPort(a); isUnspecified(host) {
			l.about(path, "%s must be an address that others can reach; %s is every address of its own host", path, a)
		}
		return
	}
	if host, _, err := net.SplitHostPort(listen); err == nil && isUnspecified(host) {
		l.about(listenPath, "%s is every address of this host (%s), so %s must say which one others should use", listenPath, listen, path)
	}
}

func isUnspecified(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsUnspecified()
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

func (l *loader) oneOf(path, v string, allowed ...string) {
	if !slices.Contains(allowed, v) {
		hint := ""
		if near := nearest(v, allowed); near != "" {
			hint = fmt.Sprintf("; did you mean %s?", near)
		}
		l.about(path, "%s must be one of %s; %q is not%s", path, strings.Join(allowed, ", "), v, hint)
	}
}

func (l *loader) limit(path string, v, most int) {
	if v < 1 || v > most {
		l.about(path, "%s must be 1 to %d; %d is not", path, most, v)
	}
}

func (l *loader) label(path, v string, emptyOK bool) {
	if v == "" && emptyOK {
		return
	}
	if v == "" {
		l.about(path, "%s is required: 1 to 64 letters, digits, dots, underscores and hyphens", path)
		return
	}
	ok := len(v) <= 64
	for _, r := range v {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
	}
	if !ok {
		l.about(path, "%s must be 1 to 64 letters, digits, dots, underscores and hyphens; %q is not", path, v)
	}
}

// relative takes a path that was written in the file as relative to the file,
// wherever the process was started.
func (l *loader) relative(path, v string) string {
	if v == "" || filepath.IsAbs(v) || l.lines[path] == 0 {
		return v
	}
	return filepath.Join(filepath.Dir(l.name), v)
}

// key finds the cluster's key.
func (l *loader) key() {
	c := &l.Config
	switch {
	case c.ClusterKey != "" && c.ClusterKeyFile != "":
		l.about("cluster_key", "cluster_key and cluster_key_file are both set; keep one")
	case c.ClusterKey != "":
		k, err := ParseKey(c.ClusterKey)
		if err != nil {
			l.about("cluster_key", "cluster_key %v", err)
		}
		l.Key = k
	case c.ClusterKeyFile != "":
		f, err := os.Open(c.ClusterKeyFile)
		if err != nil {
			l.about("cluster_key_file", "cluster_key_file can't be read: %v", err)
			return
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, 1<<10))
		if err != nil {
			l.about("cluster_key_file", "cluster_key_file can't be read: %v", err)
			return
		}
		if l.Key, err = ParseKey(strings.TrimSpace(string(b))); err != nil {
			l.about("cluster_key_file", "the key in %s %v", c.ClusterKeyFile, err)
		}
	default:
		l.about("cluster_key_file", "cluster_key_file is required (or MORTISE_CLUSTER_KEY): a file with 32 bytes in hexadecimal, "+
			"the same on every node; make one with: openssl rand -hex 32")
	}
}

// ParseKey reads a cluster key: 32 bytes as 64 hexadecimal digits or in base64.
// The error never contains the key.
func ParseKey(text string) ([]byte, error) {
	if b, err := hex.DecodeString(text); err == nil && len(b) == keyBytes {
		return b, nil
	}
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding, base64.RawURLEncoding} {
		if b, err := enc.DecodeString(text); err == nil && len(b) == keyBytes {
			return b, nil
		}
	}
	return nil, fmt.Errorf("must be %d bytes as %d hexadecimal digits or in base64; it has %d characters", keyBytes, 2*keyBytes, len(text))
}
