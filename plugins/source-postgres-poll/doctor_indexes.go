package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/relevo-io/relevo/sdk"
)

// manyInserts is when an index that nobody has read is one that nobody will.
const manyInserts = 100_000

// indexes: each costs every insert and every vacuum, also those that nobody reads. Those of partitions are left to their
// table.
func (d *doctor) indexes(ctx context.Context) error {
	rows, err := d.s.conn.Query(ctx, `
		SELECT format('%I.%I', n.nspname, c.relname), i.indisvalid, pg_relation_size(c.oid), coalesce(t.n_tup_ins, 0)
		FROM pg_catalog.pg_index i
		JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		LEFT JOIN pg_catalog.pg_stat_all_tables t ON t.relid = i.indrelid
		LEFT JOIN pg_catalog.pg_stat_all_indexes s ON s.indexrelid = i.indexrelid
		WHERE i.indrelid = $1 AND c.relkind = 'i'
		  AND (NOT i.indisvalid AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_progress_create_index p WHERE p.index_relid = c.oid)
		       OR i.indisvalid AND s.idx_scan = 0 AND NOT i.indisunique AND NOT i.indisexclusion AND t.n_tup_ins >= $2
		          AND i.indkey[0] <> coalesce((SELECT a.attnum FROM pg_catalog.pg_attribute a WHERE a.attrelid = i.indrelid AND a.attname = $3), 0))
		ORDER BY 1`, d.t.OID, manyInserts, d.orderName())
	if err != nil {
		return fmt.Errorf("look at the indexes: %w", err)
	}
	var name string
	var valid bool
	var bytes, inserts int64
	_, err = pgx.ForEachRow(rows, []any{&name, &valid, &bytes, &inserts}, func() error {
		f := sdk.Finding{
			Severity: sdk.Warning, Code: "index_unused",
			Message: fmt.Sprintf("the index %s (%s) was never read while %s rows came: it only makes them dearer", name, size(bytes), grouped(inserts)),
			Hint:    "drop it if no other server reads it either: counts of a standby are its own",
			SQL:     fmt.Sprintf("DROP INDEX CONCURRENTLY %s;", name),
		}
		if !valid {
			f.Code = "index_invalid"
			f.Message = fmt.Sprintf("the index %s is not valid: a CREATE INDEX CONCURRENTLY did not end; it costs, and nobody reads it", name)
			f.Hint = "build it again, or drop it"
			f.SQL = fmt.Sprintf("REINDEX INDEX CONCURRENTLY %s;", name)
		}
		d.add(f)
		return nil
	})
	if err != nil {
		return fmt.Errorf("look at the indexes: %w", err)
	}
	return nil
}

// orderName is the order column; "": there is none.
func (d *doctor) orderName() string {
	if d.l == nil || d.l.Order == nil {
		return ""
	}
	return d.l.Order.Name
}
