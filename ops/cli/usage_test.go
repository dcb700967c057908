package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
)

// said is what a command line gave.
type said struct {
	out, errs string
	err       *Error
}

// run carries out a command line with an empty standard input.
func run(t *testing.T, environ []string, args ...string) said {
	t.Helper()
	in, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var out, errs bytes.Buffer
	err = Run(context.Background(), &Env{In: in, Out: &out, Err: &errs, Environ: environ}, args)
	s := said{out: out.String(), errs: errs.String()}
	if err != nil && !errors.As(err, &s.err) {
		t.Fatalf("%v: the error has no kind: %v", args, err)
	}
	return s
}

// What is wrong with a command line is said with what to type instead, before
// anything was asked or started.
func TestWrongUsage(t *testing.T) {
	for _, c := range []struct {
		line string
		want string // part of the message
		next string // part of what to try
	}{
		{"lok", `mortise has no command "lok"`, "mortise lock"},
		{"nod ls", `no command "nod"`, "mortise node"},
		{"lock rum x -- true", `mortise lock has no command "rum"`, "mortise lock run"},
		{"lock shwo x", `no command "shwo"`, "mortise lock show"},
		{"server ceck-config", `no command "ceck-config"`, "mortise server check-config"},
		{"frobnicate", `no command "frobnicate"`, "mortise --help"},
		{"shard frobnicate", `no command "frobnicate"`, "mortise shard --help"},
		{"lock show --frob x", "unknown flag: --frob", "mortise lock show --help"},

		{"lock run", "one name, then --", "mortise lock run NAME -- COMMAND"},
		{"lock run x", "one name, then --", "mortise lock run NAME -- COMMAND"},
		{"lock run x true", "one name, then --", "mortise lock run NAME -- COMMAND"},
		{"lock run x y -- true", "one name, then --", "mortise lock run NAME -- COMMAND"},
		{"lock run -- true", "one name, then --", "mortise lock run NAME -- COMMAND"},
		{"lock run x --", "one name, then --", "mortise lock run NAME -- COMMAND"},
		{"lock hold", "takes one name", "mortise lock hold --help"},
		{"lock show", "takes one name", "mortise lock show --help"},
		{"lock show a b", "it got 2 arguments", "mortise lock show --help"},
		{"lock ls a b", "at most one prefix", "mortise lock ls PREFIX"},
		{"lock watch", "takes one name", "mortise lock watch --help"},
		{"session revoke --reason x", "one session id", "mortise session revoke --help"},
		{"cluster status now", "takes no argument", "mortise cluster status --help"},
		{"dev now", "takes no argument", "mortise dev --help"},
		{"version now", "takes no argument", "mortise version --help"},

		{"lock run --timeout 5 x -- true", "--timeout", "mortise lock run --help"},
		{"lock run --timeout soon x -- true", "--timeout", "mortise lock run --help"},
		{"lock run --timeout -1s x -- true", "--timeout must be 0 or more; -1s is not", "--timeout 30s"},
		{"lock run --ttl 500ms x -- true", "--ttl must be 1s to 10m; 500ms is not", "--ttl 10s"},
		{"lock run --ttl 11m x -- true", "--ttl must be 1s to 10m; 11m0s is not", "--ttl 10s"},
		{"lock run --ttl 0 x -- true", "--ttl must be 1s to 10m", "--ttl 10s"},
		{"lock run --grace -1s x -- true", "--grace must be 0 or more and below --ttl", "--grace 2s"},
		{"lock run --grace 10s x -- true", "below --ttl (10s); 10s is not", "--grace 2s"},
		{"lock run --max-hold -1s x -- true", "--max-hold must be 0 or more", "--max-hold 1h"},
		{"lock run --lock-delay -1s x -- true", "--lock-delay must be 0 or more; -1s is not", "--lock-delay 5s"},
		{"lock hold --lock-delay -1s x", "--lock-delay must be 0 or more; -1s is not", "--lock-delay 5s"},
		{"lock run --try --timeout 1s x -- true", "--try does not wait", "--timeout 1s"},
		{"lock run -E 256 x -- true", "-E must be 0 to 255; 256 is not", "-E 75"},
		{"lock run -E busy x -- true", "-E", "mortise lock run --help"},
		{"lock run --permits 2 x -- true", "TAKE/OF", "--permits 2/10"},
		{"lock run --permits 3/2 x -- true", "1 <= TAKE <= OF", "--permits 2/10"},
		{"lock run --permits 0/2 x -- true", "1 <= TAKE <= OF", "--permits 2/10"},
		{"lock run --permits 1/10 --shared x -- true", "exclude each other", "--shared"},
		{"lock watch --interval 1ms x", "--interval must be 100ms or more; 1ms is not", "--interval 500ms"},
		{"lock ls --limit 0", "--limit must be 1 or more; 0 is not", "--limit 1000"},
		{"lock ls --request-timeout 5", "--request-timeout", "mortise lock ls --help"},
		{"lock ls --request-timeout 0s", "--request-timeout must be more than 0; 0s is not", "--request-timeout 10s"},
		{"lock show --request-timeout -1s x", "--request-timeout must be more than 0; -1s is not", "--request-timeout 10s"},
		{"server init --request-timeout 0s", "--request-timeout must be more than 0; 0s is not", "--request-timeout 10s"},
		{"lock ls -o yaml", `-o must be table or json; "yaml" is neither`, "-o json"},
		{"version -o xml", `-o must be table or json; "xml" is neither`, "-o json"},
		{"session ls --limit 0", "--limit must be 1 to 10000; 0 is not", "--limit 1000"},
		{"session ls --limit 10001", "--limit must be 1 to 10000; 10001 is not", "--limit 1000"},

		{"lock ls --endpoints localhost", `--endpoints must be host:port, separated by commas; "localhost" is not`, "--endpoints 127.0.0.1:7420"},
		{"lock ls --endpoints 127.0.0.1:7420,:1", `":1" is not`, "--endpoints 127.0.0.1:7420"},
		{"lock ls --endpoints h:99999", `"h:99999" is not`, "--endpoints 127.0.0.1:7420"},
		{"lock release x", "takes --force", "mortise lock release --force --reason TEXT x"},
		{"lock release --force x", "--reason is required", "mortise lock release --force --reason TEXT x"},
		{"session revoke 7f", "--reason is required", "mortise session revoke --reason TEXT 7f"},
		{"session revoke --reason why 7f", "no terminal to ask at", "--yes"},
		{"server init", "no terminal to ask at", "--yes"},
		{"server init --nodes three", "--nodes", "mortise server init --help"},
		{"shard transfer-leader --to n2", "takes one shard id", "mortise shard transfer-leader --help"},
		{"shard transfer-leader three --to n2", `the shard must be a number; "three" is not`, "mortise shard ls"},
		{"shard transfer-leader 3", "--to is required", "mortise shard transfer-leader 3 --to NODE"},
		{"dev --nodes 0", "--nodes must be 1, or 3 to 64; 0 is not", "mortise dev --nodes 3"},
		{"dev --nodes 2", "--nodes must be 1, or 3 to 64; 2 is not", "mortise dev --nodes 3"},
		{"dev --shards 0", "--shards must be 1 to 4096; 0 is not", "mortise dev --shards 16"},
		{"dev --regions eu,us", "one region is supported so far, 2 are named", "mortise dev --regions eu"},
		{"dev --grpc here", `--grpc must be host:port; "here" is not`, "mortise dev --grpc"},
		{"dev --http 7421", `--http must be host:port; "7421" is not`, "mortise dev --http"},
	} {
		t.Run(c.line, func(t *testing.T) {
			s := run(t, nil, strings.Fields(c.line)...)
			switch {
			case s.err == nil:
				t.Fatalf("no error; it printed %q", s.out)
			case s.err.Kind != Usage:
				t.Errorf("kind %d: %v", s.err.Kind, s.err)
			case !strings.Contains(s.err.Err.Error(), c.want) || !strings.Contains(s.err.Next, c.next):
				t.Errorf("got %v\nwant %q, and to try %q", s.err, c.want, c.next)
			}
			if s.out != "" {
				t.Errorf("on standard output, which is for answers: %q", s.out)
			}
		})
	}
}

func TestEndpointsVariableIsChecked(t *testing.T) {
	s := run(t, []string{"MORTISE_ENDPOINTS=somewhere"}, "lock", "ls")
	if s.err == nil || s.err.Kind != Usage || !strings.Contains(s.err.Error(), "MORTISE_ENDPOINTS") || !strings.Contains(s.err.Error(), "somewhere") {
		t.Errorf("got %v", s.err)
	}
}

// Errors beyond the command line have a kind of their own each, by which the
// main program chooses the exit code.
func TestKindsOfFailure(t *testing.T) {
	nowhere := []string{"MORTISE_ENDPOINTS=127.0.0.1:1"}
	for line, want := range map[string]Kind{
		"lock run x -- /no/such/command":                                          NoCommand,
		"lock run x -- mortise-no-such-command":                                   NoCommand,
		"lock run x -- /etc/passwd":                                               CantExecute,
		"lock run --timeout 300ms x -- true":                                      Unreachable,
		"lock show --request-timeout 300ms x":                                     Unreachable,
		"cluster status --request-timeout 300ms":                                  Unreachable,
		"session revoke --yes --reason x --request-timeout 300ms 7f":              Unreachable,
		"server check-config --set mode=nod":                                      BadConfig,
		"server check-config --set frob=1":                                        BadConfig,
		"server check-config --config /no/such/file.yaml":                         BadConfig,
		"server run --set mode=nod":                                               BadConfig,
		"shard transfer-leader --yes --request-timeout 300ms 3 --to some-node":    Unreachable,
		"lock release --force --reason x --yes --request-timeout 300ms invoice/7": Unreachable,
	} {
		s := run(t, nowhere, strings.Fields(line)...)
		if s.err == nil || s.err.Kind != want {
			t.Errorf("%s: got %v, want kind %d", line, s.err, want)
		} else if want == Unreachable && s.err.Next == "" {
			t.Errorf("%s: nothing to try next: %v", line, s.err)
		}
	}
}
