package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// The default table, partitioned by day.
const partDDL = `CREATE TABLE outbox (id uuid NOT NULL DEFAULT gen_random_uuid(), aggregate_id bigint, type text NOT NULL DEFAULT 't', payload jsonb,
	created_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz, seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
	PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at)`

// Retention of partitions, for rows that are deleted and for rows that are marked.
var byDay = map[string]any{"after": "2d", "every": "day", "ahead": 2}

func deleting(retention map[string]any) map[string]any { return map[string]any{"retention": retention} }

func markingParts(retention map[string]any) map[string]any {
	return map[string]any{
		"pending": "published_at IS NULL", "retention": retention,
		"after_publish": map[string]any{"set": map[string]any{"published_at": "now()"}},
	}
}

// day makes the partition of the day that was n days ago, in UTC, and returns its name.
func (d *db) day(n int) string {
	d.t.Helper()
	day := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, -n)
	name := "outbox_p" + day.Format("20060102")
	d.exec(fmt.Sprintf("CREATE TABLE %s PARTITION OF outbox FOR VALUES FROM ('%s+00') TO ('%s+00')", name, day.Format(time.DateTime), day.AddDate(0, 0, 1).Format(time.DateTime)))
	return name
}

// ago is a time within the partition of n days ago, as SQL.
func ago(n int) string {
	return fmt.Sprintf("'%s+00'::timestamptz", time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, -n).Add(time.Minute).Format(time.DateTime))
}

// house is a housekeeper on the table as it is now.
func (d *db) house(conf map[string]any) *housekeeper {
	d.t.Helper()
	if _, ok := conf["dsn"]; !ok {
		conf = merged(conf, map[string]any{"dsn": d.dsn})
	}
	b, err := json.Marshal(conf)
	require.NoError(d.t, err)
	c, err := sdk.DecodeConfig(b, defaultConfig)
	require.NoError(d.t, err)
	name, err := outbox.ParseName(c.Table)
	require.NoError(d.t, err)
	s, err := connect(context.Background(), c, "p", "test", nil)
	require.NoError(d.t, err)
	defer s.close()
	t, err := outbox.Inspect(context.Background(), s.conn, name)
	require.NoError(d.t, err)
	m, err := outbox.Map(c.Preset, c.Columns)
	require.NoError(d.t, err)
	l, err := outbox.Bind(m, t)
	require.NoError(d.t, err)
	return newHousekeeper(c, l, "p", slog.New(slog.DiscardHandler))
}

func merged(maps ...map[string]any) map[string]any {
	all := map[string]any{}
	for _, m := range maps {
		for k, v := range m {
			all[k] = v
		}
	}
	return all
}

// exists reports whether a table is there.
func (d *db) exists(table string) bool {
	d.t.Helper()
	return d.int(`SELECT count(*) FROM pg_class WHERE relname = $1`, table) == 1
}

func (d *db) attached(table string) bool {
	d.t.Helper()
	return d.int(`SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relname = $1 AND NOT i.inhdetachpending`, table) == 1
}

// A partition that is made is like the last one in all that matters, and is made once.
func TestPartitionsAhead(t *testing.T) {
	t.Parallel()
	d := newDB(t, partDDL, `CREATE INDEX ON outbox (seq)`, `ALTER TABLE outbox ADD CHECK (type <> '')`,
		`CREATE TABLE orders (id bigint PRIMARY KEY)`, `INSERT INTO orders VALUES (1)`, `ALTER TABLE outbox ADD FOREIGN KEY (aggregate_id) REFERENCES orders`,
		`CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.payload = ''{"n": 7}''; RETURN NEW; END'`,
		`CREATE TRIGGER note BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION note()`)
	today := d.day(0)
	d.exec(`ALTER TABLE ` + today + ` SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01)`)
	d.exec(`ALTER TABLE ` + today + ` REPLICA IDENTITY FULL`)
	d.exec(`GRANT SELECT ON ` + today + ` TO PUBLIC`)
	h := d.house(deleting(byDay))
	require.NoError(t, h.round(context.Background()))
	require.EqualValues(t, 2, h.figures.created)
	require.InDelta(t, 2, h.figures.ahead, 0)
	for i := 1; i <= 2; i++ {
		name := "outbox_p" + time.Now().UTC().AddDate(0, 0, i).Format("20060102")
		require.True(t, d.attached(name), name)
		require.Equal(t, 1, d.int(`SELECT count(*) FROM pg_class a, pg_class b WHERE a.relname = $1 AND b.relname = $2 AND a.relowner = b.relowner
			AND a.reloptions = b.reloptions AND a.relreplident = b.relreplident AND a.relacl = b.relacl`, today, name))
		require.Equal(t, d.int(`SELECT count(*) FROM pg_index WHERE indrelid = $1::text::regclass`, today), d.int(`SELECT count(*) FROM pg_index WHERE indrelid = $1::text::regclass`, name))
		require.Equal(t, d.int(`SELECT count(*) FROM pg_constraint WHERE conrelid = $1::text::regclass`, today), d.int(`SELECT count(*) FROM pg_constraint WHERE conrelid = $1::text::regclass`, name))
		d.exec(fmt.Sprintf(`INSERT INTO outbox (aggregate_id, created_at) VALUES (1, now() + interval '%d days')`, i))
		require.Equal(t, 1, d.int(`SELECT count(*) FROM `+name+` WHERE seq > 0 AND payload->>'n' = '7'`))
	}
	_, err := d.conn.Exec(context.Background(), `INSERT INTO outbox (type, created_at) VALUES ('', now() + interval '1 day')`)
	require.ErrorContains(t, err, "check constraint")
	require.NoError(t, h.round(context.Background()))
	require.EqualValues(t, 2, h.figures.created, "all is there already")
}

// Types of the column, lengths, and a table that has none yet.
func TestPartitionsOfKinds(t *testing.T) {
	t.Parallel()
	for kind, now := range map[string]string{"timestamptz": "now()", "timestamp": "now() AT TIME ZONE 'UTC'", "date": "now() AT TIME ZONE 'UTC'"} {
		for _, every := range []period{hourly, daily, weekly, monthly} {
			if kind == "date" && every == hourly {
				continue
			}
			t.Run(kind+string(every), func(t *testing.T) {
				t.Parallel()
				d := newDB(t, `CREATE SCHEMA "Sales"`, strings.NewReplacer("timestamptz NOT NULL", kind+" NOT NULL", "TABLE outbox", `TABLE "Sales"."Out ""box"`).Replace(partDDL),
					`SET TimeZone = 'Asia/Kathmandu'`)
				h := d.house(map[string]any{"table": `Sales."Out ""box"`, "retention": map[string]any{"after": "2d", "every": every}})
				require.NoError(t, h.round(context.Background()))
				require.EqualValues(t, 4, h.figures.created)
				d.exec(`INSERT INTO "Sales"."Out ""box" (created_at) VALUES (` + now + `)`)
				require.NoError(t, h.round(context.Background()))
				require.EqualValues(t, 4, h.figures.created)
				require.InDelta(t, 3, h.figures.ahead, 0)
			})
		}
	}
}

// An old partition goes when nothing in it has to stay.
func TestPartitionsDrop(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		conf  map[string]any
		row   string // its published_at
		error string // "": it goes, or stays without a word
		stays bool
		mend  string
	}{
		"deleted":         {conf: deleting(byDay)},
		"not deleted":     {conf: deleting(byDay), row: "NULL", error: "not published yet", stays: true, mend: `DELETE FROM outbox`},
		"marked":          {conf: markingParts(byDay), row: "now() - interval '49 hours'"},
		"marked lately":   {conf: markingParts(byDay), row: "now() - interval '47 hours'", stays: true, mend: `UPDATE outbox SET published_at = now() - interval '3 days'`},
		"not marked":      {conf: markingParts(byDay), row: "NULL", error: "not published yet", stays: true, mend: `UPDATE outbox SET published_at = now() - interval '3 days'`},
		"never published": {conf: merged(markingParts(byDay), map[string]any{"pending": "type = 'ready'"}), row: "NULL", error: "not marked", stays: true, mend: `UPDATE outbox SET published_at = now() - interval '3 days'`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDB(t, partDDL)
			old := d.day(4)
			young := d.day(2) // ended less than two days ago
			if c.row != "" {
				d.exec(fmt.Sprintf(`INSERT INTO outbox (created_at, published_at) VALUES (%s, %s)`, ago(4), c.row))
			}
			h := d.house(c.conf)
			err := h.round(context.Background())
			if c.error != "" {
				require.ErrorContains(t, err, c.error)
				require.ErrorContains(t, err, old)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, c.stays, d.exists(old))
			if c.mend != "" {
				require.True(t, d.attached(old))
				require.Zero(t, d.int(`SELECT count(*) FROM pg_constraint WHERE conname LIKE 'relevo%'`), "it is not sealed")
				d.exec(c.mend)
				require.NoError(t, h.round(context.Background()))
			}
			require.False(t, d.exists(old))
			require.True(t, d.attached(young))
			require.EqualValues(t, 1, h.figures.dropped)
		})
	}
}

// A transaction has inserted into an old partition and not committed. The partition is left alone; the row is published
// when it is there, before a later one of its key, and then the partition goes. (Looked at and then detached, the row would
// be lost with it, or come behind.)
func TestPartitionLateCommit(t *testing.T) {
	t.Parallel()
	for name, conf := range map[string]map[string]any{"delete": deleting(byDay), "set": markingParts(byDay)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDB(t, partDDL, `CREATE INDEX ON outbox (seq)`)
			old := d.day(5)
			d.day(0)
			relayConf := merged(conf)
			delete(relayConf, "retention")
			r := startRelay(t, d.dsn, relayOptions{config: relayConf})
			h := d.house(conf)
			late := d.session()
			do(t, late, `BEGIN`)
			do(t, late, fmt.Sprintf(`INSERT INTO outbox (aggregate_id, payload, created_at) VALUES (1, '{"n": 1}', %s)`, ago(5)))
			require.ErrorContains(t, h.round(context.Background()), "an open transaction uses it")
			require.True(t, d.attached(old))
			do(t, late, `COMMIT`)
			d.exec(`INSERT INTO outbox (aggregate_id, payload) VALUES (1, '{"n": 2}')`)
			gs := r.awaitGot(2)
			inOrder(t, gs)
			r.drain()
			if name == "set" {
				require.NoError(t, h.round(context.Background()), "it was marked a moment ago, and stays for two days")
				require.True(t, d.attached(old))
				d.exec(`UPDATE outbox SET published_at = now() - interval '3 days'`)
			}
			require.NoError(t, h.round(context.Background()))
			require.False(t, d.exists(old))
		})
	}
}

// Once sealed, nothing comes in any more, and what is in it can be read.
func TestPartitionSeal(t *testing.T) {
	t.Parallel()
	d := newDB(t, partDDL)
	old := d.day(5)
	d.exec(fmt.Sprintf(`INSERT INTO outbox (created_at, published_at) VALUES (%s, now() - interval '3 days')`, ago(5)))
	h := d.house(markingParts(byDay))
	d.sealed(h, old)
	_, err := d.conn.Exec(context.Background(), fmt.Sprintf(`INSERT INTO outbox (created_at) VALUES (%s)`, ago(5)))
	require.True(t, isCode(err, "23514"), err)
	require.Equal(t, 1, d.int(`SELECT count(*) FROM outbox WHERE published_at IS NOT NULL`))

	h.c.Retention.After = sdk.Duration(30 * 24 * time.Hour)
	require.NoError(t, h.round(context.Background()))
	d.exec(fmt.Sprintf(`INSERT INTO outbox (created_at) VALUES (%s)`, ago(5))) // it is open again: somebody wants rows to stay longer
}

// sealed has a partition sealed and nothing more done.
func (d *db) sealed(h *housekeeper, name string) outbox.Partition {
	d.t.Helper()
	s, err := connect(context.Background(), h.c, "p", "test", housekeeperSettings)
	require.NoError(d.t, err)
	defer s.close()
	ps, err := outbox.InspectPartitions(context.Background(), s.conn, h.l.Table)
	require.NoError(d.t, err)
	i := slices.IndexFunc(ps.List, func(p outbox.Partition) bool { return p.Name.Table == name })
	require.GreaterOrEqual(d.t, i, 0)
	blockers, err := h.blockers()
	require.NoError(d.t, err)
	ok, err := h.seal(context.Background(), s.conn, ps.List[i], blockers)
	require.NoError(d.t, err)
	require.True(d.t, ok)
	return ps.List[i]
}

// Killed between any two steps, the next round goes on from there.
func TestPartitionCrash(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T) (*db, *housekeeper, string) {
		d := newDB(t, partDDL)
		old := d.day(5)
		d.day(0)
		h := d.house(deleting(byDay))
		d.sealed(h, old)
		return d, h, old
	}
	t.Run("sealed", func(t *testing.T) {
		t.Parallel()
		d, h, old := start(t)
		require.NoError(t, h.round(context.Background()))
		require.False(t, d.exists(old))
	})
	t.Run("detaching", func(t *testing.T) {
		t.Parallel()
		d, h, old := start(t)
		user := d.session()
		do(t, user, `BEGIN`)
		do(t, user, `INSERT INTO outbox (aggregate_id) VALUES (1)`)
		do(t, user, `DELETE FROM outbox WHERE created_at > now() - interval '1 hour'`)
		var wg sync.WaitGroup
		wg.Go(func() { _ = h.round(context.Background()) })
		eventually(t, "it waits, and is killed", func() bool {
			return d.int(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'relevo/p/housekeeper' AND datname = current_database()
				AND query LIKE '%DETACH%' AND wait_event = 'virtualxid'`) == 1
		})
		wg.Wait()
		eventually(t, "its session is over", func() bool {
			return d.int(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'relevo/p/housekeeper' AND datname = current_database()`) == 0
		})
		require.False(t, d.attached(old))
		require.True(t, d.exists(old))
		require.ErrorContains(t, h.round(context.Background()), "it waits for transactions")
		do(t, user, `COMMIT`)
		require.NoError(t, h.round(context.Background()))
		require.False(t, d.exists(old))
	})
	t.Run("detached", func(t *testing.T) {
		t.Parallel()
		d, h, old := start(t)
		d.exec(`ALTER TABLE outbox DETACH PARTITION ` + old + ` CONCURRENTLY`)
		require.NoError(t, h.round(context.Background()))
		require.False(t, d.exists(old))
	})
	t.Run("detached, with rows after all", func(t *testing.T) {
		t.Parallel()
		d, h, old := start(t)
		d.exec(`ALTER TABLE outbox DETACH PARTITION ` + old + ` CONCURRENTLY`)
		d.exec(fmt.Sprintf(`ALTER TABLE %s DROP CONSTRAINT %q`, old, h.l.Table.Seal()))
		d.exec(fmt.Sprintf(`INSERT INTO %s (created_at, seq) VALUES (%s, 1)`, old, ago(5)))
		d.exec(fmt.Sprintf(`ALTER TABLE %s ADD CONSTRAINT %q CHECK (false) NOT VALID`, old, h.l.Table.Seal()))
		require.ErrorContains(t, h.round(context.Background()), "nevertheless")
		require.True(t, d.exists(old))
	})
}

// What others have detached, or begun to, is not ours.
func TestPartitionsOfOthers(t *testing.T) {
	t.Parallel()
	d := newDB(t, partDDL)
	theirs, half, ours := d.day(7), d.day(6), d.day(5)
	d.day(0)
	h := d.house(deleting(byDay))
	d.exec(`ALTER TABLE outbox DETACH PARTITION ` + theirs + ` CONCURRENTLY`)
	user, other := d.session(), d.session()
	do(t, user, `BEGIN`)
	do(t, user, `INSERT INTO outbox (aggregate_id) VALUES (1)`)
	do(t, other, `SET lock_timeout = '10ms'`)
	_, err := other.Exec(context.Background(), `ALTER TABLE outbox DETACH PARTITION `+half+` CONCURRENTLY`)
	require.True(t, isCode(err, "55P03"), err)
	do(t, user, `COMMIT`)
	require.ErrorContains(t, h.round(context.Background()), "somebody began to detach the partition")
	require.True(t, d.exists(theirs))
	require.True(t, d.exists(half))
	require.True(t, d.exists(ours), "PostgreSQL detaches one at a time")
	d.exec(`ALTER TABLE outbox DETACH PARTITION ` + half + ` FINALIZE`)
	require.NoError(t, h.round(context.Background()))
	require.True(t, d.exists(theirs))
	require.True(t, d.exists(half))
	require.False(t, d.exists(ours))
}

// Beside writers that give up after 100 ms: none does while partitions are made, sealed, detached and dropped, with a
// transaction open for all the time. A plain DROP makes them give up.
func TestPartitionsNeverInTheWay(t *testing.T) {
	t.Parallel()
	t.Run("delete", func(t *testing.T) {
		t.Parallel()
		d, _ := privateDB(t, nil, partDDL, `CREATE INDEX ON outbox (seq)`)
		relayConf := map[string]any{"pending": "created_at > now() - interval '5 days'", "after_publish": "delete"}
		r := startRelay(t, d.dsn, relayOptions{config: relayConf})
		r.awaitOpened()
		d.neverInTheWay(d.house(deleting(byDay)))
		r.drain()
	})
	t.Run("keep", func(t *testing.T) {
		t.Parallel()
		d, _ := privateDB(t, nil, keptPartsDDL...)
		r := startKept(t, d.dsn, keptOptions{})
		r.await("a position", func() bool { return r.stored != nil })
		acked := r.now().old
		h := d.house(keepingParts())
		h.published = func() (txSnapshot, error) { return acked, nil } // as if no ack had come since
		d.neverInTheWay(h)
		r.stop()
	})
}

func (d *db) neverInTheWay(h *housekeeper) {
	t := d.t
	t.Helper()
	old, plain := d.day(5), d.day(6)
	d.day(0)
	d.exec(fmt.Sprintf(`INSERT INTO outbox (created_at) VALUES (%s)`, ago(6))) // keeps it for the plain DROP

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var mu sync.Mutex
	var worst time.Duration
	inserts, refused := 0, 0
	var wg sync.WaitGroup
	for range 2 {
		c := d.session()
		do(t, c, `SET lock_timeout = '100ms'`)
		wg.Go(func() {
			for ctx.Err() == nil {
				begun := time.Now()
				_, err := c.Exec(context.Background(), `INSERT INTO outbox (aggregate_id) VALUES (1)`)
				mu.Lock()
				worst, inserts = max(worst, time.Since(begun)), inserts+1
				if isCode(err, "55P03") {
					refused++
				} else if err != nil {
					t.Error(err)
				}
				mu.Unlock()
			}
		})
	}
	user := d.session()
	do(t, user, `BEGIN`)
	do(t, user, `INSERT INTO outbox (aggregate_id) VALUES (2)`)
	require.ErrorContains(t, h.round(context.Background()), "it waits for transactions")
	require.EqualValues(t, 2, h.figures.created)
	require.False(t, d.attached(old))
	eventually(t, "it is dropped", func() bool {
		_ = h.round(context.Background()) // the other partition stays, and is told of
		return !d.exists(old)
	})
	do(t, user, `COMMIT`)
	mu.Lock()
	t.Logf("%d inserts, the slowest took %s", inserts, worst)
	require.Zero(t, refused)
	mu.Unlock()

	do(t, user, `BEGIN`)
	do(t, user, `INSERT INTO outbox (aggregate_id) VALUES (2)`)
	dropper := d.session()
	do(t, dropper, `SET lock_timeout = '5s'`)
	wg.Go(func() { _, _ = dropper.Exec(context.Background(), `DROP TABLE `+plain) })
	eventually(t, "a plain DROP is in the way", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return refused > 0
	})
	do(t, user, `COMMIT`)
	cancel()
	wg.Wait()
}

// A round is done by one relay at a time, and begins with the relay.
func TestPartitionsByRelay(t *testing.T) {
	t.Parallel()
	d := newDB(t, partDDL, `CREATE INDEX ON outbox (seq)`)
	old := d.day(5)
	d.day(0)
	h := d.house(deleting(byDay))
	other := d.session()
	do(t, other, fmt.Sprintf(`SELECT pg_advisory_lock(%d)`, housekeeperKey(h.l.Table.OID)))
	require.NoError(t, h.round(context.Background()))
	require.True(t, d.exists(old), "another one keeps house")
	do(t, other, `SELECT pg_advisory_unlock_all()`)
	r := startRelay(t, d.dsn, relayOptions{config: deleting(byDay)})
	eventually(t, "the round is done and told of", func() bool { return metric(r, "partitions_dropped_total") == 1 })
	require.False(t, d.exists(old))
	require.InDelta(t, 2, metric(r, "partitions_ahead"), 0)
	require.InDelta(t, 2, metric(r, "partitions_created_total"), 0)
	require.InDelta(t, 0, metric(r, "oldest_partition_seconds"), 0)
	r.drain()
}

// A role that is a member of the owner is enough; what it makes belongs to the owner.
func TestPartitionsOwner(t *testing.T) {
	t.Parallel()
	d, _ := privateDB(t, nil, `CREATE ROLE owner`, `CREATE ROLE keeper LOGIN`, `CREATE SCHEMA s`, `GRANT USAGE ON SCHEMA s TO owner, keeper`,
		strings.Replace(partDDL, "TABLE outbox", "TABLE s.outbox", 1), `ALTER TABLE s.outbox OWNER TO owner`, `GRANT SELECT, DELETE ON s.outbox TO keeper`)
	cc, err := pgconn.ParseConfig(d.dsn)
	require.NoError(t, err)
	conf := merged(deleting(byDay), map[string]any{"table": "s.outbox", "dsn": strings.Replace(d.dsn, cc.User+"@", "keeper@", 1)})
	for range 2 {
		r := startRelay(t, d.dsn, relayOptions{config: conf})
		require.Equal(t, "retention_not_owner", r.awaitFault().GetCode())
		f := find(examine(t, conf), "retention_not_owner")
		require.NotNil(t, f)
		d.mend(f)
	}
	require.NoError(t, d.house(conf).round(context.Background()))
	require.Equal(t, 3, d.int(`SELECT count(*) FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid WHERE pg_get_userbyid(c.relowner) = 'owner' AND c.relkind = 'r'`))
}

// What cannot be kept house for is refused at the start, with the reason.
func TestRetentionRefused(t *testing.T) {
	t.Parallel()
	const plain = seqDDL
	for name, c := range map[string]struct {
		ddl  []string
		conf map[string]any
		code string
		text string
	}{
		"nothing to do":      {[]string{plain}, deleting(map[string]any{"after": "7d"}), "config_invalid", "nothing to take away"},
		"kept, one by one":   {[]string{keptDDL, keptTxIndex}, keeping("retention", map[string]any{"after": "7d"}), "config_invalid", "go whole or not at all"},
		"kept, not by time":  {[]string{keptDDL, keptTxIndex}, keeping("retention", byDay), "retention_partition_key", ""},
		"too short":          {[]string{plain}, deleting(map[string]any{"after": "10m", "every": "day"}), "config_invalid", "1h"},
		"no after":           {[]string{plain}, deleting(map[string]any{"every": "day"}), "config_invalid", "after"},
		"unknown period":     {[]string{plain}, deleting(map[string]any{"after": "7d", "every": "1d"}), "config_invalid", "every"},
		"ahead of nothing":   {[]string{fmt.Sprintf(markDDL, "")}, marking("retention", map[string]any{"after": "7d", "ahead": 3}), "config_invalid", "counts partitions"},
		"no time of marking": {[]string{fmt.Sprintf(markDDL, "")}, marking("retention", map[string]any{"after": "7d"}, "after_publish", map[string]any{"set": map[string]any{"status": "'sent'"}}), "config_invalid", "timestamptz"},
		"not a timestamptz": {
			[]string{strings.Replace(fmt.Sprintf(markDDL, ""), "published_at timestamptz", "published_at timestamp", 1)},
			markingParts(map[string]any{"after": "7d"}), "retention_marker_missing", "",
		},
		"not partitioned": {[]string{plain}, deleting(byDay), "retention_partition_key", ""},
		"by hash":         {[]string{strings.Replace(partDDL, "RANGE (created_at)", "HASH (id)", 1)}, deleting(byDay), "retention_partition_key", ""},
		"by a number":     {[]string{strings.NewReplacer("RANGE (created_at)", "RANGE (aggregate_id)", ", created_at)", ", aggregate_id)").Replace(partDDL)}, deleting(byDay), "retention_partition_key", ""},
		"hours of days":   {[]string{strings.Replace(partDDL, "timestamptz NOT NULL", "date NOT NULL", 1)}, deleting(map[string]any{"after": "7d", "every": "hour"}), "retention_partition_key", "a day"},
		"default":         {[]string{partDDL, `CREATE TABLE rest PARTITION OF outbox DEFAULT`}, deleting(byDay), "retention_default_partition", ""},
		"foreign key": {
			[]string{partDDL, `CREATE TABLE sent (id uuid, at timestamptz, FOREIGN KEY (id, at) REFERENCES outbox)`}, deleting(byDay), "retention_foreign_key", "sent",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDB(t, c.ddl...)
			f := startRelay(t, d.dsn, relayOptions{config: c.conf}).awaitFault()
			require.Equal(t, c.code, f.GetCode(), f.GetMessage())
			require.EqualValues(t, sdk.ClassConfig, f.GetClass())
			require.Contains(t, f.GetMessage()+f.GetHint(), c.text)
		})
	}
}

// A foreign key of the outbox has what it points at locked for a moment: while a transaction is in the way of that, its
// writers do not wait behind it for longer than they would notice.
func TestPartitionsWithForeignKey(t *testing.T) {
	t.Parallel()
	d := newDB(t, partDDL, `CREATE TABLE orders (id bigint PRIMARY KEY)`, `ALTER TABLE outbox ADD FOREIGN KEY (aggregate_id) REFERENCES orders`)
	old := d.day(5)
	d.day(0)
	h := d.house(deleting(byDay))
	writer := d.session()
	do(t, writer, `BEGIN`)
	do(t, writer, `INSERT INTO orders VALUES (1)`)
	other := d.session()
	do(t, other, `SET lock_timeout = '900ms'`)
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { err = h.round(context.Background()) })
	for n := 2; ; n++ {
		do(t, other, `INSERT INTO orders VALUES ($1)`, n)
		if d.int(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'relevo/p/housekeeper' AND datname = current_database()`) == 0 && n > 50 {
			break
		}
	}
	wg.Wait()
	require.ErrorContains(t, err, "make a partition")
	do(t, writer, `COMMIT`)
	eventually(t, "all is done", func() bool { return h.round(context.Background()) == nil })
	require.False(t, d.exists(old))
	require.EqualValues(t, 2, h.figures.created)
}
