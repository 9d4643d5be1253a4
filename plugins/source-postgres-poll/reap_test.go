package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const markerIndex = `CREATE INDEX ON outbox (published_at)`

func reaping() map[string]any { return marking("retention", map[string]any{"after": "7d"}) }

// Marked rows go after their time, and only they, in several batches; of tables of every kind.
func TestReap(t *testing.T) {
	t.Parallel()
	hashed := strings.Replace(fmt.Sprintf(markDDL, seqColumn), "UNIQUE)", ") PARTITION BY HASH (id)", 1)
	for name, ddl := range map[string][]string{
		"plain":   {fmt.Sprintf(markDDL, seqColumn), markerIndex},
		"partial": {fmt.Sprintf(markDDL, ""), markerIndex + ` WHERE published_at IS NOT NULL`},
		"hashed": {
			hashed, `CREATE TABLE h0 PARTITION OF outbox FOR VALUES WITH (MODULUS 2, REMAINDER 0)`, `CREATE TABLE h1 PARTITION OF outbox FOR VALUES WITH (MODULUS 2, REMAINDER 1)`,
			markerIndex,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDB(t, ddl...)
			d.exec(`INSERT INTO outbox (type, created_at, published_at) SELECT 'old', '2024-01-01', now() - interval '8 days' FROM generate_series(1, 2500)`)
			d.exec(`INSERT INTO outbox (type, created_at, published_at) SELECT 'young', '2024-01-01', now() - interval '6 days' FROM generate_series(1, 10)`)
			d.exec(`INSERT INTO outbox (type, created_at) SELECT 'unmarked', '2024-01-01' FROM generate_series(1, 10)`)
			h := d.house(reaping())
			require.NoError(t, h.round(context.Background()))
			require.Equal(t, "unmarked 10, young 10", d.text(`SELECT string_agg(type || ' ' || n, ', ' ORDER BY type) FROM (SELECT type, count(*) n FROM outbox GROUP BY 1) x`))
			require.EqualValues(t, 2500, h.figures.reaped)
		})
	}
}

// A row that is not pending and was never marked may have to be published yet; so may one that is pending again.
func TestReapOnlyWhatIsPublished(t *testing.T) {
	t.Parallel()
	d := newDB(t, fmt.Sprintf(markDDL, seqColumn), markerIndex)
	d.exec(`INSERT INTO outbox (type, status, published_at) VALUES ('draft', 'draft', NULL), ('again', 'ready', '2024-01-01'), ('sent', 'sent', '2024-01-01'), ('odd', NULL, '2024-01-01')`)
	h := d.house(marking("pending", "status = 'ready'", "retention", map[string]any{"after": "7d"}))
	require.NoError(t, h.round(context.Background()))
	require.Equal(t, "again,draft", d.text(`SELECT string_agg(type, ',' ORDER BY type) FROM outbox`))
}

// Somebody takes the mark away while the row waits to be reaped: it stays.
func TestReapLooksAgain(t *testing.T) {
	t.Parallel()
	d := newDB(t, fmt.Sprintf(markDDL, seqColumn), markerIndex, `INSERT INTO outbox (published_at) VALUES ('2024-01-01'), ('2024-01-02')`)
	h := d.house(reaping())
	user := d.session()
	do(t, user, `BEGIN`)
	do(t, user, `UPDATE outbox SET published_at = NULL WHERE published_at = '2024-01-01'`)
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { err = h.round(context.Background()) })
	eventually(t, "it waits for the row", func() bool {
		return d.int(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'relevo/p/housekeeper' AND datname = current_database() AND wait_event_type = 'Lock'`) == 1
	})
	do(t, user, `COMMIT`)
	wg.Wait()
	require.NoError(t, err)
	require.Equal(t, 1, d.int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`))
	require.Equal(t, 1, d.int(`SELECT count(*) FROM outbox`))
}

// Beside a load: each event is published once, in order, while old ones go, and none goes that was not marked.
func TestReapUnderLoad(t *testing.T) {
	t.Parallel()
	const old, events = 5000, 5000
	d := newDB(t, fmt.Sprintf(markDDL, seqColumn), pendingIndex, markerIndex)
	d.exec(fmt.Sprintf(`INSERT INTO outbox (published_at) SELECT now() - interval '8 days' FROM generate_series(1, %d)`, old))
	r := startRelay(t, d.dsn, relayOptions{config: reaping()})
	for i := range 10 {
		d.exec(fmt.Sprintf(`INSERT INTO outbox (aggregate_id, payload, created_at) SELECT i %% 7, jsonb_build_object('n', i), '2024-01-01' FROM generate_series(%d, %d) i`,
			i*events/10+1, (i+1)*events/10))
	}
	gs := r.awaitGot(events)
	eventually(t, "the old ones are gone", func() bool { return metric(r, "rows_reaped_total") == old })
	r.drain()
	require.Len(t, gs, events)
	inOrder(t, gs)
	require.Equal(t, events, d.int(`SELECT count(*) FROM outbox WHERE status = 'sent' AND n = 1`))
	require.Equal(t, events, d.int(`SELECT count(*) FROM outbox`))
}

// Without an index each batch would read the whole table: nothing is done.
func TestReapNeedsIndex(t *testing.T) {
	t.Parallel()
	d := newDB(t, fmt.Sprintf(markDDL, seqColumn), `INSERT INTO outbox (published_at) VALUES ('2024-01-01')`)
	r := startRelay(t, d.dsn, relayOptions{config: reaping()})
	r.await("the reason", func() bool { return strings.Contains(r.status.GetText(), "nothing is reaped") })
	require.Equal(t, 1, d.int(`SELECT count(*) FROM outbox`))
	r.drain()
	d.exec(markerIndex)
	require.NoError(t, d.house(reaping()).round(context.Background()))
	require.Zero(t, d.int(`SELECT count(*) FROM outbox`))
}

// A relay that is told to stop does not finish the round first.
func TestReapStops(t *testing.T) {
	t.Parallel()
	d := newDB(t, fmt.Sprintf(markDDL, seqColumn), pendingIndex, markerIndex)
	d.exec(`INSERT INTO outbox (published_at) SELECT '2024-01-01' FROM generate_series(1, 50000)`)
	r := startRelay(t, d.dsn, relayOptions{config: reaping()})
	eventually(t, "it reaps", func() bool { return d.int(`SELECT count(*) FROM outbox`) < 50000 })
	r.drain()
	require.Nil(t, r.fault)
	require.Positive(t, d.int(`SELECT count(*) FROM outbox`))
	eventually(t, "its session is over", func() bool {
		return d.int(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'relevo/p/housekeeper' AND datname = current_database()`) == 0
	})
}
