package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/relevo-io/relevo/internal/outbox"
)

// What a source cannot start without, beside the columns: the same at the start and for a doctor. Each is nil, or what a
// person must change.

// privileges reports what the role may not do and has to.
func privileges(t *outbox.Table) *outbox.Problem {
	role := outbox.Quote(t.Role)
	var grants, lacks []string
	if !t.HasUsage {
		lacks = append(lacks, "USAGE on the schema "+outbox.Quote(t.Name.Schema))
		grants = append(grants, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", outbox.Quote(t.Name.Schema), role))
	}
	var rights []string
	if !t.CanSelect {
		rights = append(rights, "SELECT")
	}
	if !t.CanDelete {
		rights = append(rights, "DELETE")
	}
	if rights != nil {
		lacks = append(lacks, strings.Join(rights, " and ")+" on "+t.Name.String())
		grants = append(grants, fmt.Sprintf("GRANT %s ON %s TO %s;", strings.Join(rights, ", "), t.Name, role))
	}
	if lacks == nil {
		return nil
	}
	return &outbox.Problem{
		Code: "privilege_missing", Path: "/dsn", Message: fmt.Sprintf("the role %s lacks %s", role, strings.Join(lacks, ", ")),
		Hint: "a relay reads rows and deletes them; the owner of the table can grant it", SQL: strings.Join(grants, " "),
	}
}

// rowSecurity: policies hide rows without a word. The sessions ask for an error instead, so nothing would be read.
func rowSecurity(t *outbox.Table) *outbox.Problem {
	if !t.RowSecurity {
		return nil
	}
	return &outbox.Problem{
		Code: "row_security", Path: "/table", Message: fmt.Sprintf("row security hides rows of %s from the role %s", t.Name, outbox.Quote(t.Role)),
		Hint: "a relay must see every row", SQL: fmt.Sprintf("ALTER ROLE %s BYPASSRLS;", outbox.Quote(t.Role)),
	}
}

// roundsNeedID: a round is a list of what identifies rows, and NULL identifies nothing.
func roundsNeedID(l *outbox.Layout) *outbox.Problem {
	if l.Order != nil || !l.Nullable() {
		return nil
	}
	var alter []string
	for _, c := range l.Unique {
		if !c.NotNull {
			alter = append(alter, fmt.Sprintf("ALTER COLUMN %s SET NOT NULL", outbox.Quote(c.Name)))
		}
	}
	return &outbox.Problem{
		Code: "id_nullable", Path: "/columns/id", Message: "a column that identifies the row may be NULL, and there is no order column",
		Hint: "such rows could neither be read in turn nor be deleted",
		SQL:  fmt.Sprintf("ALTER TABLE %s %s;", l.Table.Name, strings.Join(alter, ", ")),
	}
}

// replicaIdentity: a publication that publishes deletes makes every DELETE of a table fail that has no replica identity.
func replicaIdentity(ctx context.Context, conn *pgx.Conn, t *outbox.Table) (*outbox.Problem, error) {
	if t.Identity == "f" || t.Identity == "i" || t.Identity == "d" && t.PrimaryKey {
		return nil, nil
	}
	var publication string
	err := conn.QueryRow(ctx, `
		SELECT p.pubname FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_tables t ON t.pubname = p.pubname
		WHERE p.pubdelete AND t.schemaname = $1 AND t.tablename = $2 ORDER BY 1 LIMIT 1`,
		t.Name.Schema, t.Name.Table).Scan(&publication)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for publications: %w", err)
	}
	return &outbox.Problem{
		Code: "replica_identity_missing", Path: "/table",
		Message: fmt.Sprintf("the publication %s publishes deletes of %s, which has no replica identity: every DELETE fails", outbox.Quote(publication), t.Name),
		Hint:    "give the table a primary key or a replica identity, or take it out of the publication",
		SQL:     fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY FULL;", t.Name),
	}, nil
}

// pendingCondition lets the server parse the user's condition.
func pendingCondition(ctx context.Context, conn *pgx.Conn, l *outbox.Layout, pending string) (*outbox.Problem, error) {
	if pending == "" {
		return nil, nil
	}
	q := newQueries(l, pending)
	_, err := conn.Prepare(ctx, "", fmt.Sprintf("SELECT 1 FROM %s%s", l.Table.Name, q.where()))
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(e.Code, "42") {
		return &outbox.Problem{
			Code: "pending_invalid", Path: "/pending", Message: "pending: " + e.Message,
			Hint: "it must be a condition on the columns of " + l.Table.Name.String(),
		}, nil
	}
	return nil, err
}

// startProblems are all of them, for one layout.
func startProblems(ctx context.Context, conn *pgx.Conn, l *outbox.Layout, pending string) ([]*outbox.Problem, error) {
	identity, err := replicaIdentity(ctx, conn, l.Table)
	if err != nil {
		return nil, err
	}
	condition, err := pendingCondition(ctx, conn, l, pending)
	if err != nil {
		return nil, err
	}
	var found []*outbox.Problem
	for _, p := range []*outbox.Problem{privileges(l.Table), rowSecurity(l.Table), roundsNeedID(l), identity, condition} {
		if p != nil {
			found = append(found, p)
		}
	}
	return found, nil
}
