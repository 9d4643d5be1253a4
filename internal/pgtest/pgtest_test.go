package pgtest

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relevo-io/relevo/internal/pgtest/pgenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, IgnoreServer()) }

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// TestDBIsDropped leaves behind all that keeps a database from being dropped.
func TestDBIsDropped(t *testing.T) {
	t.Parallel()
	server := Server(t)
	var name string
	t.Run("use", func(t *testing.T) {
		c, err := pgx.Connect(t.Context(), DB(t)) // stays open
		require.NoError(t, err)
		require.NoError(t, c.QueryRow(t.Context(), "select current_database()").Scan(&name))
		for _, sql := range []string{
			"create table t(n int)",
			// The slot first: its creation waits for every transaction that is open, on the whole server.
			"select pg_create_logical_replication_slot('left_" + name + "', 'pgoutput')",
			"begin", "insert into t values(1)", "prepare transaction 'relevo ''x'''",
		} {
			_, err = c.Exec(t.Context(), sql)
			require.NoError(t, err, sql)
		}
	})
	var left int
	c := connect(t, server)
	require.NoError(t, c.QueryRow(t.Context(), "select count(*) from pg_database where datname = $1", name).Scan(&left))
	require.Zero(t, left)
	require.NoError(t, c.QueryRow(t.Context(), "select count(*) from pg_replication_slots where slot_name = $1", "left_"+name).Scan(&left))
	require.Zero(t, left)
}

func TestDBsAreApart(t *testing.T) {
	t.Parallel()
	a, b := connect(t, DB(t)), connect(t, DB(t))
	_, err := a.Exec(t.Context(), "create table t(n int)")
	require.NoError(t, err)
	_, err = b.Exec(t.Context(), "create table t(n int)")
	require.NoError(t, err)
}

func TestWithDB(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]string{
		"postgres://u:p@h:5/db?sslmode=disable": "postgres://u:p@h:5/x?sslmode=disable",
		"postgres://h":                          "postgres://h/x",
		"host=h user=u dbname=db":               "host=h user=u dbname=db dbname=x",
	} {
		require.Equal(t, want, WithDB(t, dsn, "x"))
		cfg, err := pgx.ParseConfig(WithDB(t, dsn, "x"))
		require.NoError(t, err)
		require.Equal(t, "x", cfg.Database)
	}
}

// fakeTB records how a test would end.
type fakeTB struct {
	testing.TB
	skipped, failed string
}

func (f *fakeTB) Helper()           {}
func (f *fakeTB) Skip(args ...any)  { f.skipped, _ = args[0].(string) }
func (f *fakeTB) Fatal(args ...any) { f.failed, _ = args[0].(string) }

func TestUnavailable(t *testing.T) {
	t.Setenv(pgenv.Require, "")
	var f fakeTB
	unavailable(&f, os.ErrNotExist)
	require.Contains(t, f.skipped, "needs PostgreSQL: file does not exist")

	t.Setenv(pgenv.Require, "1")
	f = fakeTB{}
	unavailable(&f, os.ErrNotExist)
	require.Contains(t, f.failed, "needs PostgreSQL")
}

func TestPrivateServer(t *testing.T) {
	t.Parallel()
	p := Start(t, Options{Settings: map[string]string{"work_mem": "5MB"}})
	c := connect(t, p.DSN())
	var mem string
	require.NoError(t, c.QueryRow(t.Context(), "show work_mem").Scan(&mem))
	require.Equal(t, "5MB", mem)
	p.Crash()
	p.Restart()
	require.NotZero(t, p.PID())
	require.Contains(t, p.Log(), "not properly shut down")
	p.Stop(Immediate)
	require.Zero(t, p.PID())
}
