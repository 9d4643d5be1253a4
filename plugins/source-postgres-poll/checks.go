package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/relevo-io/relevo/internal/outbox"
)

// What a source cannot start without, beside the columns: the same at the start and for a doctor. Each is nil, or what a
// person must change.

// privileges reports what the role may not do and has to.
func privileges(t *outbox.Table, c config) *outbox.Problem {
	role := outbox.Quote(t.Role)
	lacking := rights(t, c, false)
	var lacks []string
	if !t.HasUsage {
		lacks = append(lacks, "USAGE on the schema "+outbox.Quote(t.Name.Schema))
	}
	if lacking != nil {
		lacks = append(lacks, strings.Join(lacking, " and ")+" on "+t.Name.String())
	}
	if lacks == nil {
		return nil
	}
	return &outbox.Problem{
		Code: "privilege_missing", Path: "/dsn", Message: fmt.Sprintf("the role %s lacks %s", role, strings.Join(lacks, ", ")),
		Hint: "let the owner of the table grant it",
		SQL:  strings.Join(grants(t, role, !t.HasUsage, lacking), " "),
	}
}

// rights are what a relay needs on the table: all of them, or those that its role lacks.
func rights(t *outbox.Table, c config, all bool) []string {
	var need []string
	if all || !t.CanSelect {
		need = append(need, "SELECT")
	}
	if c.after() == outbox.AfterDelete && (all || !t.CanDelete) {
		need = append(need, "DELETE")
	}
	for _, name := range c.AfterPublish.Columns() {
		if column := t.Column(name); column != nil && (all || !column.CanUpdate) {
			need = append(need, fmt.Sprintf("UPDATE (%s)", outbox.Quote(name)))
		}
	}
	return need
}

// grants is the SQL that gives them to a role.
func grants(t *outbox.Table, role string, usage bool, rights []string) []string {
	var sql []string
	if usage {
		sql = append(sql, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", outbox.Quote(t.Name.Schema), role))
	}
	if rights != nil {
		sql = append(sql, fmt.Sprintf("GRANT %s ON %s TO %s;", strings.Join(rights, ", "), t.Name, role))
	}
	return sql
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

// replicaIdentity: a publication that publishes deletes, or updates, makes every one fail of a table that has no replica
// identity.
func replicaIdentity(ctx context.Context, conn *pgx.Conn, t *outbox.Table, c config) (*outbox.Problem, error) {
	if t.Identity == "f" || t.Identity == "i" || t.Identity == "d" && t.PrimaryKey {
		return nil, nil
	}
	var publication string
	doing := "delete"
	if c.after() == outbox.AfterSet {
		doing = "update"
	}
	err := conn.QueryRow(ctx, `
		SELECT p.pubname FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_tables t ON t.pubname = p.pubname
		WHERE CASE $3 WHEN 'delete' THEN p.pubdelete ELSE p.pubupdate END AND t.schemaname = $1 AND t.tablename = $2 ORDER BY 1 LIMIT 1`,
		t.Name.Schema, t.Name.Table, doing).Scan(&publication)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for publications: %w", err)
	}
	return &outbox.Problem{
		Code: "replica_identity_missing", Path: "/table",
		Message: fmt.Sprintf("the publication %s publishes %ss of %s, which has no replica identity: every %s fails", outbox.Quote(publication), doing, t.Name, strings.ToUpper(doing)),
		Hint:    "give the table a primary key or a replica identity, or take it out of the publication",
		SQL:     fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY FULL;", t.Name),
	}, nil
}

// rewriteRule: a rule turns the relay's statement into another one. A row that is not removed is published again and
// again.
func rewriteRule(ctx context.Context, conn *pgx.Conn, t *outbox.Table, c config) (*outbox.Problem, error) {
	event := map[string]string{outbox.AfterDelete: "4", outbox.AfterSet: "2"}[c.after()]
	var name string
	// Beside the relay's DELETE a rule may do more. An UPDATE of marking is inside of WITH, where no rule may be.
	err := conn.QueryRow(ctx, `
		SELECT r.rulename FROM pg_catalog.pg_rewrite r
		WHERE r.ev_class = $1 AND r.ev_type::text = $2 AND r.ev_enabled IN ('O', 'A') AND (r.is_instead OR r.ev_type = '2') ORDER BY 1 LIMIT 1`,
		t.OID, event).Scan(&name)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for rules: %w", err)
	}
	return &outbox.Problem{
		Code: "rule_rewrites", Path: "/table",
		Message: fmt.Sprintf("the rule %s rewrites what the relay does to published rows of %s", outbox.Quote(name), t.Name),
		Hint:    "drop it: published rows would stay, and be published again",
		SQL:     fmt.Sprintf("DROP RULE %s ON %s;", outbox.Quote(name), t.Name),
	}, nil
}

// pendingCondition lets the server parse the user's condition.
func pendingCondition(ctx context.Context, conn *pgx.Conn, l *outbox.Layout, c config) (*outbox.Problem, error) {
	if c.Pending == "" {
		return nil, nil
	}
	q := newQueries(l, c)
	_, err := conn.Prepare(ctx, "", fmt.Sprintf("SELECT 1 FROM %s%s", l.Table.Name, q.where()))
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(e.Code, "42") {
		return &outbox.Problem{
			Code: "pending_invalid", Path: "/pending", Message: "pending: " + e.Message,
			Hint: "it must be a condition on the columns of " + l.Table.Name.String(),
		}, nil
	}
	return nil, err
}

// setClause looks at what published rows are set to, and lets the server parse it.
func setClause(ctx context.Context, conn *pgx.Conn, l *outbox.Layout, c config) (*outbox.Problem, error) {
	if c.after() != outbox.AfterSet {
		return nil, nil
	}
	t := l.Table
	for _, name := range c.AfterPublish.Columns() {
		path := "/after_publish/set/" + name
		switch {
		case t.Column(name) == nil:
			return t.ColumnMissing(path, name), nil
		case slices.ContainsFunc(l.Unique, func(u outbox.Column) bool { return u.Name == name }),
			l.Order != nil && l.Order.Name == name, l.KeyColumn == name:
			return &outbox.Problem{
				Code: "set_column_refused", Path: path,
				Message: fmt.Sprintf("%s identifies the row, or is its key or its order", outbox.Quote(name)),
				Hint:    "set a column that says that the row is published, for example published_at",
			}, nil
		}
	}
	q := newQueries(l, c)
	_, err := conn.Prepare(ctx, "", q.remove(q.arrays(nil)).sql)
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(e.Code, "42") && e.Code != "42501" {
		return &outbox.Problem{
			Code: "set_invalid", Path: "/after_publish/set", Message: "after_publish: " + e.Message,
			Hint: "each value is an SQL expression on the columns of " + t.Name.String() + "; text needs quotes: status: \"'sent'\"",
		}, nil
	}
	if isCode(err, "42501") {
		return nil, nil // said by privileges
	}
	return nil, err
}

// startProblems are all of them, for one layout.
func startProblems(ctx context.Context, conn *pgx.Conn, l *outbox.Layout, c config) ([]*outbox.Problem, error) {
	if c.after() == outbox.AfterKeep {
		return keptProblems(ctx, conn, l, c)
	}
	identity, err := replicaIdentity(ctx, conn, l.Table, c)
	if err != nil {
		return nil, err
	}
	condition, err := pendingCondition(ctx, conn, l, c)
	if err != nil {
		return nil, err
	}
	rule, err := rewriteRule(ctx, conn, l.Table, c)
	if err != nil {
		return nil, err
	}
	var marking *outbox.Problem
	if rule == nil { // the server does not even parse a marking that a rule rewrites
		if marking, err = setClause(ctx, conn, l, c); err != nil {
			return nil, err
		}
	}
	housekeeping, err := retentionProblem(ctx, conn, l.Table, c)
	if err != nil {
		return nil, err
	}
	var found []*outbox.Problem
	for _, p := range []*outbox.Problem{privileges(l.Table, c), rowSecurity(l.Table), roundsNeedID(l), identity, rule, condition, marking, housekeeping} {
		if p != nil {
			found = append(found, p)
		}
	}
	return found, nil
}
