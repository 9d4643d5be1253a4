package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/relevo-io/relevo/internal/outbox"
)

// queries writes the SQL. All of it but the user's own condition is names, which are quoted, and numbered parameters.
type queries struct {
	l       *outbox.Layout
	pending string
	set     string // the SET list of published rows; "": they are deleted
	key, id outbox.Operand
	bucket  string          // the expression for a row's bucket, where relays share the outbox; else ""
	width   int             // of the layout's select list, before the bucket
	handle  []outbox.Column // by which rows are removed
}

func newQueries(l *outbox.Layout, c config) *queries {
	q := &queries{l: l, pending: c.Pending, key: l.Key(), id: l.ID(), handle: l.Handle()}
	if c.after() == outbox.AfterSet {
		q.set = setList(c.AfterPublish)
	}
	if c.Sharing == sharingBuckets {
		q.bucket, q.width = l.Bucket(), len(l.Formats())
	}
	return q
}

// setList is what an UPDATE of published rows sets. A line break ends a comment in an expression.
func setList(a outbox.AfterPublish) string {
	var list []string
	for _, column := range a.Columns() {
		list = append(list, fmt.Sprintf("%s = (%s\n)", outbox.Quote(column), a.Set[column]))
	}
	return strings.Join(list, ", ")
}

// where collects conditions and their parameters.
type where struct {
	conds  []string
	params [][]byte
}

// param adds a parameter and returns its number.
func (w *where) param(v []byte) int {
	w.params = append(w.params, v)
	return len(w.params)
}

func (w *where) add(cond string) { w.conds = append(w.conds, cond) }

func (w *where) String() string {
	if len(w.conds) == 0 {
		return ""
	}
	return "\nWHERE " + strings.Join(w.conds, "\n  AND ")
}

// where starts with the user's condition. A line break ends a comment in it.
func (q *queries) where() *where {
	w := &where{}
	if q.pending != "" {
		w.add("(" + q.pending + "\n)")
	}
	return w
}

// notHeld leaves out what is held or being released.
func (q *queries) notHeld(w *where, h *held) {
	if l := h.list(listKey{}, &q.key); l != nil && q.key.Exists() {
		w.add(q.key.NotIn(w.param(l)))
	}
	if l := h.list(listKey{ids: true}, &q.id); l != nil {
		w.add(q.id.NotIn(w.param(l)))
	}
	if l := q.standIns(h, false); l != nil {
		w.add(fmt.Sprintf("(%s AND %s = ANY($%d::text[])) IS NOT TRUE", q.noID(), outbox.StandIn, w.param(l)))
	}
}

// releasing takes only what is being released.
func (q *queries) releasing(w *where, h *held) {
	var any []string
	if l := h.list(listKey{releasing: true}, &q.key); l != nil && q.key.Exists() {
		any = append(any, q.key.In(w.param(l)))
	}
	if l := h.list(listKey{ids: true, releasing: true}, &q.id); l != nil {
		any = append(any, q.id.In(w.param(l)))
	}
	if l := q.standIns(h, true); l != nil {
		any = append(any, fmt.Sprintf("%s AND %s = ANY($%d::text[])", q.noID(), outbox.StandIn, w.param(l)))
	}
	if any == nil {
		any = []string{"false"} // names that no row can have
	}
	w.add("(" + strings.Join(any, " OR ") + ")")
}

func (q *queries) standIns(h *held, releasing bool) []byte {
	if !q.l.Nullable() {
		return nil
	}
	return h.list(listKey{ids: true, standIns: true, releasing: releasing}, nil)
}

func (q *queries) noID() string {
	nulls := make([]string, len(q.l.Unique))
	for i, c := range q.l.Unique {
		nulls[i] = outbox.Quote(c.Name) + " IS NULL"
	}
	return "(" + strings.Join(nulls, " OR ") + ")"
}

// ordered is a read by the order column: above floor (MinInt64: from the beginning), without what is in flight.
func (q *queries) ordered(w *where, floor int64, inFlight *orders, limit int) statement {
	order := outbox.Quote(q.l.Order.Name)
	if floor != math.MinInt64 {
		w.add(fmt.Sprintf("%s > $%d::bigint", order, w.param(strconv.AppendInt(nil, floor, 10))))
	}
	if len(inFlight.ranges) > 0 {
		w.add(fmt.Sprintf("NOT (%s::bigint <@ $%d::int8multirange)", order, w.param(inFlight.ranges)))
	}
	if len(inFlight.singles) > 0 {
		w.add(fmt.Sprintf("(%s::bigint = ANY($%d::bigint[])) IS NOT TRUE", order, w.param(inFlight.singles)))
	}
	return q.read(w, " ORDER BY "+order, limit)
}

// byTime is a read of what is being released, where there is no order column.
func (q *queries) byTime(w *where, limit int) statement {
	return q.read(w, " ORDER BY "+q.roundOrder(), limit)
}

func (q *queries) read(w *where, orderBy string, limit int) statement {
	n := w.param(strconv.AppendInt(nil, int64(limit), 10))
	list, formats := q.columns()
	return statement{
		sql: fmt.Sprintf("SELECT %s\nFROM %s%s\n%s LIMIT $%d::bigint",
			list, q.l.Table.Name, w, strings.TrimSpace(orderBy), n),
		params:  w.params,
		formats: formats,
		limit:   limit,
	}
}

// round lists what identifies the rows that there are.
func (q *queries) round(w *where, limit int) statement {
	cols := make([]string, len(q.l.Unique))
	for i, c := range q.l.Unique {
		cols[i] = outbox.Quote(c.Name)
	}
	n := w.param(strconv.AppendInt(nil, int64(limit), 10))
	return statement{
		sql: fmt.Sprintf("SELECT %s\nFROM %s%s\nORDER BY %s LIMIT $%d::bigint",
			strings.Join(cols, ", "), q.l.Table.Name, w, q.roundOrder(), n),
		params: w.params,
		limit:  limit,
	}
}

func (q *queries) roundOrder() string {
	var by []string
	if q.l.Time != nil {
		by = append(by, outbox.Quote(q.l.Time.Name))
	}
	for _, c := range q.l.Unique {
		by = append(by, outbox.Quote(c.Name))
	}
	return strings.Join(by, ", ")
}

// chunk reads size rows of a round, in its order; the place in the chunk (from 1) is the last value.
func (q *queries) chunk(w *where, arrays [][]byte, size int) statement {
	from, on := q.unnest(w, arrays)
	w.add(on)
	list, formats := q.columns()
	return statement{
		sql: fmt.Sprintf("SELECT %s, relevo_n\nFROM unnest(%s) WITH ORDINALITY AS relevo_u(%s, relevo_n), %s%s\nORDER BY relevo_n",
			list, from, q.aliases(), q.l.Table.Name, w),
		params:  w.params,
		formats: append(formats, 1),
		limit:   size,
	}
}

// remove takes rows out of what is pending, by all that identifies them: two rows in two partitions may have one id.
func (q *queries) remove(arrays [][]byte) statement {
	w := &where{}
	table := q.l.Table.Name.String()
	from := ""
	if len(q.handle) == 1 {
		c := q.handle[0]
		w.add(fmt.Sprintf("%s.%s = ANY($%d::%s[])", table, outbox.Quote(c.Name), w.param(arrays[0]), c.SQLType))
	} else {
		lists, on := q.unnest(w, arrays) // more than one column are those of Unique
		from = fmt.Sprintf("unnest(%s) AS relevo_u(%s)", lists, q.aliases())
		w.add(on)
	}
	if q.set == "" {
		if from != "" {
			from = " USING " + from
		}
		return statement{sql: "DELETE FROM " + table + from + w.String(), params: w.params}
	}
	if from != "" {
		from = "\nFROM " + from
	}
	// What is returned is the row as it is now: one that is still pending would be published again and again.
	return statement{
		sql: fmt.Sprintf("WITH relevo_r AS (UPDATE %s SET %s%s%s\nRETURNING (%s\n) IS TRUE AS pending)\n"+
			"SELECT count(*), count(*) FILTER (WHERE pending) FROM relevo_r", table, q.set, from, w, q.pending),
		params:  w.params,
		formats: []int16{1, 1},
	}
}

// removes says what happens to published rows, for messages.
func removes(c config) string {
	switch c.after() {
	case outbox.AfterSet:
		return "mark"
	case outbox.AfterKeep:
		return "keep"
	}
	return "delete"
}

func (q *queries) unnest(w *where, arrays [][]byte) (from, on string) {
	var lists, conds []string
	for i, c := range q.l.Unique {
		lists = append(lists, fmt.Sprintf("$%d::%s[]", w.param(arrays[i]), c.SQLType))
		conds = append(conds, fmt.Sprintf("%s.%s = relevo_k%d", q.l.Table.Name, outbox.Quote(c.Name), i+1))
	}
	return strings.Join(lists, ", "), strings.Join(conds, " AND ")
}

func (q *queries) aliases() string {
	var names []string
	for i := range q.l.Unique {
		names = append(names, fmt.Sprintf("relevo_k%d", i+1))
	}
	return strings.Join(names, ", ")
}

// arrays are empty lists for what identifies rows: one for each column of the handle.
func (q *queries) arrays(buf [][]byte) [][]byte {
	buf = slices.Grow(buf[:0], len(q.handle))[:len(q.handle)]
	for i := range buf {
		buf[i] = append(buf[i][:0], '{')
	}
	return buf
}
