// Package pgtest gives tests a real PostgreSQL.
//
// One server serves a whole run: [Server] is its superuser's DSN, [DB] a fresh database on it for one test. A test that has
// to stop, crash or configure a server, or that minds what other tests do to a server-wide value (snapshots, transaction
// ids, slots, roles), starts one of its own with [Start].
//
// The shared server is the one that $RELEVO_TEST_POSTGRES names (make test brings it up through test/services), else one
// that the test binary starts itself from installed programs. Where there is neither the test is skipped and says why;
// with $RELEVO_REQUIRE_SERVICES set it fails instead. Under -short, tests with servers are skipped.
package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/relevo-io/relevo/internal/pgserver"
	"github.com/relevo-io/relevo/internal/pgtest/pgenv"
)

// opTimeout bounds each single thing that is done to a server on behalf of a test.
const opTimeout = 60 * time.Second

// shared is the server of this test binary, when the environment names none. It runs until the binary ends.
var shared = sync.OnceValues(func() (*pgserver.Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	return pgserver.Start(ctx, pgserver.Options{})
})

// Server returns the DSN of the superuser of the shared server.
func Server(t testing.TB) string {
	t.Helper()
	skipShort(t)
	if dsn := os.Getenv(pgenv.Server); dsn != "" {
		return dsn
	}
	s, err := shared()
	if err != nil {
		unavailable(t, err)
	}
	return s.DSN()
}

// IgnoreServer is for goleak in packages whose tests call Server or DB: the shared server outlives them.
func IgnoreServer() goleak.Option {
	return goleak.IgnoreAnyFunction("github.com/relevo-io/relevo/internal/pgserver.(*process).reap")
}

// DB makes an empty database on the shared server and returns the superuser's DSN of it. It is dropped after the test, with
// whatever the test left in it: sessions, prepared transactions, replication slots.
func DB(t testing.TB) string {
	t.Helper()
	dsn := Server(t)
	name := "relevo_" + suffix()
	exec(t, dsn, "create database "+name+" template template0")
	t.Cleanup(func() { drop(t, dsn, name) })
	return WithDB(t, dsn, name)
}

// WithDB is dsn with another database in it.
func WithDB(t testing.TB, dsn, name string) string {
	t.Helper()
	if !strings.Contains(dsn, "://") {
		return dsn + " dbname=" + name // the last one counts
	}
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatalf("parse the DSN of the shared server: %v", err)
	}
	u.Path = "/" + name
	return u.String()
}

func suffix() string {
	b := make([]byte, 6)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// drop removes all that keeps a database from being dropped, then drops it. A test that restarted the server under DB, or
// dropped the database, has done worse: so faults here fail the test.
func drop(t testing.TB, server, name string) {
	t.Helper()
	db := WithDB(t, server, name)
	for _, gid := range column(t, db, "select gid from pg_prepared_xacts where database = current_database()") {
		exec(t, db, "rollback prepared '"+strings.ReplaceAll(gid, "'", "''")+"'")
	}
	exec(t, server, "select pg_terminate_backend(active_pid, 5000) from pg_replication_slots where database = '"+name+"' and active")
	exec(t, server, "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = '"+name+"'")
	exec(t, server, "drop database if exists "+name+" with (force)")
}

func exec(t testing.TB, dsn, sql string) {
	t.Helper()
	onConn(t, dsn, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql)
		return err
	})
}

func column(t testing.TB, dsn, sql string) []string {
	t.Helper()
	var values []string
	onConn(t, dsn, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, sql)
		if err != nil {
			return err
		}
		values, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return values
}

// onConn runs f on a connection of its own. It does not use t.Context, which is over when clean-ups run.
func onConn(t testing.TB, dsn string, f func(context.Context, *pgx.Conn) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatalf("connect to the shared server: %v", err)
	}
	defer c.Close(ctx)
	if err := f(ctx, c); err != nil {
		t.Fatalf("prepare the database of a test: %v", err)
	}
}

func skipShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs PostgreSQL: not run with -short")
	}
}

// unavailable ends the test: as skipped, or as failed where the run promised that servers are there.
func unavailable(t testing.TB, err error) {
	t.Helper()
	text := fmt.Sprintf("needs PostgreSQL: %v; name a server in %s, programs in %s, or run under: go run ./test/services",
		err, pgenv.Server, pgserver.EnvBin)
	if os.Getenv(pgenv.Require) != "" {
		t.Fatal(text)
	}
	t.Skip(text)
}
