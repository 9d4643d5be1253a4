package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// planNode is a part of what EXPLAIN (FORMAT JSON) answers.
type planNode struct {
	NodeType  string     `json:"Node Type"`
	Relation  string     `json:"Relation Name"`
	Index     string     `json:"Index Name"`
	IndexCond string     `json:"Index Cond"`
	Filter    string     `json:"Filter"`
	Rows      float64    `json:"Plan Rows"`
	Plans     []planNode `json:"Plans"`
}

// some reports whether a node, or one below it, is so.
func (n planNode) some(is func(planNode) bool) bool {
	if is(n) {
		return true
	}
	for _, p := range n.Plans {
		if p.some(is) {
			return true
		}
	}
	return false
}

// sorts: all rows are read before the first one is sent.
func (n planNode) sorts() bool { return n.NodeType == "Sort" || n.NodeType == "Incremental Sort" }

// readsAll: every row of a table is read.
func (n planNode) readsAll() bool {
	return n.Relation != "" && n.IndexCond == "" && n.NodeType != "ModifyTable"
}

func (n planNode) filters() bool { return n.Relation != "" && n.Filter != "" }

// explain asks how the server would run a statement, in a session with the settings of the relay's own.
func (d *doctor) explain(ctx context.Context, q statement) (planNode, error) {
	res := d.s.conn.PgConn().ExecParams(ctx, "EXPLAIN (FORMAT JSON) "+q.sql, q.params, nil, nil, nil).Read()
	if res.Err != nil {
		return planNode{}, res.Err
	}
	var plans []struct{ Plan planNode }
	if len(res.Rows) != 1 || json.Unmarshal(res.Rows[0][0], &plans) != nil || len(plans) != 1 {
		return planNode{}, errors.New("server's answer to EXPLAIN is no plan")
	}
	return plans[0].Plan, nil
}

// plans judges the indexes by what the server does with them, not by their names: for the statements of a relay.
func (d *doctor) plans(ctx context.Context) error {
	// EXPLAIN needs the same rights. What reading kept rows needs was said with what it cannot start without.
	if privileges(d.t, d.c) != nil || d.c.after() == outbox.AfterKeep {
		return nil
	}
	q := newQueries(d.l, d.c)
	if d.l.Order != nil {
		read, err := d.explain(ctx, q.read(q.where(), " ORDER BY "+outbox.Quote(d.l.Order.Name), d.c.Batch))
		if err != nil {
			return fmt.Errorf("explain the reading: %w", err)
		}
		if err := d.orderedPlan(ctx, read); err != nil {
			return err
		}
	}
	arrays := q.arrays(nil)
	for i := range arrays {
		arrays[i] = append(arrays[i], '}')
	}
	remove, err := d.explain(ctx, q.remove(arrays))
	if err != nil {
		return fmt.Errorf("explain how rows are removed: %w", err)
	}
	if remove.some(planNode.readsAll) {
		d.add(d.identityUnusable())
	}
	return nil
}

func (d *doctor) orderedPlan(ctx context.Context, read planNode) error {
	o, t := outbox.Quote(d.l.Order.Name), d.t.Name
	where := ""
	if d.c.Pending != "" && !changes.MatchString(d.c.Pending) {
		where = fmt.Sprintf(" WHERE %s", d.c.Pending)
	}
	concurrently, hint := " CONCURRENTLY", "create one; the service can go on writing meanwhile"
	if d.t.Partitioned { // CONCURRENTLY is not there for partitioned tables
		concurrently = ""
		hint = "create one; nobody can write meanwhile, so on a table that is full: ON ONLY it, CONCURRENTLY on each partition, and ALTER INDEX … ATTACH PARTITION"
	}
	f := sdk.Finding{
		Severity: sdk.Warning, Hint: hint,
		SQL: fmt.Sprintf("CREATE INDEX%s ON %s (%s)%s;", concurrently, t, o, where),
	}
	if read.some(planNode.sorts) {
		d.unordered = true
		f.Code, f.Path = "order_index_missing", "/columns/order"
		f.Message = fmt.Sprintf("no index of %s yields rows by the order column %s: each read sorts all of them", t, o)
		d.add(f)
		return nil
	}
	if where == "" || !read.some(planNode.filters) {
		return nil
	}
	// While the table is small the other index looks as good.
	if fits, err := d.partialIndex(ctx, read); err != nil || fits {
		return err
	}
	f.Code, f.Path = "pending_index_missing", "/pending"
	f.Message = fmt.Sprintf("no index of %s has only the rows that are pending: each read passes all the others", t)
	d.add(f)
	return nil
}

// changes are conditions that are true at one time and not at another: no index can have them.
var changes = regexp.MustCompile(`(?i)\b(now|current_(time|timestamp|date)|localtime(stamp)?|(clock|statement|transaction)_timestamp)\b`)

// partialIndex reports whether there is an index by the order column with exactly the condition that the plan filters by.
func (d *doctor) partialIndex(ctx context.Context, read planNode) (bool, error) {
	var filter string
	read.some(func(n planNode) bool { filter = n.Filter; return n.filters() })
	var there bool
	err := d.s.conn.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pg_catalog.pg_index i
			JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
			WHERE i.indrelid = $1 AND i.indisvalid AND a.attname = $2 AND pg_get_expr(i.indpred, i.indrelid) = $3)`,
		d.t.OID, d.l.Order.Name, filter).Scan(&there)
	if err != nil {
		return false, fmt.Errorf("look at the partial indexes: %w", err)
	}
	return there, nil
}

// identityUnusable: there is a unique index, and the server does not use it for a comparison with the column, for
// example because it has another collation.
func (d *doctor) identityUnusable() sdk.Finding {
	var columns []string
	for _, c := range d.l.Unique {
		columns = append(columns, outbox.Quote(c.Name))
	}
	f := sdk.Finding{
		Severity: sdk.Warning, Code: "id_index_unusable", Path: "/columns/id",
		Message: fmt.Sprintf("the unique index on %s is not used to find rows: to remove some, all of %s is read", strings.Join(columns, ", "), d.t.Name),
		Hint:    "create one with the collation and the operators of the column itself",
		SQL:     fmt.Sprintf("CREATE UNIQUE INDEX CONCURRENTLY ON %s (%s);", d.t.Name, strings.Join(columns, ", ")),
	}
	if d.t.Partitioned {
		f.SQL = strings.Replace(f.SQL, " CONCURRENTLY", "", 1)
	}
	return f
}
