package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestServerOf(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]string{
		"postgres://u:p@DB/orders":                         "db:5432/orders",
		"postgresql://db:5433/orders?sslmode=require":      "db:5433/orders",
		"postgres:///orders?host=/run/postgresql":          "/run/postgresql:5432/orders",
		"host=db port=5432 dbname='orders' password='a b'": "db:5432/orders",
		"dbname = orders":                                  "localhost:5432/orders",
		"postgres://u@db":                                  "db:5432/u",
		"postgres://[::1]/x":                               "[::1]:5432/x",
		"":                                                 "",
		"nonsense":                                         "",
		"postgres://a b":                                   "",
	} {
		require.Equal(t, want, serverOf(dsn), dsn)
	}
}

func TestFeedsOf(t *testing.T) {
	t.Parallel()
	feeds := func(plugin, config string) []feed { return feedsOf(Plugin{Plugin: plugin, Config: []byte(config)}) }
	same := [][2]string{
		{`{"dsn": "host=db dbname=a"}`, `{"dsn": "postgres://u:p@db/a", "table": "public.outbox"}`},
		{`{"dsn": "host=db dbname=a", "table": "\"public\".\"outbox\""}`, `{"dsn": "host=db dbname=a", "table": "outbox"}`},
		{`{"dsn": "host=db", "pending": "a  is\n null"}`, `{"dsn": "host=db", "pending": "a is null"}`},
		{`{"dsn": "host=db", "slot": "s"}`, `{"dsn": "host=db", "slot": "s", "table": "x"}`},
	}
	for _, c := range same {
		require.NotEmpty(t, feeds("postgres-poll", c[0]))
		require.Equal(t, feeds("postgres-poll", c[0]), feeds("postgres-cdc", c[1]), "%v", c)
		require.NotEqual(t, feeds("postgres-poll", c[0]), feeds("mysql-poll", c[1]), "%v", c)
	}
	different := [][2]string{
		{`{"dsn": "host=db dbname=a"}`, `{"dsn": "host=db dbname=b"}`},
		{`{"dsn": "host=db", "table": "outbox"}`, `{"dsn": "host=db", "table": "Outbox"}`},
		{`{"dsn": "host=db", "table": "other.outbox"}`, `{"dsn": "host=db"}`},
		{`{"dsn": "host=db", "preset": "debezium"}`, `{"dsn": "host=db"}`},
		{`{"dsn": "host=db", "pending": "a"}`, `{"dsn": "host=db", "pending": "b"}`},
		{`{"dsn": "host=db", "slot": "a"}`, `{"dsn": "host=db", "slot": "b"}`},
	}
	for _, c := range different {
		require.NotEqual(t, feeds("postgres-poll", c[0]), feeds("postgres-poll", c[1]), "%v", c)
	}
	require.Empty(t, feeds("null", `{}`))
	require.Empty(t, feeds("x", `{"dsn": 5}`))
}
