package mortise

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// maxServerFrame bounds a message from a gateway.
const maxServerFrame = 64 << 20

// pool has one connection per gateway, shared by sessions and unary calls. A
// connection that may be dead is replaced; its users leave it at their own
// time.
type pool struct {
	cfg   Config
	mu    sync.Mutex
	conns []*conn // by endpoint; nil: none
	over  bool
}

// conn is a counted connection; its fields are under pool.mu.
type conn struct {
	endpoint int
	cc       *grpc.ClientConn
	users    int
	stale    bool
}

func (p *pool) options() []grpc.DialOption {
	creds := insecure.NewCredentials()
	if p.cfg.TLS != nil {
		creds = credentials.NewTLS(p.cfg.TLS.Clone())
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 2 * time.Second,
			Backoff: backoff.Config{BaseDelay: 25 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithDisableServiceConfig(),
		// Lists of what a session has may be long.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxServerFrame)),
		grpc.WithDisableRetry(), // this package retries, and knows what is safe
	}
	if p.cfg.Credentials != nil {
		opts = append(opts, grpc.WithPerRPCCredentials(p.cfg.Credentials))
	}
	return append(opts, p.cfg.DialOptions...)
}

// get returns a connection to an endpoint; with fresh, one that nobody used
// before.
func (p *pool) get(endpoint int, fresh bool) (*conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return nil, ErrSessionEnded
	}
	c := p.conns[endpoint]
	if c != nil && fresh {
		c.stale = true
		p.closeIfUnused(c)
		c = nil
	}
	if c == nil {
		cc, err := grpc.NewClient("passthrough:///"+p.cfg.Endpoints[endpoint], p.options()...)
		if err != nil {
			return nil, err
		}
		c = &conn{endpoint: endpoint, cc: cc}
		p.conns[endpoint] = c
	}
	if c.cc.GetState() == connectivity.TransientFailure {
		c.cc.ResetConnectBackoff()
	}
	c.users++
	return c, nil
}

func (p *pool) put(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.users--
	p.closeIfUnused(c)
}

// closeIfUnused closes a stale connection that has no user; under mu.
func (p *pool) closeIfUnused(c *conn) {
	if c.users == 0 && (c.stale || p.over) {
		c.cc.Close()
	}
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	for _, c := range p.conns {
		if c != nil {
			p.closeIfUnused(c)
		}
	}
}
