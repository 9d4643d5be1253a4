package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// What deleted rows may cost. A read without a bound passes all that are not vacuumed yet, by the million in about a
// tenth of a second, and there is one each second.
const (
	manyDead = 100_000
	// manyBytes that hold nearly nothing.
	manyBytes = 64 << 20
	// rowBytes is what a row is taken for where nothing is known of it.
	rowBytes = 1 << 10
)

// heap is a table that has rows: the outbox, or one of its partitions.
type heap struct {
	name          outbox.Name
	options       []string
	tuples        float64 // what statistics say; -1: nothing
	table, toast  int64   // bytes
	indexes       int64
	live, dead    int64
	vacuumed      *time.Time
	baseThreshold float64 // when autovacuum comes: so many dead rows
	scale         float64 // and this share of all rows
}

// vacuum: an outbox is all inserts and deletes, and slows down without it.
func (d *doctor) vacuum(ctx context.Context) error {
	var on bool
	if err := d.s.conn.QueryRow(ctx, `SELECT current_setting('autovacuum')::bool AND current_setting('track_counts')::bool`).Scan(&on); err != nil {
		return fmt.Errorf("look at autovacuum: %w", err)
	}
	heaps, err := d.heaps(ctx)
	if err != nil {
		return err
	}
	before := len(d.findings)
	if !on {
		d.add(sdk.Finding{
			Severity: sdk.Warning, Code: "autovacuum_off", Message: "autovacuum is off",
			Hint: "turn it on: deleted rows stay in the table and its indexes, and reads become slow",
			SQL:  "ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET track_counts = on; SELECT pg_reload_conf();",
		})
	}
	for _, h := range heaps {
		d.heap(h)
	}
	if len(d.findings) == before {
		d.ok("autovacuum", "autovacuum cleans %s", d.t.Name)
	}
	return nil
}

func (d *doctor) heap(h heap) {
	warn := func(code, message, hint, sql string) {
		d.add(sdk.Finding{Severity: sdk.Warning, Code: code, Message: message, Hint: hint, SQL: sql})
	}
	if v, ok := h.option("autovacuum_enabled"); ok && slices.Contains([]string{"false", "off", "0", "no", "f", "n"}, strings.ToLower(v)) {
		warn("autovacuum_off", fmt.Sprintf("autovacuum is off for %s", h.name),
			"turn it on: deleted rows stay in the table and its indexes, and reads become slow",
			fmt.Sprintf("ALTER TABLE %s RESET (autovacuum_enabled);", h.name))
	}
	if due := h.baseThreshold + h.scale*max(0, h.tuples); due > manyDead {
		warn("autovacuum_late",
			fmt.Sprintf("autovacuum comes to %s after %s dead rows (%.0f%% of %s): until then each read passes them", h.name, grouped(int64(due)), 100*h.scale, grouped(int64(h.tuples))),
			"let it come by number, and without pauses; the statement waits for no reader and no writer", h.settings())
	}
	if h.dead >= manyDead && h.dead > h.live {
		last := "never"
		if h.vacuumed != nil {
			last = lasting(time.Since(*h.vacuumed)) + " ago"
		}
		warn("dead_rows", fmt.Sprintf("%s has %s dead rows and %s live ones; last vacuum: %s", h.name, grouped(h.dead), grouped(h.live), last),
			"vacuum it; if they stay, an open transaction holds them: see horizon_held", fmt.Sprintf("VACUUM %s;", h.name))
	} else if used := h.live * rowBytes; h.table+h.indexes > manyBytes && h.table+h.indexes > 8*used {
		warn("table_bloated",
			fmt.Sprintf("%s takes %s, its indexes %s, for about %s rows", h.name, size(h.table), size(h.indexes), grouped(h.live)),
			"give the space back while the table is nearly empty; VACUUM cuts off its empty end, REINDEX … CONCURRENTLY keeps nobody waiting",
			fmt.Sprintf("VACUUM (TRUNCATE) %s; REINDEX TABLE CONCURRENTLY %[1]s;", h.name))
	}
}

func (h heap) option(name string) (string, bool) {
	for _, o := range h.options {
		if v, ok := strings.CutPrefix(o, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// settings for a table that is filled and emptied. After ten thousand dead rows a vacuum takes milliseconds, so it need
// not pause: the default takes ten seconds for a million rows, without pauses it is one.
func (h heap) settings() string {
	list := []string{"autovacuum_vacuum_scale_factor = 0", "autovacuum_vacuum_threshold = 10000", "autovacuum_vacuum_cost_delay = 0"}
	if h.toast >= 0 {
		for _, s := range list[:3:3] {
			list = append(list, "toast."+s)
		}
	}
	return fmt.Sprintf("ALTER TABLE %s SET (%s);", h.name, strings.Join(list, ", "))
}

func (d *doctor) heaps(ctx context.Context) ([]heap, error) {
	rows, err := d.s.conn.Query(ctx, `
		SELECT n.nspname, c.relname, coalesce(c.reloptions, '{}'), c.reltuples::float8,
		       pg_relation_size(c.oid), CASE c.reltoastrelid WHEN 0 THEN -1 ELSE pg_relation_size(c.reltoastrelid) END, pg_indexes_size(c.oid),
		       coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0), greatest(s.last_vacuum, s.last_autovacuum),
		       current_setting('autovacuum_vacuum_threshold')::float8, current_setting('autovacuum_vacuum_scale_factor')::float8
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		LEFT JOIN pg_catalog.pg_stat_all_tables s ON s.relid = c.oid
		WHERE c.relkind = 'r' AND (c.oid = $1 OR c.oid IN (SELECT p.relid FROM pg_partition_tree($1) p))
		ORDER BY 1, 2`, d.t.OID)
	if err != nil {
		return nil, fmt.Errorf("look at the size of the table: %w", err)
	}
	heaps, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (h heap, err error) {
		err = r.Scan(&h.name.Schema, &h.name.Table, &h.options, &h.tuples, &h.table, &h.toast, &h.indexes,
			&h.live, &h.dead, &h.vacuumed, &h.baseThreshold, &h.scale)
		return h, err
	})
	if err != nil {
		return nil, fmt.Errorf("look at the size of the table: %w", err)
	}
	for i := range heaps {
		h := &heaps[i]
		for name, to := range map[string]*float64{"autovacuum_vacuum_threshold": &h.baseThreshold, "autovacuum_vacuum_scale_factor": &h.scale} {
			if v, ok := h.option(name); ok {
				if f, err := strconv.ParseFloat(v, 64); err == nil {
					*to = f
				}
			}
		}
	}
	return heaps, nil
}
