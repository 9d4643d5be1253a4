package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// oidDate is the type of a day.
const oidDate = 1082

// Open ends of a range, MINVALUE and MAXVALUE: so bounds compare like other times.
var (
	MinTime = time.Time{}
	MaxTime = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
)

// Partitions are those of a table that is partitioned by ranges of one column of times.
type Partitions struct {
	Table  *Table
	Column *Column
	Owner  string
	// Default is the default partition; zero: there is none.
	Default Name
	List    []Partition // by their upper bounds
	// Detached are tables that were partitions, and bear the seal.
	Detached []Name
	Now      time.Time // the server's clock
}

// Partition holds the rows from Lower to before Upper.
type Partition struct {
	OID          uint32
	Name         Name
	Lower, Upper time.Time
	// Plain: a table. Others are partitioned themselves, or foreign.
	Plain bool
	// Detaching: a DETACH CONCURRENTLY of it was begun, and not finished.
	Detaching bool
	// Sealed: it has the constraint named by Seal.
	Sealed bool
}

// Seal names the constraint that closes a partition to new rows, and says that we did it. The oid in it is the table's: in
// a restored dump it is another one, and nothing there counts as ours.
func (t *Table) Seal() string { return fmt.Sprintf("relevo_sealed_%d", t.OID) }

// InspectPartitions looks them up. That the table is not partitioned by time is a *Problem.
func InspectPartitions(ctx context.Context, conn *pgx.Conn, t *Table) (*Partitions, error) {
	ps := &Partitions{Table: t}
	var strategy, column string
	var keys int
	err := conn.QueryRow(ctx, `
		SELECT p.partstrat::text, p.partnatts, coalesce(a.attname, ''), pg_get_userbyid(c.relowner), now(),
		       coalesce((SELECT n.nspname FROM pg_catalog.pg_class d JOIN pg_catalog.pg_namespace n ON n.oid = d.relnamespace WHERE d.oid = p.partdefid), ''),
		       coalesce((SELECT d.relname FROM pg_catalog.pg_class d WHERE d.oid = p.partdefid), '')
		FROM pg_catalog.pg_partitioned_table p JOIN pg_catalog.pg_class c ON c.oid = p.partrelid
		LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0] AND a.attnum > 0
		WHERE p.partrelid = $1`, t.OID).
		Scan(&strategy, &keys, &column, &ps.Owner, &ps.Now, &ps.Default.Schema, &ps.Default.Table)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("look up the partitions of %s: %w", t.Name, err)
	}
	ps.Column = t.Column(column)
	if strategy != "r" || keys != 1 || ps.Column == nil || !slices.Contains([]uint32{oidTimestamptz, oidTimestamp, oidDate}, ps.Column.Type) {
		return nil, &Problem{
			Code: "retention_partition_key", Path: "/retention/every",
			Message: fmt.Sprintf("%s is not partitioned by ranges of one column of type timestamptz, timestamp or date", t.Name),
			Hint:    "partitions are made and dropped by time only; without every, rows are deleted one by one once they are marked (after_publish: {set: …})",
		}
	}
	if err := ps.list(ctx, conn); err != nil {
		return nil, err
	}
	return ps, ps.detached(ctx, conn)
}

func (ps *Partitions) list(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `
		SELECT c.oid, n.nspname, c.relname, c.relkind = 'r', i.inhdetachpending, pg_get_expr(c.relpartbound, c.oid),
		       EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'c' AND k.conname = $2)
		FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE i.inhparent = $1 AND c.relpartbound IS NOT NULL AND pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT'`, ps.Table.OID, ps.Table.Seal())
	if err != nil {
		return fmt.Errorf("look up the partitions of %s: %w", ps.Table.Name, err)
	}
	ps.List, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (p Partition, err error) {
		var bound string
		if err = r.Scan(&p.OID, &p.Name.Schema, &p.Name.Table, &p.Plain, &p.Detaching, &bound, &p.Sealed); err != nil {
			return p, err
		}
		p.Lower, p.Upper, err = parseRange(bound)
		return p, err
	})
	if err != nil {
		return fmt.Errorf("look up the partitions of %s: %w", ps.Table.Name, err)
	}
	slices.SortFunc(ps.List, func(a, b Partition) int { return a.Upper.Compare(b.Upper) })
	return nil
}

func (ps *Partitions) detached(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `
		SELECT n.nspname, c.relname
		FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class c ON c.oid = k.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE k.conname = $1 AND k.contype = 'c' AND c.relkind = 'r' AND NOT c.relispartition ORDER BY c.oid`, ps.Table.Seal())
	if err != nil {
		return fmt.Errorf("look for detached partitions of %s: %w", ps.Table.Name, err)
	}
	ps.Detached, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (n Name, err error) {
		err = r.Scan(&n.Schema, &n.Table)
		return n, err
	})
	if err != nil {
		return fmt.Errorf("look for detached partitions of %s: %w", ps.Table.Name, err)
	}
	return nil
}

// Last is the partition with the highest bound that is a table of its own: what a new one is to be like. nil: there is none.
func (ps *Partitions) Last() *Partition {
	for i := len(ps.List) - 1; i >= 0; i-- {
		if p := &ps.List[i]; p.Plain && !p.Detaching {
			return p
		}
	}
	return nil
}

// Days reports whether a bound can only be a whole day.
func (ps *Partitions) Days() bool { return ps.Column.Type == oidDate }

// Bound is a bound as SQL. A timestamp without time zone is taken for UTC.
func (ps *Partitions) Bound(t time.Time) string {
	switch ps.Column.Type {
	case oidDate:
		return Literal(t.UTC().Format(time.DateOnly))
	case oidTimestamp:
		return Literal(t.UTC().Format(time.DateTime))
	}
	return Literal(t.UTC().Format(time.DateTime + "+00"))
}

// parseRange reads what pg_get_expr makes of a range of one column: FOR VALUES FROM ('2026-11-01 00:00:00+00') TO (MAXVALUE).
func parseRange(s string) (lower, upper time.Time, err error) {
	from, to, ok := strings.Cut(strings.TrimPrefix(s, "FOR VALUES FROM ("), ") TO (")
	if !ok {
		return lower, upper, fmt.Errorf("%q is not a range", s)
	}
	if lower, err = parseBound(from); err != nil {
		return lower, upper, err
	}
	upper, err = parseBound(strings.TrimSuffix(to, ")"))
	return lower, upper, err
}

func parseBound(s string) (time.Time, error) {
	switch s = strings.Trim(s, "'"); s {
	case "MINVALUE", "-infinity":
		return MinTime, nil
	case "MAXVALUE", "infinity":
		return MaxTime, nil
	}
	micro, _, err := readISO([]byte(s))
	if err != nil {
		return MinTime, fmt.Errorf("%q is not a bound: %w", s, err)
	}
	return time.UnixMicro(micro).UTC(), nil
}
