package main

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// What a look for new rows costs must not depend on how many are kept, whatever the statistics say: each statement finds
// its rows by an index, and passes none but its own.
func TestKeepPlans(t *testing.T) {
	t.Parallel()
	const kept, each = 100_000, 500
	d, _ := privateDB(t, map[string]string{"autovacuum": "off"}, keptDDL, keptTxIndex)
	d.exec(fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP INSERT INTO outbox (aggregate_id, payload)
		SELECT g, jsonb_build_object('n', g) FROM generate_series(1, %d) g; COMMIT; END LOOP; END $$`, kept/each, each))
	s := reading(t, d)
	q := newKeptQueries(keptLayout(t, d))
	before, err := s.look(context.Background())
	require.NoError(t, err)

	long := d.session()
	do(t, long, `BEGIN`)
	do(t, long, insertKept(1, 3))
	d.exec(insertKept(4, 10))
	first, err := s.look(context.Background())
	require.NoError(t, err)
	require.Len(t, first.snap.xip, 1)
	do(t, long, `COMMIT`)
	d.exec(insertKept(11, 12))
	second, err := s.look(context.Background())
	require.NoError(t, err)

	for _, statistics := range []string{"none", "analyzed"} {
		if statistics == "analyzed" {
			d.exec(`ANALYZE outbox`)
		}
		for name, k := range map[string]struct {
			q     statement
			rows  int
			index string
		}{
			"new":          {q.list(pair{old: before.snap, new: first.snap}, false), 7, "outbox_tx"},
			"new and late": {q.list(pair{old: first.snap, new: second.snap}, false), 5, "outbox_tx"},
			"read on":      {q.list(pair{old: before.snap, new: second.snap, begun: true, after: kept + 8}, false), 4, ""}, // either will do,
			"nothing":      {q.list(pair{old: second.snap, new: second.snap}, false), 0, "outbox_tx"},
			"everything":   {q.list(pair{new: second.snap, begun: true, after: kept - 50}, false), 62, "outbox_seq_key"},
			"onward":       {q.list(pair{old: before.snap, new: second.snap, begun: true, after: kept}, true), 12, "outbox_seq_key"},
			"rows":         {q.rows(pair{old: before.snap, new: second.snap}, []int64{5, kept + 1, kept + 4, kept + 12, kept + 99}), 3, "outbox_seq_key"},
		} {
			plan := explainKept(t, s, k.q)
			require.EqualValues(t, k.rows, plan.Rows, "%s, statistics: %s", name, statistics)
			plan.walk(func(n *keptNode) {
				require.NotContains(t, n.Type, "Seq Scan", "%s, statistics: %s", name, statistics)
				require.LessOrEqual(t, n.Removed*n.Loops, 12., "%s, statistics: %s: rows that were passed for nothing", name, statistics)
				if k.index != "" && n.Index != "" {
					require.Equal(t, k.index, n.Index, "%s, statistics: %s", name, statistics)
				}
			})
		}
	}
	plan := explainKept(t, s, statement{sql: q.foreseen()})
	plan.walk(func(n *keptNode) {
		require.NotContains(t, n.Type, "Seq Scan")
		require.Zero(t, n.Removed)
	})
}

// keptNode is a part of an EXPLAIN (ANALYZE, FORMAT JSON).
type keptNode struct {
	Type    string     `json:"Node Type"`
	Index   string     `json:"Index Name"`
	Rows    float64    `json:"Actual Rows"`
	Loops   float64    `json:"Actual Loops"`
	Removed float64    `json:"Rows Removed by Filter"`
	Plans   []keptNode `json:"Plans"`
}

func (n *keptNode) walk(visit func(*keptNode)) {
	visit(n)
	for i := range n.Plans {
		n.Plans[i].walk(visit)
	}
}

func explainKept(t *testing.T, s *session, q statement) *keptNode {
	t.Helper()
	var result *pgconn.Result
	require.NoError(t, s.guard(context.Background(), func(pc *pgconn.PgConn) error {
		result = pc.ExecParams(context.Background(), "EXPLAIN (ANALYZE, FORMAT JSON, TIMING off) "+q.sql, q.params, nil, nil, nil).Read()
		return result.Err
	}))
	var out []struct{ Plan keptNode }
	require.NoError(t, json.Unmarshal(result.Rows[0][0], &out))
	return &out[0].Plan
}
