package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/relevo-io/relevo/sdk/sdktest"
)

// The same suite as TestConformance, for a source with positions.
func TestKeepConformance(t *testing.T) {
	t.Parallel()
	d := newDB(t, keptDDL, keptTxIndex, `CREATE TABLE other (n int)`)
	c := d.session()
	next := 0
	put := func(ctx context.Context, rows int, key, typ string) error {
		_, err := c.Exec(ctx, fmt.Sprintf(`INSERT INTO outbox (aggregate_id, type, payload)
			SELECT %s, %s, jsonb_build_object('n', $2::int + i) FROM generate_series(0, $1::int - 1) i`, key, typ), rows, next)
		next += rows
		return err
	}
	sdktest.Run(t, sdktest.Build(t, "."), sdktest.Spec{
		Config:      keeping("dsn", d.dsn),
		Unreachable: keeping("dsn", "postgres://127.0.0.1:1/none"),
		OnPut: func(ctx context.Context, events, keys int) error {
			return put(ctx, events, fmt.Sprintf("i %% %d", keys), "'t'")
		},
		OnPutKeyless: func(ctx context.Context, events int) error { return put(ctx, events, "NULL", "'t'") },
		OnPutRejected: func(ctx context.Context, events, keys int) error {
			return put(ctx, events, fmt.Sprintf("i %% %d", keys), "repeat('t', 300)")
		},
		OnPutOther: func(ctx context.Context) error {
			_, err := c.Exec(ctx, `INSERT INTO other VALUES (1)`)
			return err
		},
	})
}
