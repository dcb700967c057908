package fence

import (
	"database/sql"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"
)

// postgresBin finds initdb and postgres, of the newest version installed.
func postgresBin(t *testing.T) string {
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.Sort(dirs)
	slices.Reverse(dirs)
	for _, d := range append(dirs, "/usr/local/bin", "/usr/bin") {
		_, err1 := os.Stat(filepath.Join(d, "initdb"))
		_, err2 := os.Stat(filepath.Join(d, "postgres"))
		if err1 == nil && err2 == nil {
			return d
		}
	}
	t.Fatal("PostgreSQL's initdb and postgres were not found; install Debian's package postgresql (apt-get install postgresql)")
	return ""
}

var pg struct {
	once sync.Once
	dir  string
	port int
	cmd  *exec.Cmd
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if pg.cmd != nil {
		pg.cmd.Process.Signal(syscall.SIGINT) // fast shutdown
		pg.cmd.Wait()
	}
	if pg.dir != "" {
		os.RemoveAll(pg.dir)
	}
	os.Exit(code)
}

// startPostgres runs a private server in a temporary directory, on a free port
// of loopback, as a user that is not root: the server refuses root.
func startPostgres(bin string) (err error) {
	if pg.dir, err = os.MkdirTemp("", "fence-pg-"); err != nil {
		return err
	}
	attr := &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			if u, err = user.Lookup("nobody"); err != nil {
				return fmt.Errorf("neither user postgres nor nobody exists: %w", err)
			}
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(pg.dir, uid, gid); err != nil {
			return err
		}
	}
	data := filepath.Join(pg.dir, "data")
	init := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "fence", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
	init.SysProcAttr, init.Dir = attr, pg.dir
	if out, err := init.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	pg.port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	log, err := os.Create(filepath.Join(pg.dir, "log"))
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-p", strconv.Itoa(pg.port), "-k", pg.dir,
		"-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_connections=40")
	cmd.SysProcAttr, cmd.Dir, cmd.Stdout, cmd.Stderr = attr, pg.dir, log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	pg.cmd = cmd
	// pg_isready waits for us, one attempt per call.
	for range 200 {
		ready := exec.Command(filepath.Join(bin, "pg_isready"), "-h", "127.0.0.1", "-p", strconv.Itoa(pg.port), "-t", "1")
		if ready.Run() == nil {
			return nil
		}
		db, err := sql.Open("pgx", pgURL())
		if err == nil {
			err = db.Ping()
			db.Close()
			if err == nil {
				return nil
			}
		}
	}
	text, _ := os.ReadFile(log.Name())
	return fmt.Errorf("the server did not begin to answer: %s", text)
}

func pgURL() string {
	return fmt.Sprintf("postgres://fence@127.0.0.1:%d/postgres?sslmode=disable", pg.port)
}

// stores runs a test on each of the real databases, each with fresh tables.
func stores(t *testing.T, test func(t *testing.T, db *sql.DB, table Table)) {
	t.Run("PostgreSQL", func(t *testing.T) {
		bin := postgresBin(t)
		pg.once.Do(func() { pg.err = startPostgres(bin) })
		if pg.err != nil {
			t.Fatal(pg.err)
		}
		db, err := sql.Open("pgx", pgURL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		for _, s := range []string{"DROP TABLE IF EXISTS mortise_fence", "DROP TABLE IF EXISTS doc", "CREATE TABLE doc (id TEXT PRIMARY KEY, token BIGINT, n BIGINT)"} {
			mustExec(t, db, s)
		}
		table := Table{Dialect: Postgres}
		mustExec(t, db, table.DDL())
		mustExec(t, db, table.DDL())
		test(t, db, table)
	})
	t.Run("SQLite", func(t *testing.T) {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "f.db")+"?_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_txlock=immediate")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		mustExec(t, db, "CREATE TABLE doc (id TEXT PRIMARY KEY, token INTEGER, n INTEGER)")
		table := Table{Dialect: SQLite}
		mustExec(t, db, table.DDL())
		mustExec(t, db, table.DDL())
		test(t, db, table)
	})
}

func mustExec(t *testing.T, db *sql.DB, stmt string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), stmt, args...); err != nil {
		t.Fatalf("%s: %v", stmt, err)
	}
}
