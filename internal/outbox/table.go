package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Type OIDs that the layout knows, as in pg_type.dat.
const (
	oidBytea       = 17
	oidInt8        = 20
	oidInt2        = 21
	oidInt4        = 23
	oidText        = 25
	oidJSON        = 114
	oidXML         = 142
	oidBpchar      = 1042
	oidVarchar     = 1043
	oidTimestamp   = 1114
	oidTimestamptz = 1184
	oidUUID        = 2950
	oidJSONB       = 3802
	oidXID8        = 5069
)

// Column of a table.
type Column struct {
	Name    string
	Type    uint32 // of a domain: its base type
	SQLType string // as SQL writes it, schema included where it needs one
	NotNull bool
	Enum    bool
	// CanUpdate: the role may update it.
	CanUpdate bool

	// Sequence is where its values come from (identity, serial, or a default with nextval); Cache 0 means that there is none.
	Sequence  string
	Cache     int64
	Increment int64
	Cycle     bool
}

// Index of a table: plain columns only, valid, not partial.
type Index struct {
	Name    string
	Unique  bool
	Columns []string
}

// Table is what the database says about the outbox.
type Table struct {
	OID         uint32
	Name        Name
	Partitioned bool
	Columns     []Column
	Indexes     []Index
	RowSecurity bool // policies apply to this role
	PrimaryKey  bool
	Identity    string // pg_class.relreplident
	Options     []string
	CanSelect   bool
	CanDelete   bool
	HasUsage    bool // of the schema
	Role        string
}

// Column finds a column by its exact name; nil: there is none.
func (t *Table) Column(name string) *Column {
	for i := range t.Columns {
		if t.Columns[i].Name == name {
			return &t.Columns[i]
		}
	}
	return nil
}

// Inspect looks the table up. conn must take parameters without preparing (pgx.QueryExecModeExec or the like). That it
// is missing, or no table, is a *Problem.
func Inspect(ctx context.Context, conn *pgx.Conn, name Name) (*Table, error) {
	t := &Table{}
	var kind string
	err := conn.QueryRow(ctx, `
		SELECT c.oid, n.nspname, c.relname, c.relkind::text, coalesce(c.reloptions, '{}'), current_user::text,
		       row_security_active(c.oid), c.relreplident::text,
		       EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
		       has_schema_privilege(n.oid, 'USAGE'), has_table_privilege(c.oid, 'SELECT'), has_table_privilege(c.oid, 'DELETE')
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relname = $1 AND CASE WHEN $2 = '' THEN pg_catalog.pg_table_is_visible(c.oid) ELSE n.nspname = $2 END
		  AND c.relkind NOT IN ('i', 'I', 'S', 't', 'c')`,
		name.Table, name.Schema).Scan(&t.OID, &t.Name.Schema, &t.Name.Table, &kind, &t.Options, &t.Role,
		&t.RowSecurity, &t.Identity, &t.PrimaryKey, &t.HasUsage, &t.CanSelect, &t.CanDelete)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, missingTable(ctx, conn, name)
	case err != nil:
		return nil, fmt.Errorf("look up the table %s: %w", name, err)
	case kind != "r" && kind != "p":
		return nil, &Problem{
			Code: "not_a_table", Path: "/table", Message: fmt.Sprintf("%s is not a table", t.Name),
			Hint: "rows are deleted after they were published: name the table itself",
		}
	}
	t.Partitioned = kind == "p"
	if err := t.columns(ctx, conn); err != nil {
		return nil, fmt.Errorf("look up the columns of %s: %w", t.Name, err)
	}
	if err := t.indexes(ctx, conn); err != nil {
		return nil, fmt.Errorf("look up the indexes of %s: %w", t.Name, err)
	}
	return t, nil
}

func missingTable(ctx context.Context, conn *pgx.Conn, name Name) error {
	p := &Problem{
		Code: "table_missing", Path: "/table", Message: fmt.Sprintf("there is no table %s", name),
		Hint: "names are taken exactly as written, upper and lower case included",
	}
	var schema, table string
	err := conn.QueryRow(ctx, `
		SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE lower(c.relname) = lower($1) AND c.relkind IN ('r', 'p') ORDER BY n.nspname LIMIT 1`, name.Table).Scan(&schema, &table)
	if err == nil {
		p.Hint = fmt.Sprintf("there is %s: names are taken exactly as written, upper and lower case included", Name{schema, table})
	}
	return p
}

func (t *Table) columns(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `
		SELECT a.attname, coalesce(nullif(ty.typbasetype, 0), ty.oid), format_type(a.atttypid, a.atttypmod), a.attnotnull,
		       ty.typtype = 'e', has_column_privilege(a.attrelid, a.attnum, 'UPDATE'), coalesce(q.name, ''), coalesce(q.seqcache, 0), coalesce(q.seqincrement, 0), coalesce(q.seqcycle, false)
		FROM pg_catalog.pg_attribute a
		JOIN pg_catalog.pg_type ty ON ty.oid = a.atttypid
		LEFT JOIN LATERAL (
			SELECT s.seqrelid::regclass::text AS name, s.seqcache, s.seqincrement, s.seqcycle
			FROM pg_catalog.pg_sequence s
			WHERE s.seqrelid IN (
				SELECT d.objid FROM pg_catalog.pg_depend d
				WHERE a.attidentity <> '' AND d.deptype = 'i' AND d.classid = 'pg_catalog.pg_class'::regclass
				  AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum
				UNION
				SELECT d.refobjid FROM pg_catalog.pg_attrdef f
				JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_attrdef'::regclass AND d.objid = f.oid
				  AND d.refclassid = 'pg_catalog.pg_class'::regclass
				WHERE f.adrelid = a.attrelid AND f.adnum = a.attnum)
			LIMIT 1) q ON true
		WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
		ORDER BY a.attnum`, t.OID)
	if err != nil {
		return err
	}
	t.Columns, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (c Column, err error) {
		err = r.Scan(&c.Name, &c.Type, &c.SQLType, &c.NotNull, &c.Enum, &c.CanUpdate, &c.Sequence, &c.Cache, &c.Increment, &c.Cycle)
		return c, err
	})
	return err
}

func (t *Table) indexes(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `
		SELECT c.relname, i.indisunique,
		       ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(num, n)
		             JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.num
		             WHERE k.n <= i.indnkeyatts ORDER BY k.n)
		FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
		WHERE i.indrelid = $1 AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
		ORDER BY i.indisprimary DESC, i.indnkeyatts, c.relname`, t.OID)
	if err != nil {
		return err
	}
	t.Indexes, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (x Index, err error) {
		err = r.Scan(&x.Name, &x.Unique, &x.Columns)
		return x, err
	})
	return err
}

// uniqueKey is what identifies a row: the columns of a unique index that covers id alone, on a partitioned table with
// the partition's columns (no unique index can do without them there). Two rows with one id may live in two partitions.
func (t *Table) uniqueKey(id string) ([]string, *Problem) {
	for _, x := range t.Indexes {
		if !x.Unique || !slices.Contains(x.Columns, id) {
			continue
		}
		if len(x.Columns) == 1 {
			return x.Columns, nil
		}
		if t.Partitioned {
			// The id first, the rest in the index's order.
			key := []string{id}
			for _, c := range x.Columns {
				if c != id {
					key = append(key, c)
				}
			}
			return key, nil
		}
	}
	p := &Problem{
		Code: "unique_index_missing", Path: "/columns/id",
		Message: fmt.Sprintf("no unique index covers the column %s of %s alone", Quote(id), t.Name),
		Hint:    "rows are deleted by their id: it must name one row",
		SQL:     fmt.Sprintf("CREATE UNIQUE INDEX CONCURRENTLY ON %s (%s);", t.Name, Quote(id)),
	}
	if t.Partitioned {
		p.Message = fmt.Sprintf("no unique index of the partitioned table %s covers the column %s", t.Name, Quote(id))
		p.Hint = "add a unique index on the id and the columns by which the table is partitioned"
		p.SQL = ""
	}
	return nil, p
}

// OrderIndex reports whether an index leads with the column, so that an ordered read needs no sort.
func (t *Table) OrderIndex(column string) bool {
	return slices.ContainsFunc(t.Indexes, func(x Index) bool { return x.Columns[0] == column })
}

// ColumnMissing says so, and names the column that was meant, if there is one that looks like it.
func (t *Table) ColumnMissing(path, name string) *Problem {
	p := &Problem{
		Code: "column_missing", Path: path, Message: fmt.Sprintf("%s has no column %s", t.Name, Quote(name)),
		Hint: `name the column that holds it; "" says that there is none`,
	}
	for _, c := range t.Columns {
		if strings.EqualFold(strings.ReplaceAll(c.Name, "_", ""), strings.ReplaceAll(name, "_", "")) {
			p.Hint = fmt.Sprintf("did you mean %q? Names are taken exactly as written", c.Name)
		}
	}
	return p
}
