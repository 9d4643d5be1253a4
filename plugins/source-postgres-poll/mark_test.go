package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/sdk"
)

// The default table with a column that says when the row was published.
const markDDL = `CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_id bigint, type text NOT NULL DEFAULT 't',
	payload jsonb, created_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz, status text, n int NOT NULL DEFAULT 0%s)`

const (
	seqColumn    = `, seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) UNIQUE`
	pendingIndex = `CREATE INDEX ON outbox (seq) WHERE published_at IS NULL`
)

func marking(extra ...any) map[string]any {
	c := map[string]any{
		"pending":       "published_at IS NULL -- not yet",
		"after_publish": map[string]any{"set": map[string]any{"published_at": "now() -- when", "status": "'sent'", "n": "n + 1"}},
	}
	for i := 0; i+1 < len(extra); i += 2 {
		c[extra[i].(string)] = extra[i+1]
	}
	return c
}

// Published rows are marked, each once; rows that are marked already are left alone; a crash repeats what was not marked.
func TestMark(t *testing.T) {
	t.Parallel()
	for name, seq := range map[string]string{"ordered": seqColumn, "rounds": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDB(t, fmt.Sprintf(markDDL, seq))
			d.exec(`INSERT INTO outbox (aggregate_id, payload, published_at) VALUES (1, '{"n": 0}', '2024-01-01')`)
			d.exec(`INSERT INTO outbox (aggregate_id, payload) SELECT i % 7, jsonb_build_object('n', i) FROM generate_series(1, 3000) i`)
			r := startRelay(t, d.dsn, relayOptions{config: marking(), onBatch: noAck})
			first := r.awaitGot(3000)
			r.ack(first[:1500]...)
			eventually(t, "what was acked is marked", func() bool { return d.int(`SELECT count(*) FROM outbox WHERE status = 'sent'`) == 1500 })
			r.cancel()

			d.exec(`INSERT INTO outbox (aggregate_id, payload) SELECT i % 7, jsonb_build_object('n', i) FROM generate_series(3001, 3100) i`)
			r = startRelay(t, d.dsn, relayOptions{config: marking()})
			second := r.awaitGot(1600)
			r.drain()
			require.ElementsMatch(t, append(ids(first[1500:]), ids(second[1500:])...), ids(second))
			require.Equal(t, 3101, d.int(`SELECT count(*) FROM outbox WHERE published_at IS NOT NULL`))
			require.Equal(t, 3100, d.int(`SELECT count(*) FROM outbox WHERE n = 1 AND status = 'sent' AND published_at > now() - interval '1 minute'`),
				"each was marked once, and the one that was marked before was left alone")
			if seq != "" {
				inOrder(t, second)
			}
			require.EqualValues(t, 1600, metric(r, "rows_marked_total"))
		})
	}
}

// Many transactions, some long, some rolled back: each committed event is published once, in order, and marked.
func TestMarkUnderWriters(t *testing.T) {
	t.Parallel()
	d := newDB(t, fmt.Sprintf(markDDL, seqColumn), pendingIndex, `CREATE TABLE agg (id bigint PRIMARY KEY, n int NOT NULL DEFAULT 0)`,
		`INSERT INTO agg SELECT generate_series(0, 9)`)
	r := startRelay(t, d.dsn, relayOptions{config: marking()})
	r.awaitOpened()
	done := make(chan int)
	for w := range 4 {
		c := d.session()
		rnd := rand.New(rand.NewPCG(1, uint64(w)))
		go func() {
			committed := 0
			defer func() { done <- committed }()
			for range 300 {
				key, rows := rnd.IntN(10), 1+rnd.IntN(5)
				end := "COMMIT"
				if rnd.IntN(10) == 0 {
					end = "ROLLBACK"
				}
				// The aggregate's row is locked before events are numbered; n counts its events.
				sql := fmt.Sprintf("BEGIN; UPDATE agg SET n = n + %d WHERE id = %d; SELECT pg_sleep(%f);", rows, key, rnd.Float64()/500)
				for i := range rows {
					sql += fmt.Sprintf("INSERT INTO outbox (aggregate_id, payload) SELECT id, jsonb_build_object('n', n - %d) FROM agg WHERE id = %d;", rows-1-i, key)
				}
				if _, err := c.Exec(context.Background(), sql+end); err != nil {
					t.Error(err)
					return
				}
				if end == "COMMIT" {
					committed += rows
				}
			}
		}()
	}
	committed := 0
	for range 4 {
		committed += <-done
	}
	gs := r.awaitGot(committed)
	r.drain()
	require.Len(t, gs, committed)
	inOrder(t, gs)
	require.Equal(t, committed, d.int(`SELECT count(*) FROM outbox WHERE n = 1`))
}

// One id in two partitions: a row is marked by all that identifies it.
func TestMarkInPartitions(t *testing.T) {
	t.Parallel()
	d := newDB(t, `CREATE TABLE outbox (id bigint NOT NULL, day date NOT NULL, aggregate_id bigint, type text, payload jsonb, sent bool NOT NULL DEFAULT false,
		PRIMARY KEY (day, id)) PARTITION BY RANGE (day)`,
		`CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM ('2024-01-01') TO ('2024-02-01')`,
		`CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES FROM ('2024-02-01') TO ('2024-03-01')`,
		`INSERT INTO outbox VALUES (1, '2024-01-10', 1, 't', '{"n": 1}'), (1, '2024-02-10', 1, 't', '{"n": 2}')`)
	r := startRelay(t, d.dsn, relayOptions{onBatch: noAck, config: map[string]any{
		"pending": "NOT sent", "after_publish": map[string]any{"set": map[string]any{"sent": true}},
	}})
	gs := r.awaitGot(2)
	r.ack(gs[1])
	eventually(t, "one is marked", func() bool { return d.int(`SELECT count(*) FROM outbox WHERE sent`) == 1 })
	require.Equal(t, gs[1].n(), d.int(`SELECT (payload->>'n')::int FROM outbox WHERE sent`))
	r.ack(gs[0])
	r.drain()
	require.Equal(t, 2, d.int(`SELECT count(*) FROM outbox WHERE sent`))
}

// A mark that leaves the row pending would publish it for ever: the pipeline ends after the first batch.
func TestMarkThatMarksNothing(t *testing.T) {
	t.Parallel()
	d := newDB(t, fmt.Sprintf(markDDL, seqColumn), `INSERT INTO outbox (aggregate_id) VALUES (1)`)
	r := startRelay(t, d.dsn, relayOptions{config: marking("after_publish", map[string]any{"set": map[string]any{"status": "'sent'"}})})
	f := r.awaitFault()
	require.Equal(t, "set_keeps_pending", f.GetCode())
	require.EqualValues(t, sdk.ClassConfig, f.GetClass())
	require.Contains(t, f.GetHint(), "published_at IS NULL")
}

// What cannot work is said before anything is read.
func TestMarkRefused(t *testing.T) {
	t.Parallel()
	d := newDB(t, fmt.Sprintf(markDDL, seqColumn), `INSERT INTO outbox (aggregate_id) VALUES (1)`)
	for name, k := range map[string]struct {
		config map[string]any
		code   string
		text   string
	}{
		"no pending":     {marking("pending", ""), "config_invalid", "published_at IS NULL"},
		"no columns":     {marking("after_publish", map[string]any{"set": map[string]any{}}), "config_invalid", "{set: {column: expression}}"},
		"empty":          {marking("after_publish", map[string]any{"set": map[string]any{"status": " "}}), "config_invalid", "now()"},
		"missing column": {marking("after_publish", map[string]any{"set": map[string]any{"publishedAt": "now()"}}), "column_missing", `did you mean "published_at"`},
		"the id":         {marking("after_publish", map[string]any{"set": map[string]any{"id": "gen_random_uuid()"}}), "set_column_refused", "identifies the row"},
		"the key":        {marking("after_publish", map[string]any{"set": map[string]any{"aggregate_id": "0"}}), "set_column_refused", ""},
		"the order":      {marking("after_publish", map[string]any{"set": map[string]any{"seq": "DEFAULT"}}), "set_column_refused", ""},
		"bare text":      {marking("after_publish", map[string]any{"set": map[string]any{"status": "sent"}}), "set_invalid", "text needs quotes"},
		"two statements": {marking("after_publish", map[string]any{"set": map[string]any{"status": "'x'); DROP TABLE outbox; --"}}), "set_invalid", ""},
		"wrong type":     {marking("after_publish", map[string]any{"set": map[string]any{"published_at": 1}}), "set_invalid", "timestamp"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRelay(t, d.dsn, relayOptions{config: k.config})
			f := r.awaitFault()
			require.Equal(t, k.code, f.GetCode(), f.GetMessage())
			require.EqualValues(t, sdk.ClassConfig, f.GetClass())
			require.Contains(t, f.GetMessage()+f.GetHint(), k.text)
			require.Empty(t, r.all())
		})
	}
}

// The rights that a marking relay needs: SELECT on the table and UPDATE on the columns it sets, and no more.
func TestMarkPrivileges(t *testing.T) {
	t.Parallel()
	d, _ := privateDB(t, nil, fmt.Sprintf(markDDL, seqColumn), `INSERT INTO outbox (aggregate_id) VALUES (1)`, `CREATE ROLE marker LOGIN`)
	cc, err := pgconn.ParseConfig(d.dsn)
	require.NoError(t, err)
	dsn := strings.Replace(d.dsn, cc.User+"@", "marker@", 1)
	f := startRelay(t, dsn, relayOptions{config: marking()}).awaitFault()
	require.Equal(t, "privilege_missing", f.GetCode())
	require.Contains(t, f.GetHint(), `UPDATE ("published_at")`)
	d.exec(`GRANT SELECT, UPDATE (published_at, status, n) ON outbox TO marker`)
	r := startRelay(t, dsn, relayOptions{config: marking()})
	r.awaitGot(1)
	r.drain()
	require.Equal(t, 1, d.int(`SELECT count(*) FROM outbox WHERE published_at IS NOT NULL`))
}
