// Package fence is the half of fencing that lives at the store: a table that
// remembers, per protected resource, the largest token seen, and refuses
// smaller ones inside the transaction of the protected write.
//
//	table := fence.Table{Dialect: fence.Postgres}
//	err := table.Tx(ctx, db, grant, func(tx *sql.Tx) error {
//		_, err := tx.ExecContext(ctx, `UPDATE invoice SET paid = true WHERE id = $1`, id)
//		return err
//	})
//	if errors.Is(err, fence.ErrStale) { ... } // a later holder was here
//
// Check locks the resource's row until the transaction ends, so a stale and a
// fresh holder cannot interleave: either the stale one commits before the fresh
// one's Check, or it is refused. Equal tokens pass, so one holder may write
// often. SQLite has one writer at a time; there Check takes the write lock.
//
// The package imports no database driver; it works through database/sql.
// Create the table with DDL, as the owner of the schema, in a migration.
package fence
