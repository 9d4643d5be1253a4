package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// examine asks a plugin for its findings.
func examine(t *testing.T, conf map[string]any) []*pluginv1.Finding {
	t.Helper()
	b, err := json.Marshal(conf)
	require.NoError(t, err)
	resp, err := pluginv1.NewPluginServiceClient(serve(t)).Check(context.Background(),
		&pluginv1.CheckRequest{Config: b, Instance: &pluginv1.Instance{Pipeline: "p", Name: "source"}})
	require.NoError(t, err)
	return resp.GetFindings()
}

func find(fs []*pluginv1.Finding, code string) *pluginv1.Finding {
	for _, f := range fs {
		if f.GetCode() == code {
			return f
		}
	}
	return nil
}

const (
	severityOK      = pluginv1.Severity_SEVERITY_OK
	severityWarning = pluginv1.Severity_SEVERITY_WARNING
	severityError   = pluginv1.Severity_SEVERITY_ERROR
)

func TestDoctorOfAGoodTable(t *testing.T) {
	t.Parallel()
	d, _ := privateDB(t, nil, seqDDL, `CREATE ROLE relay LOGIN`, `GRANT SELECT, DELETE ON outbox TO relay`,
		`INSERT INTO outbox (aggregate_id, type, payload, created_at) VALUES (1, 't', '{}', now() - interval '5 minutes')`)
	dsn := d.as("relay")
	fs := examine(t, map[string]any{"dsn": dsn})
	for _, f := range fs {
		require.Equal(t, severityOK, f.GetSeverity(), "%s: %s", f.GetCode(), f.GetMessage())
	}
	for code, words := range map[string]string{
		"reachable": "PostgreSQL", "sessions": "no transaction pooler", "table": `"public"."outbox"`, "privileges": "read and delete", "order": "per key",
		"rows_deleted": "WILL be deleted", "leader": "no relay reads", "autovacuum": "cleans", "synchronous_commit": "durable", "connections": "in use", "activity_hidden": `GRANT pg_read_all_stats TO "relay"`,
		"backlog": "about 1 rows wait, the oldest for 5m",
	} {
		require.NotNil(t, find(fs, code), code)
		require.Contains(t, find(fs, code).GetMessage(), words)
	}
	d.exec(`GRANT pg_read_all_stats TO relay`)
	r := startRelay(t, dsn, relayOptions{})
	r.awaitGot(1)
	eventually(t, "the row is deleted", func() bool { return d.int(`SELECT count(*) FROM outbox`) == 0 })
	fs = examine(t, map[string]any{"dsn": dsn})
	require.Contains(t, find(fs, "leader").GetMessage(), "relevo/p/source from 127.0.0.1")
	require.Contains(t, find(fs, "backlog").GetMessage(), "no row waits")
	require.Contains(t, find(fs, "horizon").GetMessage(), "no transaction has been open")
	r.drain()
}

// as is the DSN of another role.
func (d *db) as(role string) string {
	d.t.Helper()
	cc, err := pgconn.ParseConfig(d.dsn)
	require.NoError(d.t, err)
	return strings.Replace(d.dsn, cc.User+"@", role+"@", 1)
}

// Each finding is made, its SQL is run, and it is gone.
func TestDoctorMends(t *testing.T) {
	t.Parallel()
	const table = `CREATE TABLE outbox (id uuid PRIMARY KEY, aggregate_id bigint, type text, payload jsonb, created_at timestamptz DEFAULT now()`
	for _, c := range []struct {
		code     string
		severity pluginv1.Severity
		ddl      []string
		config   map[string]any
		path     string
	}{
		{code: "order_best_effort", severity: severityWarning, ddl: []string{table + `)`}, path: "/columns/order"},
		{code: "order_best_effort", severity: severityWarning, ddl: []string{table + `, seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 20) UNIQUE)`}},
		{code: "order_best_effort", severity: severityWarning, ddl: []string{table + `, seq int NOT NULL UNIQUE)`, `INSERT INTO outbox (id, seq) VALUES (gen_random_uuid(), 5)`}},
		{code: "order_best_effort", severity: severityWarning, ddl: []string{`CREATE SEQUENCE "My Seq" CYCLE`, table + `, seq bigint NOT NULL DEFAULT nextval('"My Seq"') UNIQUE)`}},
		{code: "order_index_missing", severity: severityWarning, ddl: []string{table + `, seq bigint GENERATED ALWAYS AS IDENTITY)`}},
		{code: "order_nullable", severity: severityError, ddl: []string{table + `, seq bigint UNIQUE)`}},
		{code: "unique_index_missing", severity: severityError, ddl: []string{strings.Replace(seqDDL, "PRIMARY KEY", "NOT NULL", 1)}, path: "/columns/id"},
		{code: "id_nullable", severity: severityError, ddl: []string{strings.Replace(table, "PRIMARY KEY", "UNIQUE", 1) + `)`}},
		{code: "autovacuum_off", severity: severityWarning, ddl: []string{seqDDL, `ALTER TABLE outbox SET (autovacuum_enabled = off)`}},
		{code: "replica_identity_missing", severity: severityError, ddl: []string{strings.Replace(seqDDL, "PRIMARY KEY", "NOT NULL UNIQUE", 1), `CREATE PUBLICATION p FOR TABLE outbox`}},
		{
			code: "pointer_column_not_json", severity: severityError, ddl: []string{strings.Replace(seqDDL, "headers jsonb", "headers text", 1)},
			config: map[string]any{"after_publish": "delete", "columns": map[string]any{"key": "headers#/k"}},
		},
	} {
		t.Run(c.code, func(t *testing.T) {
			t.Parallel()
			d := newDB(t, c.ddl...)
			conf := c.config
			if conf == nil {
				conf = map[string]any{}
			}
			conf["dsn"] = d.dsn
			f := find(examine(t, conf), c.code)
			require.NotNil(t, f)
			require.Equal(t, c.severity, f.GetSeverity())
			require.NotEmpty(t, f.GetHint())
			if c.path != "" {
				require.Equal(t, c.path, f.GetPath())
			}
			d.mend(f)
			require.Nil(t, find(examine(t, conf), c.code))
			if c.severity == severityError {
				startRelay(t, d.dsn, relayOptions{config: conf}).awaitOpened()
			}
		})
	}
}

// mend runs a finding's SQL, as a person would: statement by statement.
func (d *db) mend(f *pluginv1.Finding) {
	d.t.Helper()
	require.NotEmpty(d.t, f.GetSql())
	for s := range strings.SplitSeq(strings.TrimSuffix(f.GetSql(), ";"), ";") {
		d.exec(s)
	}
}

// What belongs to the whole server: roles and settings.
func TestDoctorMendsServer(t *testing.T) {
	t.Parallel()
	d, _ := privateDB(t, nil, `CREATE SCHEMA s`, strings.Replace(seqDDL, "TABLE outbox", "TABLE s.outbox", 1), `CREATE ROLE "Relay" LOGIN`)
	dsn := d.as("Relay")
	conf := map[string]any{"dsn": dsn, "table": "s.outbox"}
	mended := func(code string) {
		t.Helper()
		f := find(examine(t, conf), code)
		require.NotNil(t, f, code)
		d.mend(f)
		require.Nil(t, find(examine(t, conf), code))
	}
	f := startRelay(t, dsn, relayOptions{config: conf}).awaitFault()
	require.Equal(t, "privilege_missing", f.GetCode())
	require.Contains(t, f.GetHint(), `GRANT SELECT, DELETE ON "s"."outbox" TO "Relay"`)
	mended("privilege_missing")
	d.exec(`ALTER TABLE s.outbox ENABLE ROW LEVEL SECURITY`)
	mended("row_security")
	for _, s := range []string{
		`ALTER SYSTEM SET synchronous_commit = off`,
		`ALTER DATABASE postgres SET synchronous_commit = off`,
		`ALTER ROLE postgres SET synchronous_commit = off`,
		`ALTER ROLE "Relay" IN DATABASE postgres SET synchronous_commit = off`,
	} {
		d.exec(s)
		d.exec(`SELECT pg_reload_conf()`)
		eventually(t, "the setting is seen", func() bool { return find(examine(t, conf), "synchronous_commit_off") != nil })
		d.mend(find(examine(t, conf), "synchronous_commit_off"))
		eventually(t, "the finding is gone", func() bool { return find(examine(t, conf), "synchronous_commit_off") == nil })
	}
	d.exec(`ALTER SYSTEM SET autovacuum = off`)
	d.exec(`SELECT pg_reload_conf()`)
	eventually(t, "the setting is seen", func() bool { return find(examine(t, conf), "autovacuum_off") != nil })
	d.mend(find(examine(t, conf), "autovacuum_off"))
	eventually(t, "the finding is gone", func() bool { return find(examine(t, conf), "autovacuum_off") == nil })
	r := startRelay(t, dsn, relayOptions{config: conf})
	r.awaitOpened()
	r.drain()
}

// What no SQL mends.
func TestDoctorWithoutSQL(t *testing.T) {
	t.Parallel()
	d := newDB(t, `CREATE TABLE outbox (id uuid PRIMARY KEY, aggregate_id bigint, type text, payload jsonb, created_at timestamp, seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE)`)
	f := find(examine(t, map[string]any{"dsn": d.dsn}), "time_zone_missing")
	require.Equal(t, severityWarning, f.GetSeverity())
	require.Nil(t, find(examine(t, map[string]any{"dsn": d.dsn, "after_publish": "delete", "columns": map[string]any{
		"time": map[string]any{"column": "created_at", "zone": "UTC"},
	}}), "time_zone_missing"))

	require.Equal(t, severityError, find(examine(t, map[string]any{"dsn": "postgres://127.0.0.1:1/x"}), "connection_lost").GetSeverity())
	require.Equal(t, severityError, find(examine(t, map[string]any{"dsn": poolerDSN(d, startPooler(t, d.dsn, true))}), "pooler_transaction_mode").GetSeverity())
	require.Contains(t, find(examine(t, map[string]any{"dsn": d.dsn, "table": "Outbox"}), "table_missing").GetHint(), `"outbox"`)
	both := examine(t, map[string]any{"dsn": d.dsn, "after_publish": "delete", "columns": map[string]any{"key": "k", "type": "Type"}})
	n := 0
	for _, f := range both {
		if f.GetCode() == "column_missing" {
			n++
		}
	}
	require.Equal(t, 2, n, "all faults at once")
}
