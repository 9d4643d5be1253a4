package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A dry round tells what would be done, and does nothing.
func TestDoctorRetention(t *testing.T) {
	t.Parallel()
	d := newDB(t, partDDL, `CREATE INDEX ON outbox (seq)`)
	goes, stays, viewed := d.day(7), d.day(6), d.day(5)
	today := d.day(0)
	d.exec(fmt.Sprintf(`INSERT INTO outbox (created_at) VALUES (%s)`, ago(6)))
	d.exec(`CREATE VIEW v AS SELECT * FROM ` + viewed)
	d.exec(`CREATE PUBLICATION parts FOR TABLE ` + today)
	conf := merged(deleting(byDay), map[string]any{"dsn": d.dsn})
	before := d.text(`SELECT string_agg(relname::text, ',' ORDER BY oid) FROM pg_class`)
	fs := examine(t, conf)
	require.Equal(t, before, d.text(`SELECT string_agg(relname::text, ',' ORDER BY oid) FROM pg_class`))
	require.Contains(t, find(fs, "retention_ahead").GetMessage(), "2 partitions would be made")
	require.Contains(t, find(fs, "retention_old").GetMessage(), goes)
	require.Contains(t, find(fs, "retention_old").GetMessage(), "WOULD be dropped")
	require.Contains(t, find(fs, "retention_stays").GetMessage(), stays)
	require.Contains(t, find(fs, "retention_stays").GetMessage(), "not published")
	require.Contains(t, find(fs, "retention_view").GetMessage(), viewed)
	require.Contains(t, find(fs, "retention_publication").GetMessage(), "parts")

	err := d.house(conf).round(context.Background())
	require.ErrorContains(t, err, "cannot drop table "+viewed)
	require.False(t, d.exists(goes))
	d.mend(find(fs, "retention_view"))
	d.mend(find(fs, "retention_publication"))
	d.exec(`DELETE FROM outbox`)
	require.NoError(t, d.house(conf).round(context.Background()))
	fs = examine(t, conf)
	require.Contains(t, find(fs, "retention_ahead").GetMessage(), "there are partitions until")
	require.Contains(t, find(fs, "retention_old").GetMessage(), "no partition would be dropped")
	for _, code := range []string{"retention_stays", "retention_view", "retention_publication"} {
		require.Nil(t, find(fs, code), code)
	}
}

// The index that reaping needs is made by the SQL of the finding, and then the doctor counts what would go.
func TestDoctorReaping(t *testing.T) {
	t.Parallel()
	d := newDB(t, fmt.Sprintf(markDDL, seqColumn), `INSERT INTO outbox (published_at) VALUES ('2024-01-01')`)
	conf := merged(reaping(), map[string]any{"dsn": d.dsn})
	d.mend(find(examine(t, conf), "retention_index_missing"))
	fs := examine(t, conf)
	require.Nil(t, find(fs, "retention_index_missing"))
	require.Contains(t, find(fs, "retention").GetMessage(), "7d after they were marked")
	require.Contains(t, find(fs, "retention").GetMessage(), ": 1 of them now")
	require.Equal(t, 1, d.int(`SELECT count(*) FROM outbox`))
}
