package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadsPublishesDeletes(t *testing.T) {
	t.Parallel()
	d := newDB(t, seqDDL)
	d.exec(`INSERT INTO outbox (aggregate_id, aggregate_type, type, payload, headers)
		SELECT i % 7, 'order', 'OrderPlaced', jsonb_build_object('n', i), '{"trace": "abc"}' FROM generate_series(1, 2500) i`)
	r := startRelay(t, d.dsn, relayOptions{})
	require.Equal(t, "per key", r.awaitOpened().GetOrder())
	gs := r.awaitGot(2500)
	inOrder(t, gs)
	e := gs[0].event
	require.Equal(t, "1", string(e.GetKey()))
	require.Equal(t, "OrderPlaced", e.GetType())
	require.Equal(t, "order", e.GetAggregateType())
	require.Equal(t, "application/json", e.GetContentType())
	require.JSONEq(t, `{"n": 1}`, string(e.GetPayload()))
	require.Equal(t, "trace", e.GetHeaders()[0].GetName())
	require.Equal(t, "abc", string(e.GetHeaders()[0].GetValue()))
	require.NotNil(t, e.TimeUnixMicro)
	eventually(t, "all rows deleted", func() bool { return d.int(`SELECT count(*) FROM outbox`) == 0 })
	d.exec(`INSERT INTO outbox (aggregate_id, type, payload) VALUES (1, 'x', '{"n": 9999}')`)
	require.Equal(t, 9999, r.awaitGot(2501)[2500].n())
	r.drain()
	require.Equal(t, 0, d.int(`SELECT count(*) FROM outbox`))
	require.Equal(t, 0, d.int(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`))
}

func TestReadsInRounds(t *testing.T) {
	t.Parallel()
	d := newDB(t, plainDDL)
	insert := func(from, to int) {
		d.exec(fmt.Sprintf(`INSERT INTO outbox (aggregate_id, type, payload, created_at)
			SELECT i %% 7, 't', jsonb_build_object('n', i), now() + i * interval '1 ms' FROM generate_series(%d, %d) i`, from, to))
	}
	insert(1, 2500)
	r := startRelay(t, d.dsn, relayOptions{config: map[string]any{"batch": 300}})
	require.Equal(t, "best effort", r.awaitOpened().GetOrder())
	inOrder(t, r.awaitGot(2500))
	insert(2501, 3000)
	inOrder(t, r.awaitGot(3000))
	r.drain()
	require.Equal(t, 0, d.int(`SELECT count(*) FROM outbox`))
	require.Len(t, r.all(), 3000)
}
