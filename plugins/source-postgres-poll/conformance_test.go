package main

import (
	"context"
	"testing"

	"github.com/relevo-io/relevo/sdk/sdktest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	d := newDB(t, seqDDL)
	c := d.session()
	next := 0
	sdktest.Run(t, sdktest.Build(t, "."), sdktest.Spec{
		Config: map[string]any{"dsn": d.dsn},
		OnPut: func(ctx context.Context, events, keys int) error {
			_, err := c.Exec(ctx, `INSERT INTO outbox (aggregate_id, type, payload)
				SELECT i % $2::int, 't', jsonb_build_object('n', $3::int + i) FROM generate_series(0, $1::int - 1) i`, events, keys, next)
			next += events
			return err
		},
	})
}
