package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/relevo-io/relevo/internal/outbox"
)

const (
	// reapBatch is the most rows of one statement: so small that whoever wants one of the rows does not wait.
	reapBatch = 1000
	// reapRest is how many times as long as a statement took the housekeeper rests after it: so it takes a tenth of one
	// session's time, less where the server is busy, and that is some 10,000 rows a second. Measured at a quarter: a full
	// drain was slower by 10 to 20 %.
	reapRest = 9
	minRest  = 20 * time.Millisecond
)

// reap deletes rows that were marked long ago. What is in flight is not marked yet, so it is never among them.
func (h *housekeeper) reap(ctx context.Context, s *session) error {
	m, p := marker(h.l.Table, h.c)
	if p != nil {
		return p
	}
	served, err := indexed(ctx, s.conn, h.l.Table, m)
	if err != nil {
		return err
	}
	if !served {
		return markerIndexMissing(h.l.Table, m) // each statement would pass all of the table
	}
	sql := reapSQL(h.l, h.c, m)
	var rows int64
	begun := time.Now()
	defer func() {
		if rows > 0 {
			h.log.Info("reaped rows that were published long ago", "rows", rows, "after", h.c.Retention.After.String(), "took", time.Since(begun).Round(time.Millisecond))
		}
	}()
	for {
		start := time.Now()
		tag, err := s.conn.Exec(ctx, sql)
		if err != nil {
			return fmt.Errorf("reap marked rows: %w", err)
		}
		rows += tag.RowsAffected()
		h.figures.count(&h.figures.reaped, tag.RowsAffected())
		if tag.RowsAffected() < reapBatch {
			return nil
		}
		if err := pause(ctx, max(minRest, reapRest*time.Since(start))); err != nil {
			return err
		}
	}
}

// reapSQL deletes one batch. A LIMIT in a sub-select that is not materialized may delete more than that. The condition is
// asked twice: the second time of the row as it is when it is locked, for somebody may have taken the mark away to have it
// published again.
func reapSQL(l *outbox.Layout, c config, m outbox.Column) string {
	table := l.Table.Name.String()
	old := expired(c, m)
	var columns, same []string
	for i, u := range l.Unique {
		columns = append(columns, fmt.Sprintf("%s AS relevo_k%d", outbox.Quote(u.Name), i+1))
		same = append(same, fmt.Sprintf("%s.%s = relevo_old.relevo_k%d", table, outbox.Quote(u.Name), i+1))
	}
	return fmt.Sprintf("WITH relevo_old AS MATERIALIZED (SELECT %s FROM %s WHERE %s ORDER BY %s LIMIT %d)\nDELETE FROM %s USING relevo_old WHERE %s AND %s",
		strings.Join(columns, ", "), table, old, outbox.Quote(m.Name), reapBatch, table, strings.Join(same, " AND "), old)
}

// expired is the condition on rows that were marked and have stayed for as long as they should.
func expired(c config, m outbox.Column) string {
	return fmt.Sprintf("%s < %s AND (%s\n) IS NOT TRUE", outbox.Quote(m.Name), cutoff(c), c.Pending)
}

// cutoff is retention.after ago, by the server's clock.
func cutoff(c config) string {
	return fmt.Sprintf("now() - interval '%d milliseconds'", c.Retention.After.Duration().Milliseconds())
}
