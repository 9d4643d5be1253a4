package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// backlog says what waits, and what will happen to it.
func (d *doctor) backlog(ctx context.Context) error {
	which := "rows"
	if d.c.Pending != "" {
		which = "rows that satisfy pending"
	}
	switch d.c.after() {
	case outbox.AfterSet:
		d.ok("rows_marked", "%s of %s will be updated once they are published: SET %s", which, d.t.Name, strings.ReplaceAll(setList(d.c.AfterPublish), "\n", ""))
	case outbox.AfterDelete:
		d.ok("rows_deleted", "%s of %s WILL be deleted once they are published", which, d.t.Name)
	case outbox.AfterKeep:
		d.ok("rows_kept", "%s of %s stay once they are published", which, d.t.Name)
		found, err := keptFindings(ctx, d.s, d.l, d.c, d.stored)
		d.findings = append(d.findings, found...)
		return err
	}
	if privileges(d.t, d.c) != nil {
		return nil
	}
	n, err := d.waiting(ctx)
	if err != nil {
		return err
	}
	return d.first(ctx, n)
}

// waiting is an estimate: to count rows is to read them all.
func (d *doctor) waiting(ctx context.Context) (int64, error) {
	heaps, err := d.heaps(ctx)
	if err != nil {
		return 0, err
	}
	var n int64
	for _, h := range heaps {
		n += h.live
	}
	if d.c.Pending == "" {
		return n, nil
	}
	q := newQueries(d.l, d.c)
	p, err := d.explain(ctx, statement{sql: fmt.Sprintf("SELECT 1 FROM %s%s", d.t.Name, q.where())})
	if err != nil {
		return 0, fmt.Errorf("estimate the rows that wait: %w", err)
	}
	return min(n, int64(p.Rows)), nil
}

// first reads the row that comes first, as the relay will, and tells whether it can become an event. Without an index by
// the order column it would be a sort: then it is any row, and nothing is said of its age.
func (d *doctor) first(ctx context.Context, n int64) error {
	q := newQueries(d.l, d.c)
	read := q.read(q.where(), "", 1)
	ordered := d.l.Order != nil && !d.unordered
	if ordered {
		read = q.read(q.where(), " ORDER BY "+outbox.Quote(d.l.Order.Name), 1)
	}
	var row outbox.Row
	found := false
	snap, _, err := d.s.read(ctx, read, func() int { return 1 }, func(values [][]byte) bool {
		d.l.Decode(values, &row)
		found = true
		return true
	})
	if err != nil {
		return fmt.Errorf("read the first row: %w", err)
	}
	switch {
	case !found:
		d.ok("backlog", "no row waits")
	case row.Rejected != nil:
		d.add(sdk.Finding{
			Severity: sdk.Warning, Code: "row_refused", Path: "/columns",
			Message: fmt.Sprintf("the row %s cannot become an event: %s", row.Rejected.ID, row.Rejected.Message),
			Hint:    "if all rows are like that, check columns; a single one holds its key until it is mended or discarded",
		})
	case ordered && row.Event.HasTime:
		age := snap.now.Sub(time.UnixMicro(row.Event.TimeMicro))
		d.ok("backlog", "about %s rows wait, the oldest for %s", grouped(max(1, n)), lasting(age))
	default:
		d.ok("backlog", "about %s rows wait", grouped(max(1, n)))
	}
	return nil
}
