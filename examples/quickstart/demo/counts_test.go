package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relevo-io/relevo/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, pgtest.IgnoreServer()) }

// TestVerify breaks each promise in the tables, and wants it counted.
func TestVerify(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault string // SQL in the consumer's database
		want  verdict
	}{
		"all is well":       {"select", verdict{}},
		"lost":              {"delete from inbox where order_id = 1 and version = 2", verdict{lost: 1}},
		"never committed":   {"insert into inbox values (gen_random_uuid(), 1, 9)", verdict{invented: 1, twice: 1}},
		"rolled back":       {"update inbox set event_id = '00000000-0000-0000-0000-000000000099' where order_id = 2", verdict{invented: 1, twice: 1}},
		"same change twice": {"insert into inbox values (gen_random_uuid(), 2, 1)", verdict{invented: 1, twice: 1}},
		"out of order":      {"update inbox set version = 4 - version where order_id = 1", verdict{disordered: 2}},
		"work done twice":   {"insert into work select event_id, what from work limit 1", verdict{twice: 1}},
		"work never done":   {"delete from work where event_id in (select event_id from inbox where order_id = 2)", verdict{twice: 1}},
		"a repeat, dropped": {"update inbox set seen = 3 where order_id = 2", verdict{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tables := &tables{shop: open(t, "../orderservice/schema.sql"), consumers: map[string]*pgx.Conn{}}
			inbox := open(t, "../consumer/schema.sql")
			tables.consumers["shipping"] = inbox
			do(t, tables.shop, `
				insert into orders (customer, status, total_cents, version) values ('Ada', 'packed', 1, 3), ('Ken', 'placed', 1, 1);
				insert into rolled_back values ('00000000-0000-0000-0000-000000000099')`)
			do(t, inbox, `
				insert into inbox (event_id, order_id, version)
				select gen_random_uuid(), o, v from (values (1, 1), (1, 2), (2, 1), (1, 3)) x(o, v);
				insert into work select event_id, 'done' from inbox`)
			do(t, inbox, c.fault)
			got, err := tables.verify(t.Context(), "shipping")
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			require.Equal(t, c.want == verdict{}, got.good())
		})
	}
}

func open(t *testing.T, schema string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), pgtest.DB(t))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close(context.Background()) })
	sql, err := os.ReadFile(schema)
	require.NoError(t, err)
	do(t, c, string(sql))
	return c
}

func do(t *testing.T, c *pgx.Conn, sql string) {
	t.Helper()
	_, err := c.Exec(t.Context(), sql)
	require.NoError(t, err)
}

// The README shows the pipeline that the demo runs, and the outbox that the order service has.
func TestREADMEShowsWhatRuns(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../../README.md")
	require.NoError(t, err)
	pipeline, err := os.ReadFile("../pipeline.yaml")
	require.NoError(t, err)
	require.Contains(t, string(readme), "```yaml\n"+string(pipeline)+"```\n")

	schema, err := os.ReadFile("../orderservice/schema.sql")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(schema), "create table outbox")
	require.True(t, ok)
	table, _, ok = strings.Cut(table, ");\n")
	require.True(t, ok)
	require.Contains(t, string(readme), "create table outbox"+table+");\n```\n")
}
