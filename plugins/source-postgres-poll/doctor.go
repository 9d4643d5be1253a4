package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// checkTimeout bounds one look at the server.
const checkTimeout = 20 * time.Second

// Versions that are tested.
const (
	oldestVersion = 14
	newestVersion = 18
)

// check looks at the server and the table for relevo doctor. It changes nothing, and takes no lock.
func check(ctx context.Context, c config, r sdk.CheckRequest) ([]sdk.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	d := doctor{c: c}
	if err := d.look(ctx, r.Instance.Pipeline); err != nil {
		e := classify(err)
		d.add(sdk.Finding{Severity: sdk.Problem, Code: e.Code, Path: "/dsn", Message: e.Error(), Hint: e.Hint})
	}
	return d.findings, nil
}

type doctor struct {
	c        config
	findings []sdk.Finding
}

func (d *doctor) add(f sdk.Finding) { d.findings = append(d.findings, f) }

func (d *doctor) ok(code, format string, a ...any) {
	d.add(sdk.Finding{Severity: sdk.OK, Code: code, Message: fmt.Sprintf(format, a...)})
}

// look goes from the outside in. An error ends it: what comes behind cannot be seen.
func (d *doctor) look(ctx context.Context, pipeline string) error {
	a, err := connect(ctx, d.c, pipeline, "doctor", readerSettings)
	if err != nil {
		return err
	}
	defer a.close()
	d.version(a.version)
	if a.standby {
		return errStandbyServer
	}
	b, err := connect(ctx, d.c, pipeline, "doctor", nil)
	if err != nil {
		return err
	}
	defer b.close()
	if err := probePooler(ctx, a, b); err != nil {
		return err
	}
	d.ok("sessions", "connections are sessions: no transaction pooler in between")
	if err := d.durability(ctx); err != nil {
		return err
	}
	return d.table(ctx, a.conn)
}

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

// table looks at the outbox itself.
func (d *doctor) table(ctx context.Context, conn *pgx.Conn) error {
	name, err := outbox.ParseName(d.c.Table)
	if err != nil {
		return sdk.Config(err).WithCode("table_invalid")
	}
	m, err := outbox.Map(d.c.Preset, d.c.Columns)
	if err != nil {
		return err
	}
	t, err := outbox.Inspect(ctx, conn, name)
	if p, ok := errors.AsType[*outbox.Problem](err); ok {
		d.add(p.Finding())
		return nil
	}
	if err != nil {
		return err
	}
	d.ok("table", "%s is there", t.Name)
	if p := privileges(t, d.c); p != nil {
		d.add(p.Finding())
	} else {
		d.ok("privileges", "the role %s may read and %s", outbox.Quote(t.Role), removes(d.c))
	}
	if err := d.vacuum(ctx, conn, t); err != nil {
		return err
	}
	l, faults := outbox.BindAll(m, t)
	for _, p := range faults {
		d.add(p.Finding())
	}
	if len(faults) > 0 {
		return nil
	}
	more, err := startProblems(ctx, conn, l, d.c)
	if err != nil {
		return err
	}
	for _, p := range more {
		if p.Code != "privilege_missing" { // said above
			d.add(p.Finding())
		}
	}
	for _, p := range l.Ignored {
		f := p.Finding()
		f.Severity = sdk.Warning
		d.add(f)
	}
	d.order(m, l)
	which := "rows"
	if d.c.Pending != "" {
		which = "rows that satisfy pending"
	}
	if d.c.after() == outbox.AfterSet {
		d.ok("rows_marked", "%s of %s will be updated once they are published: SET %s", which, t.Name, strings.ReplaceAll(setList(d.c.AfterPublish), "\n", ""))
	} else {
		d.ok("rows_deleted", "%s of %s WILL be deleted once they are published", which, t.Name)
	}
	return d.leader(ctx, conn, t)
}

// order says which order holds, and how to get the better one.
func (d *doctor) order(m outbox.Mapping, l *outbox.Layout) {
	o := describeOrder(l)
	if o.name == "per key" {
		d.add(sdk.Finding{Severity: sdk.OK, Code: "order", Message: fmt.Sprintf("order: per key, by %s", outbox.Quote(o.column)), Hint: o.hint})
	} else {
		f := sdk.Finding{Severity: sdk.Warning, Code: "order_best_effort", Path: "/columns/order", Message: "order: best effort", Hint: o.hint, SQL: orderSQL(l)}
		if l.Order == nil && m.Order != "seq" {
			f.Hint += `; then write columns.order: seq`
		}
		d.add(f)
	}
	if l.Order == nil || l.Table.OrderIndex(l.Order.Name) {
		return
	}
	concurrently := " CONCURRENTLY"
	if l.Table.Partitioned {
		concurrently = "" // not there for partitioned tables
	}
	d.add(sdk.Finding{
		Severity: sdk.Warning, Code: "order_index_missing", Path: "/columns/order",
		Message: fmt.Sprintf("no index begins with the order column %s: each read sorts the table", outbox.Quote(l.Order.Name)),
		Hint:    "create one",
		SQL:     fmt.Sprintf("CREATE INDEX%s ON %s (%s);", concurrently, l.Table.Name, outbox.Quote(l.Order.Name)),
	})
}

// orderSQL makes order: per key possible.
func orderSQL(l *outbox.Layout) string {
	t := l.Table.Name
	if l.Order == nil {
		s := fmt.Sprintf("ALTER TABLE %s ADD COLUMN seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1);", t)
		if l.Table.Partitioned {
			return s + fmt.Sprintf(" CREATE INDEX ON %s (seq);", t)
		}
		return s + fmt.Sprintf(" CREATE UNIQUE INDEX CONCURRENTLY ON %s (seq);", t)
	}
	c := outbox.Quote(l.Order.Name)
	if l.Order.Sequence == "" {
		return fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s ADD GENERATED BY DEFAULT AS IDENTITY (CACHE 1);"+
			" SELECT setval(pg_get_serial_sequence(%s, %s), coalesce(max(%[2]s), 0) + 1, false) FROM %[1]s;",
			t, c, outbox.Literal(t.String()), outbox.Literal(l.Order.Name))
	}
	return fmt.Sprintf("ALTER SEQUENCE %s INCREMENT 1 CACHE 1 NO CYCLE;", l.Order.Sequence)
}

// vacuum: an outbox is all inserts and deletes, and slows down without it.
func (d *doctor) vacuum(ctx context.Context, conn *pgx.Conn, t *outbox.Table) error {
	var on bool
	if err := conn.QueryRow(ctx, `SELECT current_setting('autovacuum')::bool AND current_setting('track_counts')::bool`).Scan(&on); err != nil {
		return fmt.Errorf("look at autovacuum: %w", err)
	}
	f := sdk.Finding{
		Severity: sdk.Warning, Code: "autovacuum_off", Message: "autovacuum is off",
		Hint: "deleted rows stay in the table and its indexes, and reads become slow",
	}
	switch {
	case !on:
		f.SQL = "ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET track_counts = on; SELECT pg_reload_conf();"
	case slices.ContainsFunc(t.Options, func(o string) bool {
		v, ok := strings.CutPrefix(o, "autovacuum_enabled=")
		return ok && slices.Contains([]string{"false", "off", "0", "no", "f", "n"}, strings.ToLower(v))
	}):
		f.Message = fmt.Sprintf("autovacuum is off for %s", t.Name)
		f.SQL = fmt.Sprintf("ALTER TABLE %s RESET (autovacuum_enabled);", t.Name)
	default:
		d.ok("autovacuum", "autovacuum cleans %s", t.Name)
		return nil
	}
	d.add(f)
	return nil
}

// durability: with synchronous_commit off a commit of the service may be lost after its event was published (promise 2).
// The session here is a plain one: ours set it for themselves.
func (d *doctor) durability(ctx context.Context) error {
	cc, err := d.c.conn("", "doctor")
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `SET search_path = pg_catalog`); err != nil {
		return fmt.Errorf("look at synchronous_commit: %w", err)
	}
	rows, err := conn.Query(ctx, `
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
			Hint: "a server that crashes loses the last commits, and their events may have been published already", SQL: v[1],
		})
	}
	if len(off) == 0 {
		d.ok("synchronous_commit", "commits are durable before they are answered")
	}
	return nil
}

// leader says who has the outbox now.
func (d *doctor) leader(ctx context.Context, conn *pgx.Conn, t *outbox.Table) error {
	key := uint64(lockKey(t.OID, 0))
	var pid int32
	var app, addr string
	err := conn.QueryRow(ctx, `
		SELECT l.pid, coalesce(a.application_name, ''), coalesce(host(a.client_addr), 'a local socket')
		FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
		WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.classid = $1::int8::oid AND l.objid = $2::int8::oid
		  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())`,
		int64(key>>32), int64(key&0xffffffff)).Scan(&pid, &app, &addr)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		d.ok("leader", "no relay reads %s at the moment", t.Name)
		return nil
	case err != nil:
		return fmt.Errorf("look for the leader: %w", err)
	}
	d.ok("leader", "a relay reads %s: %s from %s, pid %d; another one would stand by", t.Name, app, addr, pid)
	return nil
}
