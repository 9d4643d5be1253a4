package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/relevo-io/relevo/internal/outbox"
)

// privileges reports what the role may not do and has to.
func privileges(t *outbox.Table) error {
	var grants, lacks []string
	if !t.HasUsage {
		lacks = append(lacks, "USAGE on schema "+t.Name.Schema)
		grants = append(grants, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", outbox.Quote(t.Name.Schema), outbox.Quote(t.Role)))
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
		grants = append(grants, fmt.Sprintf("GRANT %s ON %s TO %s;", strings.Join(rights, ", "), t.Name, outbox.Quote(t.Role)))
	}
	if lacks == nil {
		return nil
	}
	return &outbox.Problem{
		Code: "privilege_missing", Path: "/dsn",
		Message: fmt.Sprintf("the role %s lacks %s", outbox.Quote(t.Role), strings.Join(lacks, ", ")),
		Hint:    "a relay reads rows and deletes them", SQL: strings.Join(grants, " "),
	}
}

// roundsNeedID: a round is a list of what identifies rows, and NULL identifies nothing.
func roundsNeedID(l *outbox.Layout) error {
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

// tryPending lets the server parse the user's condition, with the statement that will be run.
func tryPending(ctx context.Context, s *session, l *outbox.Layout, pending string) error {
	if pending == "" {
		return nil
	}
	q := newQueries(l, pending)
	_, err := s.conn.Prepare(ctx, "", fmt.Sprintf("SELECT 1 FROM %s%s", l.Table.Name, q.where()))
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(e.Code, "42") {
		return &outbox.Problem{
			Code: "pending_invalid", Path: "/pending", Message: "pending: " + e.Message,
			Hint: "it must be a condition on the columns of " + l.Table.Name.String(),
		}
	}
	return err
}
