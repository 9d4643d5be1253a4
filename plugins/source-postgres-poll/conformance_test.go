package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/relevo-io/relevo/sdk/sdktest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	d := newDB(t, seqDDL)
	c := d.session()
	next := 0
	// put inserts rows with the given expressions for key and type, of which i is the number within the call.
	put := func(ctx context.Context, rows int, key, typ string) error {
		_, err := c.Exec(ctx, fmt.Sprintf(`INSERT INTO outbox (aggregate_id, type, payload)
			SELECT %s, %s, jsonb_build_object('n', $2::int + i) FROM generate_series(0, $1::int - 1) i`, key, typ), rows, next)
		next += rows
		return err
	}
	sdktest.Run(t, sdktest.Build(t, "."), sdktest.Spec{
		Config:      map[string]any{"dsn": d.dsn},
		Unreachable: map[string]any{"dsn": "postgres://127.0.0.1:1/none"},
		OnPut: func(ctx context.Context, events, keys int) error {
			return put(ctx, events, fmt.Sprintf("i %% %d", keys), "'t'")
		},
		OnPutKeyless: func(ctx context.Context, events int) error {
			return put(ctx, events, "NULL", "'t'")
		},
		OnPutRejected: func(ctx context.Context, events, keys int) error {
			return put(ctx, events, fmt.Sprintf("i %% %d", keys), "repeat('t', 300)")
		},
	})
}
