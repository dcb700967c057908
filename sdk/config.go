package mortise

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// Bounds and defaults.
const (
	DefaultSessionTTL = 10 * time.Second
	MinSessionTTL     = time.Second
	MaxSessionTTL     = 10 * time.Minute
	// MaxNameBytes bounds a name together with its namespace.
	MaxNameBytes = 512
	// MaxOwnerBytes bounds Config.Owner.
	MaxOwnerBytes = 256
	// DefaultDriftPPM covers two clocks that are each 1% off, and a little.
	DefaultDriftPPM = 21_000
	// MaxPermits bounds Permits.Of.
	MaxPermits = 1 << 20
)

// Config says how to reach the service and as whom.
type Config struct {
	// Endpoints are gateways, host:port; at least one. When one fails the
	// next is tried, and sessions go on there.
	Endpoints []string
	// Namespace is put in front of every name, with a slash between.
	Namespace string
	// Owner is shown to operators and to those who wait: 1 to 256 bytes.
	// Default: host/pid.
	Owner string
	// TLS of the connections. Nil: none, unless DialOptions say otherwise.
	TLS *tls.Config
	// Credentials are sent with every call.
	Credentials credentials.PerRPCCredentials
	// SessionTTL is how long locks outlive a client that died: 1 s to 10 min,
	// default 10 s. Renewals go out every third of it.
	SessionTTL time.Duration
	// DriftPPM is the clock-rate margin of deadlines, in millionths of the
	// TTL: 0 (default, 21,000) to 200,000.
	DriftPPM int
	// Retry bounds the delays between attempts.
	Retry RetryPolicy
	// Logger gets one record per state change. Default: none.
	Logger *slog.Logger
	// DialOptions are added to each connection's.
	DialOptions []grpc.DialOption

	clock func() time.Duration // tests
}

// RetryPolicy says how long to wait before asking again for what was refused
// with UNAVAILABLE or RESOURCE_EXHAUSTED. The service's own delay goes first.
// Attempts end with the caller's context.
type RetryPolicy struct {
	Base time.Duration // first delay, jittered, doubled each time; default 25 ms
	Max  time.Duration // longest delay; default 2 s
}

// WithDefaults fills in what is unset.
func (c Config) WithDefaults() Config {
	if c.Owner == "" {
		host, err := os.Hostname()
		if err != nil || host == "" {
			host = "unknown"
		}
		if len(host) > MaxOwnerBytes/2 {
			host = host[:MaxOwnerBytes/2]
		}
		c.Owner = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	if c.SessionTTL == 0 {
		c.SessionTTL = DefaultSessionTTL
	}
	if c.DriftPPM == 0 {
		c.DriftPPM = DefaultDriftPPM
	}
	if c.Retry.Base == 0 {
		c.Retry.Base = 25 * time.Millisecond
	}
	if c.Retry.Max == 0 {
		c.Retry.Max = max(2*time.Second, c.Retry.Base)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.clock == nil {
		c.clock = bootClock
	}
	return c
}

// Validate reports every problem at once. It expects WithDefaults.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.Endpoints) == 0 {
		bad("Endpoints must name at least one gateway as host:port")
	}
	for i, e := range c.Endpoints {
		if host, port, err := net.SplitHostPort(e); err != nil || host == "" || port == "" {
			bad("Endpoints[%d] must be host:port (is %q)", i, e)
		}
	}
	if c.Namespace != "" {
		if err := checkText(c.Namespace, MaxNameBytes-2); err != nil {
			bad("Namespace %v", err)
		}
	}
	if err := checkText(c.Owner, MaxOwnerBytes); err != nil {
		bad("Owner %v", err)
	}
	if c.SessionTTL < MinSessionTTL || c.SessionTTL > MaxSessionTTL {
		bad("SessionTTL must be %v to %v (is %v)", MinSessionTTL, MaxSessionTTL, c.SessionTTL)
	}
	if c.DriftPPM < 0 || c.DriftPPM > 200_000 {
		bad("DriftPPM must be 0 to 200000 (is %d)", c.DriftPPM)
	}
	if c.Retry.Base < 0 || c.Retry.Max < c.Retry.Base {
		bad("Retry must have 0 <= Base <= Max (is %v, %v)", c.Retry.Base, c.Retry.Max)
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: config: %w", ErrInvalid, errors.Join(errs...))
}

// checkText says what is wrong with a text that must have 1 to max bytes of
// UTF-8 without control characters.
func checkText(s string, max int) error {
	switch {
	case s == "":
		return errors.New("must not be empty")
	case len(s) > max:
		return fmt.Errorf("must have at most %d bytes (has %d)", max, len(s))
	case !utf8.ValidString(s):
		return errors.New("must be UTF-8")
	case strings.ContainsFunc(s, unicode.IsControl):
		return errors.New("must not contain control characters")
	}
	return nil
}
