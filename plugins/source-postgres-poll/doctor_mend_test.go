package main

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
	"github.com/relevo-io/relevo/sdk"
)

// elsewhere runs statements in a session that ends: only then are its counts sure to be seen.
func (d *db) elsewhere(sql ...string) {
	d.t.Helper()
	ctx := context.Background()
	c, err := pgx.Connect(ctx, d.dsn)
	require.NoError(d.t, err)
	for _, s := range sql {
		do(d.t, c, s)
	}
	require.NoError(d.t, c.Close(ctx))
}

// awaitFinding asks until the finding is there: statistics come late.
func awaitFinding(t *testing.T, conf map[string]any, code string) *pluginv1.Finding {
	t.Helper()
	var f *pluginv1.Finding
	eventually(t, code, func() bool {
		f = find(examine(t, conf), code)
		return f != nil
	})
	return f
}

// mended makes sure of a finding, runs its SQL, and waits until it is gone.
func (d *db) mended(conf map[string]any, code string, severity pluginv1.Severity, words ...string) {
	d.t.Helper()
	t := d.t.(*testing.T)
	f := awaitFinding(t, conf, code)
	require.Equal(t, severity, f.GetSeverity())
	require.NotEmpty(t, f.GetHint())
	for _, w := range words {
		require.Contains(t, f.GetMessage()+" "+f.GetSql(), w)
	}
	d.mend(f)
	eventually(t, "no "+code, func() bool { return find(examine(t, conf), code) == nil })
}

const (
	notifyFunction = `CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('outbox', ''); RETURN NULL; END $$`
	nothing        = `CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`
	markedDDL      = `CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_id bigint, type text NOT NULL DEFAULT 't', payload jsonb,
		seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE, published_at timestamptz)`
)

// Each situation is made, and the SQL of its finding mends it.
func TestDoctorMendsTable(t *testing.T) {
	t.Parallel()
	marked := func() map[string]any {
		return map[string]any{"pending": "published_at IS NULL", "after_publish": map[string]any{"set": map[string]any{"published_at": "now()"}}}
	}
	const partitioned = `CREATE TABLE outbox (id uuid, aggregate_id bigint, type text, payload jsonb, created_at timestamptz DEFAULT now(),
		seq bigint GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at)`
	for name, c := range map[string]struct {
		code     string
		severity pluginv1.Severity // 0: a warning
		ddl      []string
		config   map[string]any
		words    []string
	}{
		"order index in one partition only": {
			code: "order_index_missing",
			ddl: []string{
				partitioned, `CREATE TABLE outbox_a PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO ('2026-01-01')`, `CREATE INDEX ON outbox_a (seq)`,
				`CREATE TABLE outbox_b PARTITION OF outbox FOR VALUES FROM ('2026-01-01') TO (MAXVALUE)`,
			},
			words: []string{"CREATE INDEX ON"},
		},
		"order index without the condition": {
			code: "pending_index_missing", ddl: []string{markedDDL, `INSERT INTO outbox (published_at) SELECT now() FROM generate_series(1, 2000)`},
			config: marked(), words: []string{"WHERE published_at IS NULL"},
		},
		"order index without the condition, empty": {code: "pending_index_missing", ddl: []string{markedDDL}, config: marked()},
		"no order index at all": {
			code: "order_index_missing", ddl: []string{strings.Replace(markedDDL, "IDENTITY UNIQUE", "IDENTITY", 1)},
			config: marked(), words: []string{"WHERE published_at IS NULL"},
		},
		"id in another collation": {
			code: "id_index_unusable",
			ddl: []string{
				`CREATE TABLE outbox (id text NOT NULL, aggregate_id bigint, type text, payload jsonb)`,
				`CREATE UNIQUE INDEX ON outbox (id COLLATE "POSIX")`,
			},
		},
		"trigger that notifies": {
			code: "trigger_notifies", ddl: []string{seqDDL, notifyFunction, `CREATE TRIGGER "Tell" AFTER INSERT ON outbox FOR EACH STATEMENT EXECUTE FUNCTION tell()`},
			words: []string{`"Tell"`, "a quarter"},
		},
		"trigger on DELETE": {
			code: "trigger_on_removal", ddl: []string{seqDDL, nothing, `CREATE TRIGGER log AFTER DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION nothing()`},
			words: []string{"deletes a row"},
		},
		"trigger on UPDATE": {
			code: "trigger_on_removal", ddl: []string{markedDDL, nothing, `CREATE TRIGGER log AFTER UPDATE OF published_at ON outbox FOR EACH ROW EXECUTE FUNCTION nothing()`},
			config: marked(), words: []string{"marks a row"},
		},
		"rule on DELETE": {
			code: "rule_rewrites", severity: severityError, ddl: []string{seqDDL, `CREATE RULE keep AS ON DELETE TO outbox DO INSTEAD NOTHING`},
		},
		"rule on UPDATE": {
			code: "rule_rewrites", severity: severityError, config: marked(),
			ddl: []string{markedDDL, `CREATE TABLE log (id uuid)`, `CREATE RULE more AS ON UPDATE TO outbox DO ALSO INSERT INTO log VALUES (old.id)`},
		},
		"foreign key at the outbox": {
			code: "foreign_key_keeps_rows", ddl: []string{seqDDL, `CREATE TABLE "Log" (outbox_id uuid PRIMARY KEY REFERENCES outbox)`}, words: []string{`"Log"`},
		},
		"foreign key at the outbox, without index": {
			code: "foreign_key_not_indexed", ddl: []string{seqDDL, `CREATE TABLE log (n int, "outbox id" uuid REFERENCES outbox ON DELETE CASCADE)`, `CREATE INDEX ON log (n, "outbox id")`},
		},
		"foreign key that deletes events": {
			code: "foreign_key_deletes_events", ddl: []string{`CREATE TABLE orders (id bigint PRIMARY KEY)`, seqDDL, `ALTER TABLE outbox ADD FOREIGN KEY (aggregate_id) REFERENCES orders ON DELETE CASCADE`},
		},
		"int identity near its end": {
			code:  "sequence_ending",
			ddl:   []string{strings.Replace(seqDDL, "seq bigint", "seq int", 1), `SELECT setval('outbox_seq_seq', 2000000000)`},
			words: []string{"2,000,000,000 of 2,147,483,647"},
		},
		"serial near its end": {
			code: "sequence_ending",
			ddl:  []string{strings.Replace(seqDDL, "seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1)", "seq serial", 1), `SELECT setval('outbox_seq_seq', 2000000000)`},
		},
		"sequence with an end": {
			code:  "sequence_ending",
			ddl:   []string{strings.Replace(seqDDL, "CACHE 1", "MAXVALUE 1000", 1), `INSERT INTO outbox (type) SELECT 't' FROM generate_series(1, 900)`},
			words: []string{"NO MAXVALUE"},
		},
		"index that is not valid": {
			code: "index_invalid", ddl: []string{seqDDL, `CREATE INDEX half ON outbox (type)`, `UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'half'::regclass`},
		},
		"statistics of a backlog": {
			code: "autovacuum_late", ddl: []string{seqDDL, `UPDATE pg_class SET reltuples = 5000000 WHERE relname = 'outbox'`},
			words: []string{"after 1,000,050 dead rows (20% of 5,000,000)", "autovacuum_vacuum_scale_factor = 0", "toast."},
		},
		"autovacuum of a partition": {
			code: "autovacuum_off",
			ddl:  []string{partitioned, `CREATE TABLE outbox_a PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO (MAXVALUE) WITH (autovacuum_enabled = off)`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDB(t, c.ddl...)
			conf := map[string]any{"dsn": d.dsn}
			for k, v := range c.config {
				conf[k] = v
			}
			if c.severity == 0 {
				c.severity = severityWarning
			}
			if c.severity == severityError {
				require.Equal(t, c.code, startRelay(t, d.dsn, relayOptions{config: conf}).awaitFault().GetCode())
			}
			d.mended(conf, c.code, c.severity, c.words...)
			startRelay(t, d.dsn, relayOptions{config: conf}).awaitOpened()
		})
	}
}

// What has grown: many rows are needed to see it.
func TestDoctorMendsSize(t *testing.T) {
	t.Parallel()
	t.Run("dead rows", func(t *testing.T) {
		t.Parallel()
		d := newDB(t, strings.TrimSuffix(seqDDL, ")")+`) WITH (autovacuum_enabled = off)`, `CREATE INDEX by_type ON outbox (type)`)
		d.elsewhere(`INSERT INTO outbox (type) SELECT 't' FROM generate_series(1, 110000)`, `DELETE FROM outbox`)
		conf := map[string]any{"dsn": d.dsn}
		d.mended(conf, "dead_rows", severityWarning, "110,000 dead rows and 0 live ones; last vacuum: never")
		d.mended(conf, "index_unused", severityWarning, "by_type", "110,000 rows")
		require.Nil(t, find(examine(t, conf), "table_bloated"))
	})
	t.Run("bloat", func(t *testing.T) {
		t.Parallel()
		d := newDB(t, seqDDL, `ALTER TABLE outbox ALTER COLUMN payload SET STORAGE PLAIN`)
		d.elsewhere(`INSERT INTO outbox (type, payload) SELECT 't', to_jsonb(repeat('x', 7000)) FROM generate_series(1, 10000)`, `DELETE FROM outbox`)
		d.mended(map[string]any{"dsn": d.dsn}, "table_bloated", severityWarning, "for about 0 rows")
	})
}

// Partitions: the ones that are missing are made as the others are.
func TestDoctorMendsPartitions(t *testing.T) {
	t.Parallel()
	const table = `CREATE TABLE outbox (id uuid DEFAULT gen_random_uuid(), aggregate_id bigint, type text, payload jsonb, created_at timestamptz DEFAULT now(),
		seq bigint GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at)`
	part := func(d *db, from, to int) {
		day := time.Now().UTC().Truncate(24 * time.Hour)
		f, u := day.AddDate(0, 0, from), day.AddDate(0, 0, to)
		d.exec(`CREATE TABLE outbox_` + f.Format("20060102") + ` PARTITION OF outbox FOR VALUES FROM ('` + f.Format(time.RFC3339) + `') TO ('` + u.Format(time.RFC3339) + `')`)
	}
	for name, c := range map[string]struct {
		code     string
		severity pluginv1.Severity
		last     int // day
		ddl      string
		words    string
	}{
		"over":                   {code: "partition_missing", severity: severityError, last: -1, words: "cannot insert"},
		"ending":                 {code: "partitions_ending", severity: severityWarning, last: 0, words: "then the service cannot insert"},
		"over, with a default":   {code: "partitions_ending", severity: severityWarning, last: -1, ddl: `CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT`, words: "outbox_rest"},
		"ending, with a default": {code: "partitions_ending", severity: severityWarning, last: 0, ddl: `CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT`, words: "outbox_rest"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDB(t, table, `CREATE INDEX ON outbox (seq)`)
			part(d, c.last-1, c.last)
			part(d, c.last, c.last+1)
			if c.ddl != "" {
				d.exec(c.ddl)
			}
			conf := map[string]any{"dsn": d.dsn}
			d.mended(conf, c.code, c.severity, c.words, "outbox_"+time.Now().UTC().AddDate(0, 0, 2).Format("20060102"))
			require.NotNil(t, find(examine(t, conf), "partitions"))
			d.exec(`INSERT INTO outbox (type, created_at) VALUES ('t', now() + interval '1 day')`)
			require.Nil(t, find(examine(t, conf), "default_partition_filled"))
			if c.ddl != "" {
				d.exec(`INSERT INTO outbox (type, created_at) VALUES ('t', now() + interval '1 year')`)
				require.NotNil(t, find(examine(t, conf), "default_partition_filled"))
			}
		})
	}
	t.Run("many", func(t *testing.T) {
		t.Parallel()
		d := newDB(t, table)
		for i := range manyPartitions + 1 {
			part(d, i, i+1)
		}
		require.Contains(t, find(examine(t, map[string]any{"dsn": d.dsn}), "partitions_many").GetMessage(), "101 partitions")
	})
}

// What is told and needs no SQL.
func TestDoctorTells(t *testing.T) {
	t.Parallel()
	d := newDB(t, strings.Replace(seqDDL, "UNIQUE", "UNIQUE, tx xid8 DEFAULT pg_current_xact_id()", 1), `CREATE PUBLICATION all_of_it FOR TABLE outbox`,
		`INSERT INTO outbox (type, headers) VALUES ('t', '[1]')`)
	fs := examine(t, map[string]any{"dsn": d.dsn})
	for _, code := range []string{"tx_after_order", "publication_has_outbox"} {
		require.Equal(t, severityOK, find(fs, code).GetSeverity(), code)
	}
	require.Equal(t, severityWarning, find(fs, "row_refused").GetSeverity())
	d.exec(`UPDATE outbox SET headers = '{}'`)
	fs = examine(t, map[string]any{"dsn": d.dsn})
	require.Nil(t, find(fs, "row_refused"))
	require.Contains(t, find(fs, "backlog").GetMessage(), "the oldest for")

	d = newDB(t, strings.Replace(seqDDL, "seq bigint", "tx xid8 DEFAULT pg_current_xact_id(), seq bigint", 1))
	require.Nil(t, find(examine(t, map[string]any{"dsn": d.dsn}), "tx_after_order"))
}

// What may not be looked at is told, and the rest is looked at all the same.
func TestDoctorGoesOn(t *testing.T) {
	t.Parallel()
	d := newDB(t, seqDDL)
	blocker := d.session()
	do(t, blocker, `BEGIN`)
	do(t, blocker, `LOCK TABLE outbox`)
	fs := examine(t, map[string]any{"dsn": d.dsn})
	require.Contains(t, find(fs, "not_looked_at").GetMessage(), "lock timeout")
	require.NotNil(t, find(fs, "leader"))
}

// A doctor changes nothing: its session could not.
func TestDoctorIsReadOnly(t *testing.T) {
	t.Parallel()
	d := newDB(t, seqDDL)
	s, err := connect(context.Background(), conf(t, d.dsn), "p", "doctor", doctorSettings)
	require.NoError(t, err)
	defer s.close()
	_, err = s.conn.Exec(context.Background(), `INSERT INTO outbox (type) VALUES ('t')`)
	require.True(t, isCode(err, "25006"), "%v", err)
}

func conf(t *testing.T, dsn string) config {
	t.Helper()
	c := defaultConfig()
	c.DSN = sdk.Secret(dsn)
	return c
}

func TestPlainText(t *testing.T) {
	t.Parallel()
	for addr, warns := range map[string]bool{"10.0.0.1": true, "2001:db8::1": true, "127.0.0.1": false, "::1": false} {
		tcp := &net.TCPAddr{IP: net.ParseIP(addr), Port: 5432}
		require.Equal(t, warns, plainText(tcp, false) != nil, addr)
		require.Nil(t, plainText(tcp, true))
	}
	require.Nil(t, plainText(&net.UnixAddr{Name: "/run/postgresql/.s.PGSQL.5432", Net: "unix"}, false))
}

func TestWriting(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1000: "-1,000", -100: "-100", 1234567: "1,234,567"} {
		require.Equal(t, want, grouped(n))
	}
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1536: "1.5 kB", 3 << 20: "3.0 MB", 5 << 30: "5.0 GB"} {
		require.Equal(t, want, size(n))
	}
	for d, want := range map[time.Duration]string{-time.Second: "0s", 1500 * time.Millisecond: "2s", 61 * time.Second: "1m", 5*time.Hour + 7*time.Minute: "5h07m", 49 * time.Hour: "2 days"} {
		require.Equal(t, want, lasting(d))
	}
}
