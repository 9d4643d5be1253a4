package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/sdk"
)

// horizonOf looks at what is open for longer than no time at all.
func horizonOf(t *testing.T, dsn string) map[string]sdk.Finding {
	t.Helper()
	d := doctor{c: conf(t, dsn)}
	require.NoError(t, d.look(context.Background(), "p"))
	found := map[string]sdk.Finding{}
	for _, f := range d.findings {
		found[f.Code] = f
	}
	return found
}

// What holds deleted rows: each is told with who it is, and ended by its SQL.
func TestDoctorEndsWhatHoldsRows(t *testing.T) {
	t.Parallel()
	d, _ := privateDB(t, map[string]string{"max_prepared_transactions": "2"}, seqDDL, `CREATE ROLE relay LOGIN`, `GRANT SELECT, DELETE ON outbox TO relay`,
		`CREATE DATABASE other`)
	ends := func(code string, words ...string) {
		t.Helper()
		f := horizonOf(t, d.dsn)[code]
		require.Equal(t, sdk.Warning, f.Severity, code)
		for _, w := range append(words, "each read passes them") {
			require.Contains(t, f.Message, w)
		}
		require.NotContains(t, f.Message, "secret")
		do(t, d.conn, f.SQL)
		eventually(t, "no "+code, func() bool { return horizonOf(t, d.dsn)[code].Code == "" })
	}

	open := d.session()
	do(t, open, `SET application_name = 'report'`)
	do(t, open, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
	do(t, open, `SELECT 'secret'`)
	require.NotContains(t, horizonOf(t, d.dsn), "horizon")
	hidden := horizonOf(t, d.as("relay"))
	require.Contains(t, hidden["activity_hidden"].Message, "pg_read_all_stats")
	require.NotContains(t, hidden, "horizon_held", "the time is not visible, and it is a few transactions old")
	require.Contains(t, horizonOf(t, d.dsn)["horizon_held"].SQL, fmt.Sprint(open.PgConn().PID()))
	ends("horizon_held", `application "report"`, "idle in transaction", "database postgres")

	do(t, d.session(), `BEGIN`) // neither a snapshot nor a write: it holds nothing
	require.NotContains(t, horizonOf(t, d.dsn), "horizon_held")

	elsewhere, err := pgx.Connect(context.Background(), d.dsn+"&dbname=other")
	require.NoError(t, err)
	t.Cleanup(func() { _ = elsewhere.Close(context.Background()) })
	do(t, elsewhere, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
	do(t, elsewhere, `SELECT 1`)
	require.NotContains(t, horizonOf(t, d.dsn), "horizon_held", "a snapshot of another database")
	do(t, elsewhere, `SELECT pg_current_xact_id()`)
	ends("horizon_held", "database other")

	prepared := d.session()
	do(t, prepared, `BEGIN`)
	do(t, prepared, `INSERT INTO outbox (type) VALUES ('t')`)
	do(t, prepared, `PREPARE TRANSACTION 'it''s'`)
	ends("horizon_prepared", "it's", "database postgres")

	standbyAway(t, d)
	ends("horizon_slot", `"away"`)
	require.Contains(t, horizonOf(t, d.dsn), "horizon")
}

// standbyAway leaves a slot as a standby with hot_standby_feedback does that goes away.
func standbyAway(t *testing.T, d *db) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d.exec(`SELECT pg_create_physical_replication_slot('away', true)`)
	cc, err := pgconn.ParseConfig(d.dsn)
	require.NoError(t, err)
	cc.RuntimeParams["replication"] = "true"
	conn, err := pgconn.ConnectConfig(ctx, cc)
	require.NoError(t, err)
	conn.Frontend().Send(&pgproto3.Query{String: `START_REPLICATION SLOT away PHYSICAL ` + d.text(`SELECT pg_current_wal_lsn()::text`)})
	feedback := append([]byte{'h'}, make([]byte, 24)...) // time, xmin, its epoch, catalog_xmin, its epoch
	binary.BigEndian.PutUint32(feedback[9:], uint32(d.int(`SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int`)))
	require.NoError(t, conn.Frontend().Flush())
	for {
		m, err := conn.ReceiveMessage(ctx)
		require.NoError(t, err)
		if _, ok := m.(*pgproto3.CopyBothResponse); ok {
			break
		}
	}
	conn.Frontend().Send(&pgproto3.CopyData{Data: feedback})
	require.NoError(t, conn.Frontend().Flush())
	eventually(t, "the slot has an xmin", func() bool { return d.int(`SELECT count(*) FROM pg_replication_slots WHERE xmin IS NOT NULL`) == 1 })
	require.NoError(t, conn.Close(ctx))
	eventually(t, "the slot is free", func() bool { return d.int(`SELECT count(*) FROM pg_replication_slots WHERE NOT active`) == 1 })
}

// What belongs to the server as a whole, and to the role.
func TestDoctorMendsServerSettings(t *testing.T) {
	t.Parallel()
	d, p := privateDB(t, map[string]string{"max_connections": "12"}, seqDDL)
	conf := map[string]any{"dsn": d.dsn}

	d.exec(`ALTER SYSTEM SET synchronous_standby_names = 'replica'`)
	d.exec(`SELECT pg_reload_conf()`)
	d.mended(conf, "synchronous_standby_missing", severityWarning, "replica")

	f := find(examine(t, conf), "role_superuser")
	require.Equal(t, severityWarning, f.GetSeverity())
	d.mend(f)
	conf["dsn"] = d.as("relevo")
	require.Nil(t, find(examine(t, conf), "role_superuser"))
	require.Equal(t, severityOK, find(examine(t, conf), "privileges").GetSeverity())
	startRelay(t, d.as("relevo"), relayOptions{}).awaitOpened()

	conf["dsn"] = d.dsn
	require.NotNil(t, find(examine(t, conf), "connections"))
	for range 4 { // beside the relay's two, of nine
		d.session()
	}
	f = awaitFinding(t, conf, "connections_scarce")
	require.Contains(t, f.GetMessage(), "of 9 connections")
	d.mend(f)
	p.Restart()
	require.NotNil(t, find(examine(t, conf), "connections"))
}

// Behind a transaction pooler a setting is made for the service, too, and stays.
func TestDoctorSetsNothingInPool(t *testing.T) {
	t.Parallel()
	d := newDB(t, seqDDL)
	p := startPooler(t, d.dsn, true)
	require.NotNil(t, find(examine(t, map[string]any{"dsn": poolerDSN(d, p)}), "pooler_transaction_mode"))
	p.nothingSet()
}
