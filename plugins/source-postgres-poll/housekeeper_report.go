package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// retention is a dry round of housekeeping: what would be done now, and why not more. What it cannot start with has been
// said with everything else of that kind.
func (d *doctor) retention(ctx context.Context) error {
	if d.c.Retention == nil {
		return nil
	}
	if p, err := retentionProblem(ctx, d.s.conn, d.t, d.c); err != nil || p != nil {
		return err
	}
	if d.c.Retention.Every == "" {
		return d.reaping(ctx)
	}
	ps, err := outbox.InspectPartitions(ctx, d.s.conn, d.t)
	if err != nil {
		return err
	}
	d.wouldCreate(ps)
	if err := d.wouldDrop(ctx, ps); err != nil {
		return err
	}
	return d.publishedByParts(ctx)
}

// countLimit is where counting ends: a doctor is not to read all of a large table.
const countLimit = 100_000

func (d *doctor) reaping(ctx context.Context) error {
	m, p := marker(d.t, d.c)
	if p != nil {
		return p
	}
	served, err := indexed(ctx, d.s.conn, d.t, m)
	if err != nil {
		return err
	}
	if !served {
		f := markerIndexMissing(d.t, m).Finding()
		f.Severity = sdk.Warning
		d.add(f)
		return nil
	}
	var n int64
	if err := d.s.conn.QueryRow(ctx, fmt.Sprintf("SELECT count(*) FROM (SELECT FROM %s WHERE %s LIMIT %d) old",
		d.t.Name, expired(d.c, m), countLimit)).Scan(&n); err != nil {
		return fmt.Errorf("count what is to be reaped: %w", err)
	}
	more := ""
	if n == countLimit {
		more = " or more"
	}
	d.ok("retention", "rows of %s WILL be deleted %s after they were marked (%s): %s%s of them now",
		d.t.Name, d.c.Retention.After, outbox.Quote(m.Name), grouped(n), more)
	return nil
}

func (d *doctor) wouldCreate(ps *outbox.Partitions) {
	r := d.c.Retention
	spans := missing(ps.List, ps.Now, r.Every, r.ahead())
	if len(spans) == 0 {
		d.ok("retention_ahead", "there are partitions until %s", coverage(ps.List, ps.Now).Format(time.DateTime))
		return
	}
	first := names(d.t.Name.Table, ps.Last(), r.Every, spans[0])[0]
	d.ok("retention_ahead", "%d partitions would be made, until %s; the first: %s", len(spans), spans[len(spans)-1].to.Format(time.DateTime), outbox.Quote(first))
}

func (d *doctor) wouldDrop(ctx context.Context, ps *outbox.Partitions) error {
	h := newHousekeeper(d.c, d.l, "", slog.New(slog.DiscardHandler))
	h.published = func() (txSnapshot, error) { return d.published(ctx) }
	blockers, err := h.blockers()
	if err != nil {
		return err
	}
	stays := func(n outbox.Name, why string) {
		d.add(sdk.Finding{Severity: sdk.Warning, Code: "retention_stays", Path: "/retention", Message: fmt.Sprintf("the partition %s would not be dropped: %s", n, why)})
	}
	var drop []outbox.Name
	for _, p := range ps.List {
		switch past := !p.Upper.After(ps.Now.Add(-d.c.Retention.After.Duration())); {
		case p.Detaching && !p.Sealed:
			d.add(halfDetached(d.t, p.Name).Finding())
		case !past:
		case p.Detaching:
			stays(p.Name, "its detaching waits for open transactions; "+h.oldest(ctx, d.s.conn))
		case !p.Plain:
			stays(p.Name, errNotPlain.Error())
		default:
			ok, why, err := mayDrop(ctx, d.s.conn, p.Name, blockers)
			switch {
			case err != nil:
				return fmt.Errorf("look into the partition %s: %w", p.Name, err)
			case ok:
				drop = append(drop, p.Name)
			case why != "":
				stays(p.Name, why)
			}
		}
	}
	for _, name := range ps.Detached {
		ok, why, err := mayDrop(ctx, d.s.conn, name, blockers)
		switch {
		case err != nil:
			return fmt.Errorf("look into the table %s: %w", name, err)
		case ok:
			drop = append(drop, name)
		case why != "":
			d.add(rowsLeft(d.t, name, why).Finding())
		}
	}
	for _, name := range drop {
		if err := d.dropped(ctx, name); err != nil {
			return err
		}
	}
	if len(drop) == 0 {
		d.ok("retention_old", "no partition would be dropped: none ended more than %s ago and may go", d.c.Retention.After)
	}
	return nil
}

// dropped says what would go with a table, by the server's estimate.
func (d *doctor) dropped(ctx context.Context, name outbox.Name) error {
	var rows, bytes int64
	var view string
	err := d.s.conn.QueryRow(ctx, `
		SELECT greatest(c.reltuples, 0)::int8, pg_total_relation_size(c.oid),
		       coalesce((SELECT r.ev_class::regclass::text FROM pg_catalog.pg_depend p JOIN pg_catalog.pg_rewrite r ON r.oid = p.objid
		                 WHERE p.classid = 'pg_rewrite'::regclass AND p.refobjid = c.oid AND r.ev_class <> c.oid LIMIT 1), '')
		FROM pg_catalog.pg_class c WHERE c.oid = $1::text::regclass`, name.String()).Scan(&rows, &bytes, &view)
	if err != nil {
		return fmt.Errorf("look at the table %s: %w", name, err)
	}
	if view != "" {
		d.add(sdk.Finding{
			Severity: sdk.Warning, Code: "retention_view", Path: "/retention", Message: fmt.Sprintf("the partition %s cannot be dropped: the view %s is made of it", name, view),
			Hint: "make the view of the whole table, or drop it", SQL: fmt.Sprintf("DROP VIEW %s;", view),
		})
		return nil
	}
	d.ok("retention_old", "the partition %s WOULD be dropped: some %s rows, %s", name, grouped(rows), size(bytes))
	return nil
}

// publishedByParts: a publication that lists partitions does not get those that are made later.
func (d *doctor) publishedByParts(ctx context.Context) error {
	var publication string
	err := d.s.conn.QueryRow(ctx, `
		SELECT p.pubname FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
		JOIN pg_catalog.pg_inherits i ON i.inhrelid = r.prrelid AND i.inhparent = $1
		WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_publication_rel t WHERE t.prpubid = p.oid AND t.prrelid = $1) ORDER BY 1 LIMIT 1`, d.t.OID).Scan(&publication)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for publications: %w", err)
	}
	d.add(sdk.Finding{
		Severity: sdk.Warning, Code: "retention_publication", Path: "/retention",
		Message: fmt.Sprintf("the publication %s lists partitions one by one: those that are made will not be in it", outbox.Quote(publication)),
		Hint:    "publish the whole table", SQL: fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s;", outbox.Quote(publication), d.t.Name),
	})
	return nil
}
