// Demo plays the story of the frozen holder with real processes: worker A takes
// a lock and is frozen in the middle of a payment, worker B gets the lock and
// pays, A wakes up. A's grant reports its loss at once; and a write that did
// not look is refused by the fence in the database.
//
//	go run ./ops/demo                              # SQLite, a frozen time of 25 s
//	go run ./ops/demo --postgres postgres://…      # the same over PostgreSQL
//
// It exits with 0 only if everything went as told.
package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/mortise-lock/mortise/ops/loopback"
	mortise "github.com/mortise-lock/mortise/sdk"
	"github.com/mortise-lock/mortise/sdk/fence"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"
)

const invoice = "invoice/INV-55102"

type settings struct {
	binary   string
	ttl      time.Duration
	freeze   time.Duration
	postgres string
	// endpoint and database are set for worker A, which is this program again.
	endpoint, database string
}

func main() {
	var s settings
	flag.StringVar(&s.binary, "binary", os.Getenv("MORTISE_BIN"), "the mortise program; default: $MORTISE_BIN, else bin/mortise")
	flag.DurationVar(&s.ttl, "ttl", 10*time.Second, "TTL of the workers' sessions")
	flag.DurationVar(&s.freeze, "freeze", 25*time.Second, "how long worker A stands still; longer than the TTL")
	flag.StringVar(&s.postgres, "postgres", "", "PostgreSQL connection string; default: SQLite in a temporary file")
	flag.StringVar(&s.endpoint, "worker-endpoint", "", "for internal use: run as worker A")
	flag.StringVar(&s.database, "worker-database", "", "for internal use")
	flag.Parse()
	if s.binary == "" {
		s.binary = "bin/mortise"
	}
	role := play
	if s.endpoint != "" {
		role = workerA
	}
	if err := role(s); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// say prints a line of the story.
func say(who, format string, args ...any) {
	fmt.Printf("%s  %-8s %s\n", time.Now().Format("15:04:05.000"), who, fmt.Sprintf(format, args...))
}

func play(s settings) error {
	if s.freeze < s.ttl+time.Second {
		return fmt.Errorf("freeze (%v) must be longer than the TTL (%v) by a second", s.freeze, s.ttl)
	}
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "mortise-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	endpoint, stop, err := startCluster(s.binary, dir)
	if err != nil {
		return err
	}
	defer stop()
	s.database = filepath.Join(dir, "payments.db")
	st, err := openStore(s)
	if err != nil {
		return err
	}
	defer st.db.Close()
	if err := st.create(ctx); err != nil {
		return err
	}

	say("story", "a cluster of three nodes runs; the store is %s", st.name)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	a := exec.Command(self, "--worker-endpoint", endpoint, "--worker-database", s.database, "--postgres", s.postgres, "--ttl", s.ttl.String())
	a.Stderr = os.Stderr
	out, err := a.StdoutPipe()
	if err != nil {
		return err
	}
	if err := a.Start(); err != nil {
		return err
	}
	defer func() {
		_ = a.Process.Kill() // it has ended, unless something went wrong
		_ = a.Wait()
	}()
	lines := bufio.NewReader(out)
	if err := echoUntil(lines, "about to write"); err != nil {
		return err
	}
	if err := a.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	frozen := time.Now()
	say("story", "worker A is frozen (SIGSTOP) in the middle of its payment")

	if err := workerB(ctx, endpoint, st, s.ttl, frozen); err != nil {
		return fmt.Errorf("worker B: %w", err)
	}
	say("story", "worker A stays frozen for %v in all", s.freeze)
	time.Sleep(time.Until(frozen.Add(s.freeze)))
	if err := a.Process.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	say("story", "worker A wakes up (SIGCONT)")
	if err := echoUntil(lines, ""); err != nil {
		return err
	}
	if err := a.Wait(); err != nil {
		return fmt.Errorf("worker A: %w", err)
	}
	paid, err := st.payments(ctx)
	if err != nil {
		return err
	}
	say("story", "payments in the store: %s", strings.Join(paid, ", "))
	if len(paid) != 1 || !strings.HasPrefix(paid[0], "B ") {
		return errors.New("the invoice must have been paid once, by B")
	}
	say("story", "paid once, by B. Without the fence, A's write would have been a second payment")
	return nil
}

// workerB waits for the lock and pays.
func workerB(ctx context.Context, endpoint string, st *store, ttl time.Duration, frozen time.Time) error {
	client, err := mortise.Open(ctx, mortise.Config{Endpoints: []string{endpoint}, Owner: "worker-B", SessionTTL: ttl})
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	say("B", "waits for %s", invoice)
	wait, cancel := context.WithTimeout(ctx, 2*ttl+10*time.Second)
	defer cancel()
	g, err := client.Lock(wait, invoice)
	if err != nil {
		return err
	}
	say("B", "holds it with token %d, %v after A froze (TTL %v)", g.Token(), time.Since(frozen).Round(time.Millisecond), ttl)
	if err := st.fence.Tx(ctx, st.db, g, func(tx *sql.Tx) error { return st.pay(ctx, tx, "B", g.Token()) }); err != nil {
		return err
	}
	say("B", "paid, and the store remembers its token")
	return g.Release(ctx)
}

// workerA takes the lock and tries to pay, twice: it is frozen just before.
func workerA(s settings) error {
	ctx := context.Background()
	st, err := openStore(s)
	if err != nil {
		return err
	}
	defer st.db.Close()
	client, err := mortise.Open(ctx, mortise.Config{Endpoints: []string{s.endpoint}, Owner: "worker-A", SessionTTL: s.ttl})
	if err != nil {
		return err
	}
	g, err := client.Lock(ctx, invoice)
	if err != nil {
		return err
	}
	say("A", "holds %s with token %d", invoice, g.Token())
	say("A", "is about to write")
	// The freeze falls into this sleep, as it might into a garbage collection or
	// a page fault. Small steps, so that it goes on right after the wake-up.
	for began := time.Now(); time.Since(began) < time.Second; {
		time.Sleep(time.Millisecond)
	}
	err = g.Err()
	say("A", "asks its grant: %v", err)
	var lost *mortise.LostError
	if !errors.As(err, &lost) {
		return errors.New("the grant did not report its loss")
	}
	if g.Context().Err() == nil {
		return errors.New("the grant's context has not ended")
	}
	// What a program does that does not ask: it writes with its old token.
	tx, err := st.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	err = st.fence.Check(ctx, tx, invoice, g.Token())
	if !errors.Is(err, fence.ErrStale) {
		return fmt.Errorf("the fence let the frozen holder's write through (%v)", err)
	}
	say("A", "writes all the same; the store refuses: %v", err)
	return nil
}

// store is the database with the payments and the fence.
type store struct {
	name  string
	db    *sql.DB
	fence fence.Table
}

func openStore(s settings) (*store, error) {
	if s.postgres != "" {
		db, err := sql.Open("pgx", s.postgres)
		return &store{"PostgreSQL", db, fence.Table{Name: "mortise_demo_fence", Dialect: fence.Postgres}}, err
	}
	db, err := sql.Open("sqlite", "file:"+s.database+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	return &store{"SQLite", db, fence.Table{Name: "mortise_demo_fence", Dialect: fence.SQLite}}, err
}

func (st *store) create(ctx context.Context) error {
	for _, stmt := range []string{
		st.fence.DDL(),
		"DROP TABLE IF EXISTS mortise_demo_payments",
		"CREATE TABLE mortise_demo_payments (invoice TEXT, paid_by TEXT, token BIGINT)",
	} {
		if _, err := st.db.ExecContext(ctx, stmt); err != nil {
			return fmt.Errorf("%s: %w", st.name, err)
		}
	}
	return nil
}

func (st *store) pay(ctx context.Context, tx *sql.Tx, who string, token mortise.Token) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO mortise_demo_payments (invoice, paid_by, token) VALUES ($1, $2, $3)", invoice, who, int64(token))
	return err
}

func (st *store) payments(ctx context.Context) ([]string, error) {
	rows, err := st.db.QueryContext(ctx, "SELECT paid_by, token FROM mortise_demo_payments")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var who string
		var token int64
		if err := rows.Scan(&who, &token); err != nil {
			return nil, err
		}
		out = append(out, fmt.Sprintf("%s with token %d", who, token))
	}
	return out, rows.Err()
}

// isReady matches the line that `mortise dev` prints when it serves.
var isReady = regexp.MustCompile(`\bready\b`)

// startCluster runs `mortise dev` and waits until it is ready.
func startCluster(binary, dir string) (endpoint string, stop func(), err error) {
	endpoint, err = freeAddr()
	if err != nil {
		return "", nil, err
	}
	http, err := freeAddr()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(binary, "dev", "--data", filepath.Join(dir, "data"), "--grpc", endpoint, "--http", http)
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("%w (build it with `make build`)", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its output says why
		w.Close()
		close(ended)
	}()
	stop = func() {
		_ = cmd.Process.Kill() // by its own process id; it may have ended
		<-ended
	}
	ready := make(chan error, 1)
	go func() {
		var said strings.Builder
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			fmt.Fprintln(&said, lines.Text())
			if isReady.MatchString(lines.Text()) {
				ready <- nil
				_, _ = io.Copy(io.Discard, r) // so that it is never blocked
				return
			}
		}
		ready <- fmt.Errorf("mortise dev ended: %s", said.String())
	}()
	select {
	case err = <-ready:
	case <-time.After(time.Minute):
		err = errors.New("mortise dev was not ready within a minute")
	}
	if err != nil {
		stop()
		return "", nil, err
	}
	return endpoint, stop, nil
}

func freeAddr() (string, error) {
	a, err := loopback.Addrs(1)
	if err != nil {
		return "", err
	}
	return a[0], nil
}

// echoUntil prints lines until one contains text; with no text, to the end.
func echoUntil(lines *bufio.Reader, text string) error {
	for {
		line, err := lines.ReadString('\n')
		fmt.Print(line)
		switch {
		case text != "" && strings.Contains(line, text):
			return nil
		case errors.Is(err, io.EOF) && text == "":
			return nil
		case err != nil:
			return fmt.Errorf("worker A ended before it said %q: %w", text, err)
		}
	}
}
