package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	mortise "github.com/mortise-lock/mortise/sdk"
)

// DefaultName is the table's name where Table.Name is empty.
const DefaultName = "mortise_fence"

// MaxResourceBytes bounds a resource's name.
const MaxResourceBytes = 1024

// ErrStale: the token is smaller than one that the resource has seen. A later
// holder was here; the transaction must not commit.
var ErrStale = errors.New("fence: stale token")

// StaleError says what was refused. errors.Is(err, ErrStale) holds for it.
type StaleError struct {
	Resource string
	Token    mortise.Token
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("fence: stale token %d for %q: a later holder was here", e.Token, e.Resource)
}

// Unwrap returns ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }

// Dialect of SQL.
type Dialect int

// Dialects.
const (
	Postgres Dialect = iota + 1
	SQLite           // version 3.24 or newer
)

// Table is where tokens are remembered. The zero Name means DefaultName;
// Dialect must be set.
type Table struct {
	// Name may be qualified by a schema: letters, digits, underscores and one
	// dot, at most 127 bytes.
	Name    string
	Dialect Dialect
}

// name returns the table's name, checked, since it becomes part of statements.
func (t Table) name() (string, error) {
	if t.Dialect != Postgres && t.Dialect != SQLite {
		return "", fmt.Errorf("fence: Table.Dialect must be Postgres or SQLite (is %d)", t.Dialect)
	}
	if t.Name == "" {
		return DefaultName, nil
	}
	dots := 0
	for i, c := range []byte(t.Name) {
		switch {
		case c == '_', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		case '0' <= c && c <= '9' && i > 0 && t.Name[i-1] != '.':
		case c == '.' && i > 0 && i < len(t.Name)-1:
			dots++
		default:
			dots = 2
		}
	}
	if dots > 1 || len(t.Name) > 127 {
		return "", fmt.Errorf("fence: Table.Name must be letters, digits, underscores and one dot, at most 127 bytes (is %q)", t.Name)
	}
	return t.Name, nil
}

// DDL creates the table unless it exists. It panics if the Table breaks its
// rules: it is meant for migrations, with constants.
func (t Table) DDL() string {
	name, err := t.name()
	if err != nil {
		panic(err)
	}
	if t.Dialect == SQLite {
		return "CREATE TABLE IF NOT EXISTS " + name + " (resource TEXT PRIMARY KEY, token INTEGER NOT NULL) WITHOUT ROWID"
	}
	return "CREATE TABLE IF NOT EXISTS " + name + " (resource TEXT PRIMARY KEY, token BIGINT NOT NULL)"
}

// Check admits tok for resource inside tx, or returns a *StaleError; then the
// transaction must be rolled back. It locks the resource's row until tx ends.
// Call it before the protected write, in the same transaction.
//
// In PostgreSQL at REPEATABLE READ or SERIALIZABLE, a Check that met a
// concurrent one fails with a serialization error (SQLSTATE 40001), as any
// write would; repeat the transaction.
func (t Table) Check(ctx context.Context, tx *sql.Tx, resource string, tok mortise.Token) error {
	name, err := t.name()
	if err != nil {
		return err
	}
	if resource == "" || len(resource) > MaxResourceBytes {
		return fmt.Errorf("fence: resource must have 1 to %d bytes (has %d)", MaxResourceBytes, len(resource))
	}
	if tok <= 0 {
		return fmt.Errorf("fence: token must be above 0 (is %d)", tok)
	}
	// One statement: the conflicting row is locked before its token is looked
	// at, and no row is affected when it is higher.
	stmt := "INSERT INTO " + name + " AS f (resource, token) VALUES ($1, $2) " +
		"ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE f.token <= excluded.token"
	r, err := tx.ExecContext(ctx, stmt, resource, int64(tok))
	if err != nil {
		return fmt.Errorf("fence: check of %q: %w", resource, err)
	}
	n, err := r.RowsAffected()
	if err != nil {
		return fmt.Errorf("fence: check of %q: %w", resource, err)
	}
	if n == 0 {
		return &StaleError{Resource: resource, Token: tok}
	}
	return nil
}

// Tx begins a transaction, checks the grant's token for its name, runs fn and
// commits. It refuses to commit when the grant's protection has ended, and
// rolls back when anything fails.
func (t Table) Tx(ctx context.Context, db *sql.DB, g *mortise.Grant, fn func(*sql.Tx) error) error {
	return t.run(ctx, db, g.Name(), g.Token(), g.Err, fn)
}

func (t Table) run(ctx context.Context, db *sql.DB, resource string, tok mortise.Token, protected func() error, fn func(*sql.Tx) error) error {
	if err := protected(); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("fence: begin: %w", err)
	}
	defer tx.Rollback() // without effect after Commit
	if err := t.Check(ctx, tx, resource, tok); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	if err := protected(); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("fence: commit: %w", err)
	}
	return nil
}

// Where is the predicate for a token column on the protected row itself, in
// place of a Table: `UPDATE … SET …, fence_token = $3 WHERE id = $1 AND ` +
// Where(d, "fence_token", 3). No affected row means stale (or no such row).
// column must be a plain identifier; arg is the number of the token's
// placeholder, from 1. It panics if they are not.
func Where(d Dialect, column string, arg int) string {
	if _, err := (Table{Name: column, Dialect: d}).name(); err != nil || column == "" {
		panic(fmt.Sprintf("fence: Where needs a dialect and a plain column name (has %d, %q)", d, column))
	}
	if arg < 1 {
		panic(fmt.Sprintf("fence: Where's placeholder must be 1 or more (is %d)", arg))
	}
	if d == SQLite {
		return fmt.Sprintf("%s <= ?%d", column, arg)
	}
	return fmt.Sprintf("%s <= $%d", column, arg)
}
