package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/relevo-io/relevo/internal/outbox"
)

// What reading kept rows needs of a table. Each of these is a silent loss otherwise, or a read that grows with all that is
// kept.

// keptProblems are all of them, for one layout, with those of housekeeping; the same at the start and for a doctor.
func keptProblems(ctx context.Context, conn *pgx.Conn, l *outbox.Layout, c config) ([]*outbox.Problem, error) {
	found, err := keptReadProblems(ctx, conn, l, c)
	if err != nil {
		return nil, err
	}
	p, err := retentionProblem(ctx, conn, l.Table, c)
	if p != nil {
		found = append(found, p)
	}
	return found, err
}

func keptReadProblems(ctx context.Context, conn *pgx.Conn, l *outbox.Layout, c config) ([]*outbox.Problem, error) {
	var found []*outbox.Problem
	add := func(p *outbox.Problem) {
		if p != nil {
			found = append(found, p)
		}
	}
	add(privileges(l.Table, c))
	add(rowSecurity(l.Table))
	add(keptColumns(l))
	if l.Order == nil || l.Tx == nil || len(found) > 0 && !l.Table.CanSelect {
		return found, nil
	}
	add(keptIndex(l.Table, "order", l.Order.Name))
	add(keptIndex(l.Table, "tx", l.Tx.Name))
	p, err := txDefault(ctx, conn, l)
	if err != nil {
		return nil, err
	}
	if add(p); len(found) > 0 {
		return found, nil // without the index the next look could be a long one
	}
	if p, err = foreseen(ctx, conn, l); err != nil {
		return nil, err
	}
	add(p)
	return found, nil
}

func keptColumns(l *outbox.Layout) *outbox.Problem {
	t := l.Table
	switch {
	case l.Tx == nil:
		return &outbox.Problem{
			Code: "tx_missing", Path: "/columns/tx", Message: "after_publish: keep needs a column with the id of the inserting transaction",
			Hint: "nothing else tells reliably which rows are new: numbers become visible out of order; then write columns.tx: tx",
			SQL: fmt.Sprintf("ALTER TABLE %s ADD COLUMN tx xid8 NOT NULL DEFAULT pg_current_xact_id(); CREATE INDEX ON %[1]s (tx);",
				t.Name),
		}
	case l.Order == nil:
		return &outbox.Problem{
			Code: "order_missing", Path: "/columns/order", Message: "after_publish: keep needs an order column",
			Hint: "it is the place in what is being read", SQL: orderSQL(l),
		}
	}
	return nil
}

// keptIndex: without one each look passes everything that is kept.
func keptIndex(t *outbox.Table, key, column string) *outbox.Problem {
	if t.OrderIndex(column) {
		return nil
	}
	concurrently := " CONCURRENTLY"
	if t.Partitioned {
		concurrently = "" // not there for partitioned tables
	}
	return &outbox.Problem{
		Code: key + "_index_missing", Path: "/columns/" + key,
		Message: fmt.Sprintf("no index begins with the column %s: each look would pass everything that is kept", outbox.Quote(column)),
		Hint:    "create one", SQL: fmt.Sprintf("CREATE INDEX%s ON %s (%s);", concurrently, t.Name, outbox.Quote(column)),
	}
}

// txDefault: what is in the column must be the inserting transaction, also in partitions, which have defaults of their own
// for what is inserted into them directly.
func txDefault(ctx context.Context, conn *pgx.Conn, l *outbox.Layout) (*outbox.Problem, error) {
	var table, is string
	err := conn.QueryRow(ctx, `
		SELECT format('%I.%I', n.nspname, c.relname), coalesce(pg_get_expr(d.adbin, d.adrelid), '')
		FROM (SELECT $1::oid AS oid UNION SELECT relid FROM pg_partition_tree($1::oid::regclass)) t
		JOIN pg_catalog.pg_class c ON c.oid = t.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = $2 AND NOT a.attisdropped
		LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
		WHERE coalesce(pg_get_expr(d.adbin, d.adrelid), '') NOT IN ('pg_current_xact_id()', 'pg_catalog.pg_current_xact_id()')
		ORDER BY c.oid LIMIT 1`, l.Table.OID, l.Tx.Name).Scan(&table, &is)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at the default of %s: %w", l.Tx.Name, err)
	}
	message := fmt.Sprintf("the column %s of %s has no default", outbox.Quote(l.Tx.Name), table)
	if is != "" {
		message = fmt.Sprintf("the default of the column %s of %s is %s", outbox.Quote(l.Tx.Name), table, is)
	}
	return &outbox.Problem{
		Code: "tx_default_wrong", Path: "/columns/tx", Message: message,
		Hint: "it must be the inserting transaction's id; any other number is taken for a transaction, and its rows may never be published",
		SQL:  fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET DEFAULT pg_current_xact_id();", table, outbox.Quote(l.Tx.Name)),
	}, nil
}

// foreseen: rows of a dump of another cluster may have transaction ids that this one reaches in years. Until then they
// would be left out, without a word.
func foreseen(ctx context.Context, conn *pgx.Conn, l *outbox.Layout) (*outbox.Problem, error) {
	var n int
	if err := conn.QueryRow(ctx, newKeptQueries(l).foreseen()).Scan(&n); err != nil {
		return nil, fmt.Errorf("look for rows of the future: %w", err)
	}
	if n == 0 {
		return nil, nil
	}
	count := fmt.Sprint(n)
	if n >= 1000 {
		count = "1000 or more"
	}
	tx := outbox.Quote(l.Tx.Name)
	return &outbox.Problem{
		Code: "tx_in_future", Path: "/columns/tx",
		Message: fmt.Sprintf("rows of %s have a transaction id in %s that this server has not reached (%s)", l.Table.Name, tx, count),
		Hint:    "they come from a dump of another cluster and would not be published for years; this publishes them as new events",
		SQL:     fmt.Sprintf("UPDATE %s SET %s = DEFAULT WHERE %[2]s >= pg_snapshot_xmax(pg_current_snapshot());", l.Table.Name, tx),
	}, nil
}

// validateKept says what does not go together with after_publish: keep, and what goes with nothing else.
func (c config) validateKept(fail func(path, format string, a ...any)) {
	if !slices.Contains([]string{"", backlogPublish, backlogSkip}, c.Backlog) {
		fail("/backlog", "%q is neither publish nor skip", c.Backlog)
	}
	if c.after() != outbox.AfterKeep {
		for path, v := range map[string]string{"/backlog": c.Backlog, "/accept_gap": c.AcceptGap} {
			if v != "" {
				fail(path, "is for after_publish: keep; otherwise what is in the table is what is to be published")
			}
		}
		return
	}
	if c.Columns == nil || c.Columns.Tx == nil || *c.Columns.Tx == "" {
		fail("/columns/tx", "is missing: after_publish: keep needs a column xid8 NOT NULL DEFAULT pg_current_xact_id()")
	}
	if strings.TrimSpace(c.Pending) != "" {
		// A row is looked at once, in the pair that its transaction falls into. A condition that comes true later would be
		// looked at too early, and the row never again.
		fail("/pending", "does not go with after_publish: keep, which looks at each row once; use filter on a sink to leave events out")
	}
	if c.Sharing != sharingLeader {
		fail("/sharing", "must be leader with after_publish: keep: the position is one host's, and one relay reads")
	}
}
