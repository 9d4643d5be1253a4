package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5"

	"github.com/relevo-io/relevo/sdk"
)

// Versions that are tested.
const (
	oldestVersion = 14
	newestVersion = 18
)

func (d *doctor) version(major int) {
	switch {
	case major < oldestVersion:
		d.add(sdk.Finding{
			Severity: sdk.Problem, Code: "version_unsupported", Message: fmt.Sprintf("this is PostgreSQL %d", major),
			Hint: fmt.Sprintf("PostgreSQL %d to %d are supported", oldestVersion, newestVersion),
		})
	case major > newestVersion:
		d.add(sdk.Finding{
			Severity: sdk.Warning, Code: "version_untested", Message: fmt.Sprintf("this is PostgreSQL %d", major),
			Hint: fmt.Sprintf("this version of Relevo was tested with PostgreSQL %d to %d", oldestVersion, newestVersion),
		})
	default:
		d.ok("reachable", "connected to PostgreSQL %d", major)
	}
}

// sessions looks for a transaction pooler, which takes two connections. Nothing has been set in them yet: behind a pooler
// it would be set for the service, too, and with doctorSettings it could not write any more.
func (d *doctor) sessions(ctx context.Context, pipeline string) error {
	other, err := dial(ctx, d.c, pipeline, "doctor")
	if err != nil {
		return err
	}
	defer other.close()
	if err := probePooler(ctx, d.s, other); err != nil {
		return err
	}
	d.ok("sessions", "connections are sessions: no transaction pooler in between")
	return nil
}

// encryption: events and the password's proof cross the network.
func (d *doctor) encryption() {
	conn := d.s.conn.PgConn().Conn()
	_, encrypted := conn.(*tls.Conn)
	if f := plainText(conn.RemoteAddr(), encrypted); f != nil {
		d.add(*f)
	}
}

func plainText(server net.Addr, encrypted bool) *sdk.Finding {
	tcp, ok := server.(*net.TCPAddr)
	if encrypted || !ok || tcp.IP.IsLoopback() {
		return nil
	}
	return &sdk.Finding{
		Severity: sdk.Warning, Code: "connection_not_encrypted", Path: "/dsn",
		Message: fmt.Sprintf("the connection to %s is not encrypted: events cross the network as they are", tcp.IP),
		Hint:    "write sslmode=verify-full and sslrootcert into dsn, and let the server have ssl = on",
	}
}

// durability: with synchronous_commit off a commit of the service may be lost after its event was published (promise 2).
// The session must not have set it for itself.
func (d *doctor) durability(ctx context.Context) error {
	rows, err := d.s.conn.Query(ctx, `
		SELECT 'everybody', 'ALTER SYSTEM RESET synchronous_commit; SELECT pg_reload_conf();'
		FROM pg_catalog.pg_settings WHERE name = 'synchronous_commit' AND setting = 'off' AND source IN ('configuration file', 'command line', 'environment variable')
		UNION ALL
		SELECT concat_ws(' in ', coalesce('the role ' || r.rolname, 'every role'), 'the database ' || d.datname),
		       CASE WHEN r.oid IS NULL THEN format('ALTER DATABASE %I RESET synchronous_commit;', d.datname)
		            WHEN d.oid IS NULL THEN format('ALTER ROLE %I RESET synchronous_commit;', r.rolname)
		            ELSE format('ALTER ROLE %I IN DATABASE %I RESET synchronous_commit;', r.rolname, d.datname) END
		FROM pg_catalog.pg_db_role_setting s
		LEFT JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.setrole
		WHERE 'synchronous_commit=off' = ANY(s.setconfig) AND coalesce(d.datname, current_database()) = current_database()`)
	if err != nil {
		return fmt.Errorf("look at synchronous_commit: %w", err)
	}
	off, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (v [2]string, err error) {
		err = r.Scan(&v[0], &v[1])
		return v, err
	})
	if err != nil {
		return fmt.Errorf("look at synchronous_commit: %w", err)
	}
	for _, v := range off {
		d.add(sdk.Finding{
			Severity: sdk.Warning, Code: "synchronous_commit_off", Message: "synchronous_commit is off for " + v[0],
			Hint: "turn it on: a server that crashes loses the last commits, and their events may have been published already", SQL: v[1],
		})
	}
	if len(off) == 0 {
		d.ok("synchronous_commit", "commits are durable before they are answered")
	}
	return nil
}

// standbys: commits of the service wait for a synchronous standby, and for ever where there is none. Those of the relay
// do not (removerSettings).
func (d *doctor) standbys(ctx context.Context) error {
	var names string
	var visible bool
	var connected int
	err := d.s.conn.QueryRow(ctx, `
		SELECT current_setting('synchronous_standby_names'), pg_has_role('pg_read_all_stats', 'USAGE'),
		       (SELECT count(*) FROM pg_catalog.pg_stat_replication WHERE sync_state IN ('sync', 'quorum'))`).Scan(&names, &visible, &connected)
	if err != nil {
		return fmt.Errorf("look at the standbys: %w", err)
	}
	if names == "" || connected > 0 || !visible {
		return nil
	}
	d.add(sdk.Finding{
		Severity: sdk.Warning, Code: "synchronous_standby_missing",
		Message: fmt.Sprintf("no synchronous standby of synchronous_standby_names (%s) is connected: commits of the service wait for one", names),
		Hint:    "bring the standby back; or go on without one, and lose what is not yet copied if this server is lost",
		SQL:     "ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf();",
	})
	return nil
}

// connections: a relay needs two, and so does one that stands by.
func (d *doctor) connections(ctx context.Context) error {
	var used, most int
	err := d.s.conn.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE datid IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend'),
		       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
		       - coalesce(current_setting('reserved_connections', true)::int, 0)`).Scan(&used, &most)
	if err != nil {
		return fmt.Errorf("count the connections: %w", err)
	}
	if used*10 < most*9 {
		d.ok("connections", "%d of %d connections are in use", used, most)
		return nil
	}
	d.add(sdk.Finding{
		Severity: sdk.Warning, Code: "connections_scarce",
		Message: fmt.Sprintf("%d of %d connections are in use: a relay that reconnects may find none", used, most),
		Hint:    "close what is idle, or allow more and restart the server",
		SQL:     fmt.Sprintf("ALTER SYSTEM SET max_connections = %d;", 2*max(most, 50)),
	})
	return nil
}
