package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// manyPartitions: a read opens all of them, and the planner looks at each. Measured: 100 cost 2.5 ms a read, 365 20 ms.
const manyPartitions = 100

// partitions: is there one for the rows of tomorrow?
func (d *doctor) partitions(ctx context.Context) error {
	if !d.t.Partitioned {
		return nil
	}
	heaps, err := d.heaps(ctx)
	if err != nil {
		return err
	}
	if n := len(heaps); n > manyPartitions {
		d.add(sdk.Finding{
			Severity: sdk.Warning, Code: "partitions_many", Path: "/table",
			Message: fmt.Sprintf("%s has %d partitions, and each read looks into all of them: with 365 that alone takes some 20 ms", d.t.Name, n),
			Hint:    "detach and drop old ones (the option retention does), or make them longer",
		})
	}
	ps, err := outbox.InspectPartitions(ctx, d.s.conn, d.t)
	if _, ok := errors.AsType[*outbox.Problem](err); ok {
		return nil // not by time
	}
	if err != nil {
		return err
	}
	if err := d.defaultPartition(ctx, ps); err != nil {
		return err
	}
	d.ahead(ps)
	return nil
}

// defaultPartition: what is in it keeps a partition for its time from being made.
func (d *doctor) defaultPartition(ctx context.Context, ps *outbox.Partitions) error {
	if ps.Default == (outbox.Name{}) {
		return nil
	}
	var readable bool
	if err := d.s.conn.QueryRow(ctx, `SELECT has_table_privilege($1::text, 'SELECT')`, ps.Default.String()).Scan(&readable); err != nil {
		return fmt.Errorf("look at the default partition: %w", err)
	}
	if !readable {
		return nil
	}
	var filled bool
	if err := d.s.conn.QueryRow(ctx, fmt.Sprintf(`SELECT EXISTS (SELECT FROM %s)`, ps.Default)).Scan(&filled); err != nil {
		return fmt.Errorf("look at the default partition: %w", err)
	}
	if filled {
		d.add(sdk.Finding{
			Severity: sdk.Warning, Code: "default_partition_filled", Path: "/table",
			Message: fmt.Sprintf("the default partition %s has rows: there was no partition for their time, and none can be made for it while they are there", ps.Default),
			Hint:    "let the relay publish them; those that are to stay move to a partition in one transaction: detach the default, make the partition, insert them, attach it again",
		})
	}
	return nil
}

// ahead: where there is no partition for a row, the service's INSERT fails.
func (d *doctor) ahead(ps *outbox.Partitions) {
	last := ps.Last()
	if last == nil {
		return
	}
	every := daily
	switch width := last.Upper.Sub(last.Lower); {
	case width <= 2*time.Hour:
		every = hourly
	case width > 14*24*time.Hour:
		every = monthly
	case width > 2*24*time.Hour:
		every = weekly
	}
	until := coverage(ps.List, ps.Now)
	need := ps.Now.Add(24 * time.Hour)
	if next := every.add(ps.Now, 1); next.After(need) {
		need = next
	}
	if until.After(need) {
		d.ok("partitions", "%s has partitions until %s", d.t.Name, until.Format(time.DateTime))
		return
	}
	f := sdk.Finding{
		Severity: sdk.Warning, Code: "partitions_ending", Path: "/table",
		Message: fmt.Sprintf("the partitions of %s end in %s", d.t.Name, lasting(until.Sub(ps.Now))),
		Hint:    "make some ahead; the statement waits for transactions that use the table, and others wait for it, so let it give up soon: SET lock_timeout = '2s'. The option retention does it by itself",
	}
	switch {
	case ps.Default != outbox.Name{}:
		f.Message += "; later rows go to " + ps.Default.String()
	case until.Equal(ps.Now):
		f.Severity = sdk.Problem
		f.Code, f.Message = "partition_missing", fmt.Sprintf("%s has no partition for rows of now: the service cannot insert", d.t.Name)
	default:
		f.Message += "; then the service cannot insert"
	}
	var sql []string
	for _, s := range missing(ps.List, ps.Now, every, 3) {
		name := outbox.Name{Schema: d.t.Name.Schema, Table: names(d.t.Name.Table, last, every, s)[0]}
		sql = append(sql, fmt.Sprintf("CREATE TABLE %s PARTITION OF %s FOR VALUES FROM (%s) TO (%s);", name, d.t.Name, ps.Bound(s.from), ps.Bound(s.to)))
	}
	f.SQL = strings.Join(sql, "\n")
	d.add(f)
}
