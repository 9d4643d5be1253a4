package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/relevo-io/relevo/internal/outbox"
)

// keptList is the most rows of a pair that are listed at a time; a number costs 8 bytes here.
const keptList = 200_000

// keptQueries writes the SQL for rows that are kept. It changes nothing at the server, and takes no transaction id.
//
// A pair is listed first, and its rows are then read by their numbers. In one statement the planner would have to choose
// between the index on tx, and sorting every row of the pair for each page of it, and the index on the order column, and
// passing everything that is kept: either is wrong for some pair, and the statistics do not tell for which.
type keptQueries struct {
	l         *outbox.Layout
	order, tx string
}

func newKeptQueries(l *outbox.Layout) *keptQueries {
	return &keptQueries{l: l, order: outbox.Quote(l.Order.Name), tx: outbox.Quote(l.Tx.Name)}
}

// pair is two snapshots and how far the reading is between them: what had ended at new and not at old, in the order of
// the order column.
type pair struct {
	old, new txSnapshot
	begun    bool // something was read, up to after
	after    int64
}

// list is the numbers of the rows of a pair that are not read yet.
//
// The rows of a small pair are found by their transactions: those from old's xmax on, and those that old saw running, as
// two index scans; tx >= xmin(old) would be one, and pass everything since the oldest transaction began. onward is for
// what is large: everything, or the rest of a pair that has filled a list. Such rows lie close together in the order
// column, and conditions on tx that no index serves keep the planner to it.
func (q *keptQueries) list(p pair, onward bool) statement {
	w := &where{}
	if p.begun {
		w.add(fmt.Sprintf("%s > $%d::bigint", q.order, w.param(strconv.AppendInt(nil, p.after, 10))))
	}
	limit := w.param(strconv.AppendInt(nil, keptList, 10))
	sql := ""
	if onward || p.old.none() {
		q.within(w, p)
		sql = q.listed(w)
	} else {
		// new is given as a condition that the index serves, too: what began after it is not passed.
		w.add(fmt.Sprintf("%s < $%d::xid8", q.tx, w.param(strconv.AppendUint(nil, p.new.xmax, 10))))
		w.add(fmt.Sprintf("pg_visible_in_snapshot(%s, $%d::pg_snapshot)", q.tx, w.param([]byte(p.new.String()))))
		common := len(w.conds)
		w.add(fmt.Sprintf("%s >= $%d::xid8", q.tx, w.param(strconv.AppendUint(nil, p.old.xmax, 10))))
		sql = q.listed(w)
		if len(p.old.xip) > 0 {
			w.conds = w.conds[:common]
			running := append(appendXIDs([]byte{'{'}, p.old.xip), '}')
			w.add(fmt.Sprintf("%s = ANY($%d::xid8[])", q.tx, w.param(running)))
			sql += "\nUNION ALL\n" + q.listed(w)
		}
	}
	return statement{
		sql:     sql + fmt.Sprintf("\nORDER BY 1 LIMIT $%d::bigint", limit),
		params:  w.params,
		formats: []int16{1},
		limit:   keptList,
	}
}

func (q *keptQueries) listed(w *where) string {
	return fmt.Sprintf("SELECT %s::bigint FROM %s%s", q.order, q.l.Table.Name, w)
}

// within takes the rows of a pair.
func (q *keptQueries) within(w *where, p pair) {
	w.add(fmt.Sprintf("pg_visible_in_snapshot(%s, $%d::pg_snapshot)", q.tx, w.param([]byte(p.new.String()))))
	if !p.old.none() {
		w.add(fmt.Sprintf("NOT pg_visible_in_snapshot(%s, $%d::pg_snapshot)", q.tx, w.param([]byte(p.old.String()))))
	}
}

// rows reads the rows of a pair with these numbers, in their order; the place in the list (from 1) is the last value.
func (q *keptQueries) rows(p pair, numbers []int64) statement {
	w := &where{}
	list := []byte{'{'}
	for i, n := range numbers {
		if i > 0 {
			list = append(list, ',')
		}
		list = strconv.AppendInt(list, n, 10)
	}
	from := w.param(append(list, '}'))
	w.add(fmt.Sprintf("%s.%s = relevo_k", q.l.Table.Name, q.order))
	q.within(w, p)
	return statement{
		sql: fmt.Sprintf("SELECT %s, relevo_n\nFROM unnest($%d::bigint[]) WITH ORDINALITY AS relevo_u(relevo_k, relevo_n), %s%s\nORDER BY relevo_n",
			q.l.Select(), from, q.l.Table.Name, w),
		params:  w.params,
		formats: append(q.l.Formats(), 1),
	}
}

// foreseen is the number of rows whose transaction id lies in the future. A row that is there was inserted by a
// transaction that has begun; such a one came with a dump of another cluster. 1000: that many or more.
func (q *keptQueries) foreseen() string {
	return fmt.Sprintf("SELECT count(*) FROM (SELECT FROM %s WHERE %s >= pg_snapshot_xmax(pg_current_snapshot()) LIMIT 1000) AS relevo_f",
		q.l.Table.Name, q.tx)
}

// moment is what the server says about now.
type moment struct {
	snap    txSnapshot
	lsn     uint64 // end of the WAL, written or not, after the snapshot was taken
	flushed uint64 // end of the WAL that a crash does not lose
	now     time.Time
}

// look takes a snapshot.
func (s *session) look(ctx context.Context) (m moment, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var snap string
	var pid int32
	// The snapshot is the statement's own, and is taken before anything in it is computed.
	err = s.conn.QueryRow(ctx, `SELECT pg_current_snapshot()::text, (pg_current_wal_insert_lsn() - '0/0')::bigint,
		(pg_current_wal_flush_lsn() - '0/0')::bigint, clock_timestamp(), pg_backend_pid()`).Scan(&snap, &m.lsn, &m.flushed, &m.now, &pid)
	if err != nil {
		return moment{}, fmt.Errorf("take a snapshot: %w", err)
	}
	if pid != s.backend {
		return moment{}, errPooled
	}
	m.snap, err = parseSnapshot(snap)
	return m, err
}
