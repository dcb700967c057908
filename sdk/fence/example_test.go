package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"log"

	mortise "github.com/mortise-lock/mortise/sdk"
	"github.com/mortise-lock/mortise/sdk/fence"
)

func ExampleTable_Tx() {
	var (
		ctx    context.Context = context.Background()
		db     *sql.DB         // opened with a PostgreSQL driver
		client *mortise.Client // from mortise.Open
	)
	table := fence.Table{Dialect: fence.Postgres}
	err := client.Do(ctx, "invoice/INV-55102", func(ctx context.Context, g *mortise.Grant) error {
		return table.Tx(ctx, db, g, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE invoice SET paid = true WHERE id = $1`, "INV-55102")
			return err
		})
	})
	if errors.Is(err, fence.ErrStale) {
		log.Print("a later holder was here; nothing was written")
	}
}
