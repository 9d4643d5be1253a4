package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

const (
	// longOpen is when an open transaction is worth a word. Rows that were deleted since it began are passed by each read:
	// at a thousand events a second sixty thousand after a minute, some milliseconds; at ten thousand it is felt.
	longOpen = time.Minute
	// manyXids stands for it where the time is not known.
	manyXids = 100_000
)

// horizon: rows deleted after the oldest snapshot was taken cannot be vacuumed, and the bound of the reading cannot pass a
// transaction that has written. Of a statement only its transaction is told, never its text (I9).
func (d *doctor) horizon(ctx context.Context) error {
	before := len(d.findings)
	for _, look := range []func(context.Context) error{d.openTransactions, d.preparedTransactions, d.slots} {
		if err := look(ctx); err != nil {
			return err
		}
	}
	var all bool
	if err := d.s.conn.QueryRow(ctx, `SELECT pg_has_role('pg_read_all_stats', 'USAGE')`).Scan(&all); err != nil {
		return fmt.Errorf("look at the role: %w", err)
	}
	if !all {
		d.ok("activity_hidden", "since when transactions of other roles are open cannot be seen; GRANT pg_read_all_stats TO %s; would show it", outbox.Quote(d.t.Role))
	}
	if len(d.findings) == before {
		d.ok("horizon", "no transaction has been open for longer than %s", lasting(d.longOpen))
	}
	return nil
}

// held makes the finding of something that holds what vacuum may remove.
func (d *doctor) held(code, who, hint, sql string) {
	d.add(sdk.Finding{
		Severity: sdk.Warning, Code: code,
		Message: who + ": deleted rows of the outbox stay as long, and each read passes them",
		Hint:    hint, SQL: sql,
	})
}

// openTransactions: a snapshot counts in this database, a transaction that has written in all of them.
func (d *doctor) openTransactions(ctx context.Context) error {
	rows, err := d.s.conn.Query(ctx, `
		SELECT a.pid, coalesce(a.usename, '?'), coalesce(a.application_name, ''), coalesce(host(a.client_addr), 'a local socket'),
		       coalesce(a.datname, ''), coalesce(a.state, 'state not visible'), coalesce(a.backend_type, '') = 'walsender',
		       clock_timestamp() - a.xact_start, greatest(age(a.backend_xmin), age(a.backend_xid))
		FROM pg_catalog.pg_stat_activity a
		WHERE a.pid <> pg_backend_pid() AND coalesce(a.backend_type, '') <> 'autovacuum worker'
		  AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_progress_vacuum v WHERE v.pid = a.pid)
		  AND (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL AND (a.datname = current_database() OR a.datname IS NULL))
		  AND (a.xact_start < clock_timestamp() - $1::interval OR a.xact_start IS NULL AND greatest(age(a.backend_xmin), age(a.backend_xid)) >= $2)
		ORDER BY a.xact_start LIMIT 5`, d.longOpen, manyXids)
	if err != nil {
		return fmt.Errorf("look at open transactions: %w", err)
	}
	var pid, xids int
	var user, app, addr, db, state string
	var standby bool
	var open *time.Duration
	_, err = pgx.ForEachRow(rows, []any{&pid, &user, &app, &addr, &db, &state, &standby, &open, &xids}, func() error {
		long := grouped(int64(xids)) + " transactions"
		if open != nil {
			long = lasting(*open)
		}
		switch {
		case standby:
			d.held("horizon_standby", fmt.Sprintf("the standby %s at %s (pid %d) reports a query that is %s old", app, addr, pid, long),
				"end the query there, or let standbys cancel such queries: hot_standby_feedback = off there", "")
		default:
			who := fmt.Sprintf("pid %d (role %s, application %q, from %s, database %s) has had a transaction open for %s, %s", pid, user, app, addr, db, long, state)
			d.held("horizon_held", who, "end it: what it has written is rolled back, and its client gets an error", fmt.Sprintf("SELECT pg_terminate_backend(%d);", pid))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look at open transactions: %w", err)
	}
	return nil
}

func (d *doctor) preparedTransactions(ctx context.Context) error {
	rows, err := d.s.conn.Query(ctx, `
		SELECT gid, owner::text, database::text, clock_timestamp() - prepared FROM pg_catalog.pg_prepared_xacts
		WHERE prepared < clock_timestamp() - $1::interval ORDER BY prepared LIMIT 5`, d.longOpen)
	if err != nil {
		return fmt.Errorf("look at prepared transactions: %w", err)
	}
	var gid, owner, db string
	var open time.Duration
	_, err = pgx.ForEachRow(rows, []any{&gid, &owner, &db, &open}, func() error {
		d.held("horizon_prepared", fmt.Sprintf("the prepared transaction %q (role %s, database %s) has waited for its end for %s", gid, owner, db, lasting(open)),
			fmt.Sprintf("ask its coordinator what became of it; only then, in the database %s, COMMIT PREPARED or:", db),
			fmt.Sprintf("ROLLBACK PREPARED %s;", outbox.Literal(gid)))
		return nil
	})
	if err != nil {
		return fmt.Errorf("look at prepared transactions: %w", err)
	}
	return nil
}

// slots keep what a standby that is away will need. The catalog_xmin of logical ones does not hold rows of ordinary tables.
func (d *doctor) slots(ctx context.Context) error {
	rows, err := d.s.conn.Query(ctx, `
		SELECT slot_name::text, age(xmin) FROM pg_catalog.pg_replication_slots
		WHERE xmin IS NOT NULL AND NOT active ORDER BY age(xmin) DESC LIMIT 5`)
	if err != nil {
		return fmt.Errorf("look at replication slots: %w", err)
	}
	var name string
	var xids int
	_, err = pgx.ForEachRow(rows, []any{&name, &xids}, func() error {
		d.held("horizon_slot", fmt.Sprintf("the replication slot %s is not in use and keeps what was there %s transactions ago", outbox.Quote(name), grouped(int64(xids))),
			"start its standby; if there is none any more, drop the slot: a standby that comes back without it has to be copied anew",
			fmt.Sprintf("SELECT pg_drop_replication_slot(%s);", outbox.Literal(name)))
		return nil
	})
	if err != nil {
		return fmt.Errorf("look at replication slots: %w", err)
	}
	return nil
}
