package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/sdk"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

func insertKept(from, to int) string {
	return fmt.Sprintf(`INSERT INTO outbox (aggregate_id, payload) SELECT i %% 7, jsonb_build_object('n', i) FROM generate_series(%d, %d) i`, from, to)
}

// Rows stay and are published once, over graceful restarts; a role that may only read is enough.
func TestKeep(t *testing.T) {
	t.Parallel()
	d, _ := privateDB(t, nil, keptDDL, keptTxIndex, insertKept(1, 2500), `CREATE ROLE auditor LOGIN`, `GRANT SELECT ON outbox TO auditor`)
	cc, err := pgconn.ParseConfig(d.dsn)
	require.NoError(t, err)
	dsn := strings.Replace(d.dsn, cc.User+"@", "auditor@", 1)
	var position []byte
	for life := range 3 {
		h := startKept(t, dsn, keptOptions{config: keeping("batch", 300), position: position})
		h.await("Opened", func() bool { return h.opened != nil })
		require.True(t, h.opened.GetHasPositions())
		require.False(t, h.opened.GetHoldsKeys())
		require.Equal(t, "per key", h.opened.GetOrder())
		want := 100
		if life == 0 {
			want = 2600
		}
		from := 2501 + 100*life
		for i := from; i < from+100; i += 10 {
			d.exec(insertKept(i, i+9))
		}
		gs := h.awaitGot(want)
		h.stop()
		require.Len(t, h.all(), want)
		require.ElementsMatch(t, sequence(from+100-want, from+99), numbers(gs))
		inOrder(t, gs)
		position = h.stored
	}
	require.Equal(t, 2800, d.int(`SELECT count(*) FROM outbox`))
	require.Equal(t, 0, d.int(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'`))
}

func sequence(from, to int) (ns []int) {
	for n := from; n <= to; n++ {
		ns = append(ns, n)
	}
	return ns
}

// Every way in which a transaction can end late: it delays itself and nobody else, and is published once.
func TestKeepOpenTransactions(t *testing.T) {
	t.Parallel()
	d, _ := privateDB(t, map[string]string{"max_prepared_transactions": "5"}, keptDDL, keptTxIndex)
	long, saved, prepared, aborted := d.session(), d.session(), d.session(), d.session()
	n := 0
	insert := func(c *pgx.Conn) int {
		n++
		do(t, c, fmt.Sprintf(`INSERT INTO outbox (aggregate_id, payload) VALUES (%d, jsonb_build_object('n', %[1]d))`, n))
		return n
	}
	for _, c := range []*pgx.Conn{long, saved, prepared, aborted} {
		do(t, c, `BEGIN`)
	}
	one := insert(long)
	// The row that is inserted behind a savepoint has another xmin than the one that snapshots list.
	two := insert(saved)
	do(t, saved, `SAVEPOINT a`)
	three := insert(saved)
	do(t, saved, `SAVEPOINT b`)
	insert(saved)
	do(t, saved, `ROLLBACK TO b`)
	do(t, saved, `SAVEPOINT c`)
	four := insert(saved)
	five := insert(prepared)
	do(t, prepared, `PREPARE TRANSACTION 'p'`)
	insert(aborted)

	var position []byte
	arrive := func(h *keptHost, have int, want ...int) {
		t.Helper()
		gs := h.awaitGot(have + len(want))
		require.ElementsMatch(t, want, numbers(gs[have:]))
	}
	h := startKept(t, d.dsn, keptOptions{})
	first := insert(d.conn)
	arrive(h, 0, first)
	h.await("four transactions are waited for", func() bool { return keptMetric(h, "open_transactions") == 4 })
	do(t, saved, `RELEASE a`)
	second := insert(d.conn)
	arrive(h, 1, second)
	h.stop()
	position = h.stored

	h = startKept(t, d.dsn, keptOptions{position: position})
	do(t, saved, `COMMIT`)
	arrive(h, 0, two, three, four)
	do(t, aborted, `ROLLBACK`)
	third := insert(d.conn)
	arrive(h, 3, third)
	h.stop()

	h = startKept(t, d.dsn, keptOptions{position: h.stored})
	d.exec(`COMMIT PREPARED 'p'`)
	arrive(h, 0, five)
	do(t, long, `COMMIT`)
	arrive(h, 1, one)
	last := insert(d.conn)
	arrive(h, 2, last)
	h.stop()
	require.Len(t, h.all(), 3)
}

func keptMetric(h *keptHost, name string) float64 {
	for _, m := range h.status.GetMetrics() {
		if m.GetName() == name {
			return m.GetValue()
		}
	}
	return -1
}

// An aggregate's events come by their numbers, also where the transaction with the lower id has the higher number.
func TestKeepOrder(t *testing.T) {
	t.Parallel()
	d := newDB(t, keptDDL, keptTxIndex, `CREATE TABLE other (n int)`)
	s1, s2 := d.session(), d.session()
	do(t, s1, `BEGIN; INSERT INTO other VALUES (1)`) // takes its id
	do(t, s2, `BEGIN; INSERT INTO outbox (aggregate_id, payload) VALUES (7, '{"n": 1}'); COMMIT`)
	do(t, s1, `INSERT INTO outbox (aggregate_id, payload) VALUES (7, '{"n": 2}'); COMMIT`)
	h := startKept(t, d.dsn, keptOptions{})
	require.Equal(t, []int{1, 2}, numbers(h.awaitGot(2)))
	h.stop()
}

// What is open is never more than the window, and what is in it comes again after a crash, and nothing else.
func TestKeepWindow(t *testing.T) {
	t.Parallel()
	d := newDB(t, keptDDL, keptTxIndex, insertKept(1, 1000))
	h := startKept(t, d.dsn, keptOptions{config: keeping("batch", 30), window: &pluginv1.Window{Events: 100, Bytes: 1 << 20}, on: func(h *keptHost, through uint64) {
		if through <= 400 {
			h.settle(through)
		}
	}})
	h.await("the window is full", func() bool { return len(h.got) == int(h.covered)+100 && h.covered > 300 })
	h.kill()
	require.LessOrEqual(t, h.most, 100)
	again := startKept(t, d.dsn, keptOptions{position: h.stored})
	gs := again.awaitGot(1000 - int(h.covered))
	again.stop()
	require.Equal(t, sequence(int(h.covered)+1, 1000), numbers(gs))

	// One event is admitted, however large, and rows of some size are read in steps.
	d.exec(`TRUNCATE outbox`)
	d.exec(`INSERT INTO outbox (aggregate_id, payload) SELECT 1, jsonb_build_object('n', i, 'x', repeat('x', 300000)) FROM generate_series(1, 30) i`)
	h = startKept(t, d.dsn, keptOptions{position: again.stored, window: &pluginv1.Window{Events: 100, Bytes: 1000}})
	require.Equal(t, sequence(1, 30), numbers(h.awaitGot(30)))
	h.stop()
	require.Equal(t, 1, h.most)
}

// The wait between looks is short again after each event: a hundred of them, one after the other, come at once.
func TestKeepPace(t *testing.T) {
	t.Parallel()
	d := newDB(t, keptDDL, keptTxIndex)
	h := startKept(t, d.dsn, keptOptions{config: keeping("poll_interval", "10s")})
	start := time.Now()
	for i := 1; i <= 100; i++ {
		d.exec(insertKept(i, i))
		h.awaitGot(i)
	}
	require.Less(t, time.Since(start), 10*time.Second, "half a second on a quiet machine")
	h.stop()
}

// The doctor says what a start will begin with.
func TestKeepDoctor(t *testing.T) {
	t.Parallel()
	d := newDB(t, keptDDL, keptTxIndex)
	s, l := reading(t, d), keptLayout(t, d)
	codes := func(c config, stored []byte) (codes []string) {
		found, err := keptFindings(context.Background(), s, l, c, stored)
		require.NoError(t, err)
		for _, f := range found {
			codes = append(codes, f.Code)
		}
		return codes
	}
	require.Empty(t, codes(config{}, nil), "nothing is in the table")
	d.exec(insertKept(1, 1))
	require.Equal(t, []string{"backlog_published"}, codes(config{}, nil))
	require.Equal(t, []string{"backlog_skipped"}, codes(config{Backlog: backlogSkip}, nil))
	require.Equal(t, []string{"position_gap"}, codes(config{}, []byte("x")))
	h := startKept(t, d.dsn, keptOptions{})
	h.awaitGot(1)
	h.stop()
	require.Equal(t, []string{"position"}, codes(config{}, h.stored))
}

// What cannot be read without loss, or without passing everything that is kept, is refused with what mends it.
func TestKeepRefused(t *testing.T) {
	t.Parallel()
	for name, k := range map[string]struct {
		change string
		config map[string]any
		code   string
	}{
		"no tx":            {``, keeping("columns", map[string]any{}), "config_invalid"},
		"pending":          {``, keeping("pending", "true"), "config_invalid"},
		"backlog of none":  {``, map[string]any{"backlog": "skip"}, "config_invalid"},
		"wrong type":       {`ALTER TABLE outbox DROP COLUMN tx; ALTER TABLE outbox ADD COLUMN tx bigint NOT NULL DEFAULT 1`, nil, "tx_type_unsupported"},
		"nullable":         {`ALTER TABLE outbox ALTER COLUMN tx DROP NOT NULL`, nil, "tx_nullable"},
		"no default":       {`ALTER TABLE outbox ALTER COLUMN tx DROP DEFAULT`, nil, "tx_default_wrong"},
		"another default":  {`ALTER TABLE outbox ALTER COLUMN tx SET DEFAULT '5'`, nil, "tx_default_wrong"},
		"no index":         {`DROP INDEX outbox_tx`, nil, "tx_index_missing"},
		"no order index":   {`ALTER TABLE outbox DROP CONSTRAINT outbox_seq_key`, nil, "order_index_missing"},
		"no order":         {`ALTER TABLE outbox DROP COLUMN seq`, nil, "order_missing"},
		"numbers repeated": {`ALTER TABLE outbox DROP CONSTRAINT outbox_seq_key; CREATE INDEX ON outbox (seq); INSERT INTO outbox (seq) OVERRIDING SYSTEM VALUE VALUES (7), (7)`, nil, "order_duplicate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDB(t, keptDDL, keptTxIndex)
			if k.change != "" {
				d.exec(k.change)
			}
			f := startKept(t, d.dsn, keptOptions{config: k.config}).awaitFault()
			require.Equal(t, k.code, f.GetCode(), f.GetMessage())
			require.EqualValues(t, sdk.ClassConfig, f.GetClass())
		})
	}
}

// While no event comes the position goes on, so that the snapshot in it does not become ancient.
func TestKeepProgress(t *testing.T) {
	t.Parallel()
	d, _ := privateDB(t, nil, keptDDL, keptTxIndex, `CREATE TABLE other (n int)`, insertKept(1, 10))
	h := startKept(t, d.dsn, keptOptions{config: keeping("poll_interval", "20ms")})
	h.awaitGot(10)
	h.await("the position of the rows", func() bool { return h.covered == 10 })
	was := h.now()
	d.exec(`INSERT INTO other VALUES (1)`)
	h.await("a position without events", func() bool { return h.progress > 0 })
	h.await("it is acked", func() bool { return len(h.marks) == 0 })
	require.True(t, h.now().old.follows(was.old))
	require.Greater(t, h.now().old.xmax, was.old.xmax)
	h.stop()
	require.LessOrEqual(t, h.progress, 2, "one a second at most, and only when something has ended")
}

// Rows of a dump of another cluster: those with ids that this one has passed are published once, those of the future are
// not overlooked but found, before the start and later.
func TestKeepRestoredRows(t *testing.T) {
	t.Parallel()
	d := newDB(t, keptDDL, keptTxIndex)
	restore := func(n int, tx string) {
		d.exec(fmt.Sprintf(`INSERT INTO outbox (aggregate_id, payload, tx) VALUES (1, jsonb_build_object('n', %d), %s)`, n, tx))
	}
	restore(1, `'3'::xid8`)
	restore(2, `'0'::xid8`)
	restore(3, `(pg_current_xact_id()::text::bigint + 1000000000)::text::xid8`)
	d.exec(insertKept(4, 4))
	h := startKept(t, d.dsn, keptOptions{})
	f := h.awaitFault()
	require.Equal(t, "tx_in_future", f.GetCode())
	require.EqualValues(t, sdk.ClassConfig, f.GetClass())
	found := find(examine(t, h.config(d.dsn)), "tx_in_future")
	require.NotNil(t, found)
	d.exec(found.GetSql())
	h = startKept(t, d.dsn, keptOptions{})
	require.ElementsMatch(t, []int{1, 2, 3, 4}, numbers(h.awaitGot(4)))

	restore(5, `(pg_current_xact_id()::text::bigint + 1000000000)::text::xid8`)
	r := &keptReader{s: reading(t, d), l: keptLayout(t, d)}
	var late *sdk.Error
	require.ErrorAs(t, classify(r.lookAhead(context.Background())), &late)
	require.Equal(t, "tx_in_future", late.Code)
	require.NoError(t, r.lookAhead(context.Background()), "not at each look")
	d.exec(found.GetSql())
	require.Equal(t, 5, h.awaitGot(5)[4].n())
	h.stop()
}

func (h *keptHost) config(dsn string) map[string]any { return keeping("dsn", dsn) }

// reading is a session like that of a relay.
func reading(t *testing.T, d *db) *session {
	t.Helper()
	c := defaultConfig()
	c.DSN = sdk.Secret(d.dsn)
	s, err := connect(context.Background(), c, "p", "source", readerSettings)
	require.NoError(t, err)
	t.Cleanup(s.close)
	return s
}

// A second relay is refused after a while, with the name of the first: its host has a position of its own.
func TestKeepOneRelay(t *testing.T) {
	t.Parallel()
	d := newDB(t, keptDDL, keptTxIndex)
	h := startKept(t, d.dsn, keptOptions{})
	h.await("Opened", func() bool { return h.opened != nil })
	key := lockKey(keptLayout(t, d).Table.OID, 0)
	k := &kept{source: source{s: discard{}, log: slogDiscard()}, lockWait: 50 * time.Millisecond}
	err := k.lockKept(context.Background(), reading(t, d), key)
	e := classify(err)
	require.Equal(t, "outbox_in_use", e.Code)
	require.Equal(t, sdk.ClassConfig, e.Class)
	require.ErrorContains(t, err, "relevo/p/source")
	h.stop()
	require.NoError(t, k.lockKept(context.Background(), reading(t, d), key), "the session of the first has ended")
}

// A partitioned table is read as one, also when a partition is detached and dropped; a partition that was attached with
// another default is found.
func TestKeepPartitions(t *testing.T) {
	t.Parallel()
	d := newDB(t, `CREATE TABLE outbox (id uuid NOT NULL DEFAULT gen_random_uuid(), aggregate_id bigint, type text NOT NULL DEFAULT 't', payload jsonb,
		created_at timestamptz NOT NULL DEFAULT now(), tx xid8 NOT NULL DEFAULT pg_current_xact_id(), seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
		PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at)`,
		`CREATE INDEX ON outbox (seq)`, `CREATE INDEX ON outbox (tx)`,
		`CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM ('2000-01-01') TO ('2020-01-01')`,
		`CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES FROM ('2020-01-01') TO (MAXVALUE)`,
		`INSERT INTO outbox (aggregate_id, payload, created_at) SELECT i % 7, jsonb_build_object('n', i), CASE WHEN i % 2 = 0 THEN '2010-01-01'::timestamptz ELSE now() END
		 FROM generate_series(1, 1000) i`)
	h := startKept(t, d.dsn, keptOptions{config: keeping("batch", 90)})
	require.Equal(t, sequence(1, 1000), numbers(h.awaitGot(1000)))
	d.exec(`DROP TABLE outbox_1`)
	d.exec(insertKept(1001, 1010))
	require.Equal(t, sequence(1001, 1010), numbers(h.awaitGot(1010)[1000:]))
	h.stop()

	d.exec(`CREATE TABLE outbox_3 (LIKE outbox INCLUDING DEFAULTS); ALTER TABLE outbox_3 ALTER COLUMN tx SET DEFAULT '5';
		ALTER TABLE outbox ATTACH PARTITION outbox_3 FOR VALUES FROM ('2000-01-01') TO ('2020-01-01')`)
	f := startKept(t, d.dsn, keptOptions{position: h.stored}).awaitFault()
	require.Equal(t, "tx_default_wrong", f.GetCode())
	require.Contains(t, f.GetHint(), "outbox_3")
}
