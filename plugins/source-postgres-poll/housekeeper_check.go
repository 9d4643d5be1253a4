package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/relevo-io/relevo/internal/outbox"
)

// What housekeeping cannot do without: the same at the start and for a doctor.

// retentionProblem is what a person must change before the start.
func retentionProblem(ctx context.Context, conn *pgx.Conn, t *outbox.Table, c config) (*outbox.Problem, error) {
	if c.Retention == nil {
		return nil, nil
	}
	if c.after() == outbox.AfterSet {
		if _, p := marker(t, c); p != nil {
			return p, nil
		}
	}
	if c.Retention.Every == "" {
		if t.CanDelete {
			return nil, nil
		}
		return &outbox.Problem{
			Code: "privilege_missing", Path: "/retention", Message: fmt.Sprintf("the role %s lacks DELETE on %s", outbox.Quote(t.Role), t.Name),
			Hint: "retention deletes rows that were marked long ago", SQL: fmt.Sprintf("GRANT DELETE ON %s TO %s;", t.Name, outbox.Quote(t.Role)),
		}, nil
	}
	ps, err := outbox.InspectPartitions(ctx, conn, t)
	if p, ok := errors.AsType[*outbox.Problem](err); ok {
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	if p := partitionsRefused(ps); p != nil {
		return p, nil
	}
	if ps.Days() && c.Retention.Every == hourly {
		return &outbox.Problem{
			Code: "retention_partition_key", Path: "/retention/every", Message: fmt.Sprintf("%s is partitioned by a date", t.Name),
			Hint: "the shortest partition is a day",
		}, nil
	}
	return partitionRights(ctx, conn, ps)
}

// partitionsRefused: with a default partition none can be detached without locking the service out, and to attach one, all
// of the default is read under a lock.
func partitionsRefused(ps *outbox.Partitions) *outbox.Problem {
	if ps.Default == (outbox.Name{}) {
		return nil
	}
	return &outbox.Problem{
		Code: "retention_default_partition", Path: "/retention/every",
		Message: fmt.Sprintf("%s has a default partition, %s, and PostgreSQL detaches none concurrently then", ps.Table.Name, ps.Default),
		Hint:    "partitions are made ahead, so no row needs a default: when nothing is in it that is not published, detach it (a lock for a moment) and drop it",
		SQL:     fmt.Sprintf("SET lock_timeout = '1s'; ALTER TABLE %s DETACH PARTITION %s;", ps.Table.Name, ps.Default),
	}
}

// partitionRights: only the owner may attach and detach. A foreign key that points at the table forbids it.
func partitionRights(ctx context.Context, conn *pgx.Conn, ps *outbox.Partitions) (*outbox.Problem, error) {
	t, role, owner := ps.Table, outbox.Quote(ps.Table.Role), outbox.Quote(ps.Owner)
	var member, create bool
	var pointing []string
	err := conn.QueryRow(ctx, `
		SELECT pg_has_role($1, 'MEMBER'), has_schema_privilege($1, $2, 'CREATE'),
		       ARRAY(SELECT DISTINCT k.conrelid::regclass::text FROM pg_catalog.pg_constraint k WHERE k.contype = 'f' AND k.confrelid = $3 AND k.conrelid <> $3)`,
		ps.Owner, t.Name.Schema, t.OID).Scan(&member, &create, &pointing)
	if err != nil {
		return nil, fmt.Errorf("look at the rights on partitions: %w", err)
	}
	switch {
	case !member:
		return &outbox.Problem{
			Code: "retention_not_owner", Path: "/retention/every",
			Message: fmt.Sprintf("the role %s is not a member of %s, which owns %s", role, owner, t.Name),
			Hint:    "only the owner of a table can make and detach its partitions", SQL: fmt.Sprintf("GRANT %s TO %s;", owner, role),
		}, nil
	case !create:
		return &outbox.Problem{
			Code: "retention_not_owner", Path: "/retention/every",
			Message: fmt.Sprintf("the role %s, which owns %s, may not create tables in its schema", owner, t.Name),
			Hint:    "new partitions are tables", SQL: fmt.Sprintf("GRANT CREATE ON SCHEMA %s TO %s;", outbox.Quote(t.Name.Schema), owner),
		}, nil
	case len(pointing) > 0:
		return &outbox.Problem{
			Code: "retention_foreign_key", Path: "/retention/every",
			Message: fmt.Sprintf("foreign keys of %s point at %s: to detach a partition, PostgreSQL looks for each of its rows there", strings.Join(pointing, ", "), t.Name),
			Hint:    "drop the foreign key: an event goes, and what points at it should not keep it",
		}, nil
	}
	return nil, nil
}

// sealPause is between tries for a lock that readers hold for moments.
const sealPause = 20 * time.Millisecond

// blocker is a condition on rows: with one in it a partition is not dropped.
type blocker struct {
	cond string
	why  string // what to say of it; "": it passes by itself
}

// blockers are those for what happens to published rows.
func (h *housekeeper) blockers() ([]blocker, error) {
	switch h.c.after() {
	case outbox.AfterDelete:
		return []blocker{{"true", "it is old, and rows in it are not published yet"}}, nil
	case outbox.AfterKeep:
		if p := keptColumns(h.l); p != nil {
			return nil, p
		}
		old, err := h.published()
		if err != nil {
			return nil, err
		}
		return keptBlockers(old, outbox.Quote(h.l.Tx.Name)), nil
	case outbox.AfterSet:
		m, p := marker(h.l.Table, h.c)
		if p != nil {
			return nil, p
		}
		column := outbox.Quote(m.Name)
		// One by one, so that each can use its index.
		return []blocker{
			{fmt.Sprintf("(%s\n)", h.c.Pending), "it is old, and rows in it are not published yet"},
			{column + " IS NULL", fmt.Sprintf("it is old, and rows in it are not marked: %s is NULL", column)},
			{fmt.Sprintf("%s >= %s", column, cutoff(h.c)), ""},
		}, nil
	}
	return nil, errors.New("BUG: retention without a rule for what may go")
}

func (b blocker) in(ctx context.Context, q querier, name outbox.Name) (found bool, err error) {
	err = q.QueryRow(ctx, fmt.Sprintf("SELECT EXISTS (SELECT FROM ONLY %s WHERE %s)", name, b.cond)).Scan(&found)
	return found, err
}

// mayDrop reports whether nothing in a table forbids to drop it, and else why; "": it passes by itself.
func mayDrop(ctx context.Context, q querier, name outbox.Name, blockers []blocker) (ok bool, why string, err error) {
	for _, b := range blockers {
		if found, err := b.in(ctx, q, name); err != nil || found {
			return false, b.why, err
		}
	}
	return true, "", nil
}

// stays is the error of a partition that may not go.
func stays(why string, err error) error {
	if err == nil && why != "" {
		return errors.New(why)
	}
	return err
}

var errNotPlain = errors.New("it is partitioned itself, or foreign")

// halfDetached is somebody else's work.
func halfDetached(t *outbox.Table, name outbox.Name) *outbox.Problem {
	return &outbox.Problem{
		Code: "partition_half_detached", Path: "/retention",
		Message: fmt.Sprintf("somebody began to detach the partition %s and did not finish: its rows are not read, and no other one can be detached", name),
		Hint:    "finish it, and look for rows in it that are not published",
		SQL:     fmt.Sprintf("ALTER TABLE %s DETACH PARTITION %s FINALIZE;", t.Name, name),
	}
}

// rowsLeft: the seal was taken off, or what counts as published was changed.
func rowsLeft(t *outbox.Table, name outbox.Name, why string) *outbox.Problem {
	return &outbox.Problem{
		Code: "partition_rows_left", Path: "/retention",
		Message: fmt.Sprintf("it is detached, and nevertheless %s", why),
		Hint:    "have pending or after_publish been changed, or the position been dropped? Without its seal it is left alone: then attach it again to have the rows published, or drop it",
		SQL:     fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s;", name, outbox.Quote(t.Seal())),
	}
}

// indexed reports whether an index leads with the marker.
func indexed(ctx context.Context, conn *pgx.Conn, t *outbox.Table, m outbox.Column) (ok bool, err error) {
	err = conn.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
		WHERE i.indrelid = $1 AND i.indisvalid AND a.attname = $2
		  AND (i.indpred IS NULL OR pg_get_expr(i.indpred, i.indrelid) = format('(%I IS NOT NULL)', a.attname)))`, t.OID, m.Name).Scan(&ok)
	if err != nil {
		return false, fmt.Errorf("look for an index on %s: %w", m.Name, err)
	}
	return ok, nil
}

func markerIndexMissing(t *outbox.Table, m outbox.Column) *outbox.Problem {
	concurrently := " CONCURRENTLY"
	if t.Partitioned {
		concurrently = "" // not there for partitioned tables
	}
	return &outbox.Problem{
		Code: "retention_index_missing", Path: "/retention",
		Message: fmt.Sprintf("no index begins with %s: nothing is reaped, for each batch would pass all of %s", outbox.Quote(m.Name), t.Name),
		Hint:    "create one; marked rows stay until then",
		SQL:     fmt.Sprintf("CREATE INDEX%s ON %s (%s);", concurrently, t.Name, outbox.Quote(m.Name)),
	}
}
