package config

// Modes of a process.
const (
	// ModeNode hosts replicas.
	ModeNode = "node"
	// ModeGateway serves clients only.
	ModeGateway = "gateway"
)

// Config is everything a server can be told. The comments below are the
// reference page. A setting tagged reload:"true" takes a new value while the
// process runs.
type Config struct {
	// What this process is: `node` hosts replicas, and serves clients too unless
	// `gateway.enabled` is false; `gateway` serves clients only and finds the
	// cluster by `gateway.seeds`.
	Mode string `yaml:"mode"`

	// The node's name, unique in the cluster, and the same at every start. 1 to
	// 64 letters, digits, dots, underscores and hyphens. Required for a node.
	Name string `yaml:"name"`

	// The folder for logs, snapshots and the node's identity. Made if it is not
	// there; in the file, relative to the file. One process at a time may use it.
	// In mode `gateway` there is no default: if it is set, the last copy of the
	// placement map is kept there.
	DataDir string `yaml:"data_dir"`

	// A file that the process id is written to at the start; in the file,
	// relative to the file. Unset: none.
	PIDFile string `yaml:"pid_file"`

	// A file with the cluster's key: 32 bytes, written as 64 hexadecimal digits
	// or in base64 (`openssl rand -hex 32`). The same key on every node and
	// gateway: it encrypts gossip and signs session strings. In the file, relative
	// to the file. Either this or `cluster_key` is required.
	ClusterKeyFile string `yaml:"cluster_key_file"`

	// The cluster's key itself. Meant for the environment variable; a file is
	// safer than a key in this file.
	ClusterKey string `yaml:"cluster_key"`

	// The region in which this node runs.
	Region string `yaml:"region"`

	// The zone (failure domain) within the region. Set it on all nodes of a
	// region or on none. Replicas are spread over zones such that any one zone
	// can be lost; that takes three of them.
	Zone string `yaml:"zone"`

	// Where nodes and gateways reach this node: its internal gRPC listener,
	// host:port. Clients do not connect here.
	Listen string `yaml:"listen"`

	// What others are told to connect to instead of `listen`, host:port. Needed
	// when `listen` is every address of the host, such as 0.0.0.0:7422. Unset:
	// `listen`.
	Advertise string `yaml:"advertise"`

	// How nodes find one another. Nothing that safety needs depends on it.
	Gossip Gossip `yaml:"gossip"`

	// The part that serves clients.
	Gateway Gateway `yaml:"gateway"`

	// An extra HTTP listener, host:port, for /metrics, /livez and /readyz alone.
	// With a gateway these are on `gateway.http` too. Unset: none.
	MetricsListen string `yaml:"metrics_listen"`

	// Allows listeners beyond loopback although their traffic is not encrypted
	// and clients are not authenticated. Anybody who reaches such a port can take
	// and release every lock.
	Insecure bool `yaml:"insecure"`

	// The smallest token of a cluster that is initialised through this node; at
	// most 2^52. Unset or 0: seconds since 1970 times 2^20. Set it when a lost
	// cluster is built anew on a host whose clock can't be trusted: tokens must
	// be larger than all that were ever issued.
	TokenFloor uint64 `yaml:"token_floor"`

	// Log lines, on standard error.
	Log Log `yaml:"log"`

	// Bounds on what clients may use. A gateway over a bound refuses with
	// RESOURCE_EXHAUSTED and a delay.
	Limits Limits `yaml:"limits"`
}

// Gossip is how nodes find one another.
type Gossip struct {
	// host:port, over both TCP and UDP.
	Listen string `yaml:"listen"`

	// What others are told to connect to instead of `gossip.listen`, host:port.
	// Unset: `gossip.listen`.
	Advertise string `yaml:"advertise"`

	// Gossip addresses, host:port, of nodes to join. Its own may be among them,
	// so that all nodes can have the same list. In an environment variable:
	// separated by commas.
	Join []string `yaml:"join"`
}

// Gateway serves clients.
type Gateway struct {
	// Whether this node serves clients itself.
	Enabled bool `yaml:"enabled"`

	// gRPC for clients, host:port.
	GRPC string `yaml:"grpc"`

	// HTTP/JSON, /metrics, /livez and /readyz, host:port. Empty: none.
	HTTP string `yaml:"http"`

	// Mode `gateway` only: internal addresses (`listen` or `advertise`) of some
	// nodes, from which it learns all others.
	Seeds []string `yaml:"seeds"`
}

// Log is about log lines.
type Log struct {
	// `debug`, `info`, `warn` or `error`.
	Level string `yaml:"level" reload:"true"`

	// `text` or `json`.
	Format string `yaml:"format"`
}

// Limits are bounds on what clients may use at one gateway.
type Limits struct {
	// Session streams open at once. 1 to 1,000,000.
	Streams int `yaml:"streams"`

	// Unanswered operations of one session stream, waits included. 1 to
	// 1,000,000.
	StreamOps int `yaml:"stream_ops"`

	// Unary and HTTP calls in progress. 1 to 1,000,000.
	Calls int `yaml:"calls"`

	// Sessions of unary callers that are remembered. 1 to 10,000,000.
	UnarySessions int `yaml:"unary_sessions"`
}

// Default returns what holds where nothing is said.
func Default() Config {
	return Config{
		Mode:    ModeNode,
		DataDir: "/var/lib/mortise",
		Region:  "main",
		Listen:  "127.0.0.1:7422",
		Gossip:  Gossip{Listen: "127.0.0.1:7423"},
		Gateway: Gateway{Enabled: true, GRPC: "127.0.0.1:7420", HTTP: "127.0.0.1:7421"},
		Log:     Log{Level: "info", Format: "text"},
		Limits:  Limits{Streams: 20_000, StreamOps: 65_536, Calls: 20_000, UnarySessions: 100_000},
	}
}
