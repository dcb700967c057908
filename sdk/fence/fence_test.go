package fence

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	mortise "github.com/mortise-lock/mortise/sdk"
)

func protected() error { return nil }

func write(ctx context.Context, tok mortise.Token) func(*sql.Tx) error {
	return func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO doc (id, token, n) VALUES ('d', $1, 1)
			ON CONFLICT (id) DO UPDATE SET token = excluded.token, n = doc.n + 1`, int64(tok))
		return err
	}
}

func TestStaleTokenIsRefused(t *testing.T) {
	stores(t, func(t *testing.T, db *sql.DB, table Table) {
		ctx := t.Context()
		run := func(tok mortise.Token) error { return table.run(ctx, db, "d", tok, protected, write(ctx, tok)) }
		for _, step := range []struct {
			tok   mortise.Token
			stale bool
		}{{10, false}, {10, false}, {9, true}, {11, false}, {10, true}, {1<<53 - 1, false}, {11, true}} {
			err := run(step.tok)
			if step.stale != errors.Is(err, ErrStale) || !step.stale && err != nil {
				t.Fatalf("token %d: stale should be %v, got %v", step.tok, step.stale, err)
			}
		}
		var tok, n int64
		if err := db.QueryRow("SELECT token, n FROM doc").Scan(&tok, &n); err != nil || tok != 1<<53-1 || n != 4 {
			t.Fatalf("the refused writes left a trace: token %d, n %d, %v", tok, n, err)
		}
		if err := table.run(ctx, db, "other", 1, protected, write(ctx, 1)); err != nil {
			t.Fatalf("resources are independent: %v", err)
		}
	})
}

func TestLostGrantDoesNotCommit(t *testing.T) {
	stores(t, func(t *testing.T, db *sql.DB, table Table) {
		ctx := t.Context()
		lost := &mortise.LostError{Name: "d", Token: 5, Reason: mortise.LostDeadline}
		calls := 0
		err := table.run(ctx, db, "d", 5, func() error {
			if calls++; calls > 1 {
				return lost
			}
			return nil
		}, write(ctx, 5))
		if !errors.Is(err, lost) {
			t.Fatalf("got %v", err)
		}
		var n int
		if err := db.QueryRow("SELECT (SELECT count(*) FROM doc) + (SELECT count(*) FROM mortise_fence)").Scan(&n); err != nil || n != 0 {
			t.Fatalf("something was committed: %d rows, %v", n, err)
		}
		if err := table.run(ctx, db, "d", 5, protected, func(*sql.Tx) error { return sql.ErrNoRows }); !errors.Is(err, sql.ErrNoRows) {
			t.Fatalf("fn's error was not passed through: %v", err)
		}
	})
}

// Writers whose tokens are drawn before their transactions begin, so that any
// of them may be stale by then, leave a history in which the token of accepted
// writes never falls.
func TestInterleavedWritersStayInOrder(t *testing.T) {
	const workers, each = 8, 25
	stores(t, func(t *testing.T, db *sql.DB, table Table) {
		ctx := t.Context()
		mustExec(t, db, "DROP TABLE IF EXISTS history")
		if table.Dialect == Postgres {
			mustExec(t, db, "CREATE TABLE history (n BIGSERIAL PRIMARY KEY, token BIGINT)")
		} else {
			mustExec(t, db, "CREATE TABLE history (n INTEGER PRIMARY KEY AUTOINCREMENT, token INTEGER)")
		}
		db.SetMaxOpenConns(workers)
		var next atomic.Int64
		var accepted, stale atomic.Int64
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for range each {
					tok := mortise.Token(next.Add(1))
					for range 2 { // each holder writes twice
						err := table.run(ctx, db, "d", tok, protected, func(tx *sql.Tx) error {
							_, err := tx.ExecContext(ctx, "INSERT INTO history (token) VALUES ($1)", int64(tok))
							return err
						})
						switch {
						case err == nil:
							accepted.Add(1)
						case errors.Is(err, ErrStale):
							stale.Add(1)
						default:
							t.Error(err)
							return
						}
					}
				}
			})
		}
		wg.Wait()
		rows, err := db.Query("SELECT token FROM history ORDER BY n")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		var last, n int64
		for rows.Next() {
			var tok int64
			if err := rows.Scan(&tok); err != nil {
				t.Fatal(err)
			}
			if tok < last {
				t.Fatalf("token %d was accepted after %d", tok, last)
			}
			last = tok
			n++
		}
		if n != accepted.Load() || n == 0 {
			t.Fatalf("%d rows, %d accepted", n, accepted.Load())
		}
		t.Logf("%d accepted, %d stale", n, stale.Load())
	})
}

// A stale holder that has checked and not yet committed holds the fresh one
// back: the fresh write comes after.
func TestFreshHolderWaitsForCheckedOne(t *testing.T) {
	stores(t, func(t *testing.T, db *sql.DB, table Table) {
		ctx := t.Context()
		old, err := db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer old.Rollback()
		if err := table.Check(ctx, old, "d", 1); err != nil {
			t.Fatal(err)
		}
		began := make(chan struct{})
		fresh := make(chan error, 1)
		var committed atomic.Bool
		go func() {
			close(began)
			fresh <- table.run(ctx, db, "d", 2, protected, func(*sql.Tx) error {
				if !committed.Load() {
					return errors.New("admitted while the older one was in its transaction")
				}
				return nil
			})
		}()
		<-began
		committed.Store(true)
		if err := old.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := <-fresh; err != nil {
			t.Fatal(err)
		}
		if err := table.run(ctx, db, "d", 1, protected, func(*sql.Tx) error { return nil }); !errors.Is(err, ErrStale) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestRules(t *testing.T) {
	for _, name := range []string{"a b", "x;DROP TABLE y", "a.b.c", ".a", "a.", "1a", "a.1", `"a"`, strings.Repeat("a", 128)} {
		if _, err := (Table{Name: name, Dialect: Postgres}).name(); err == nil {
			t.Errorf("name %q was taken", name)
		}
	}
	for _, name := range []string{"", "mortise_fence", "app.fence2"} {
		if _, err := (Table{Name: name, Dialect: SQLite}).name(); err != nil {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if _, err := (Table{}).name(); err == nil {
		t.Error("a table without a dialect was taken")
	}
	if got := Where(Postgres, "fence_token", 3); got != "fence_token <= $3" {
		t.Error(got)
	}
	if got := Where(SQLite, "fence_token", 1); got != "fence_token <= ?1" {
		t.Error(got)
	}
	for _, tok := range []mortise.Token{0, -1} {
		if err := (Table{Dialect: SQLite}).Check(t.Context(), nil, "d", tok); err == nil {
			t.Errorf("token %d was taken", tok)
		}
	}
}
