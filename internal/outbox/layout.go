package outbox

import (
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // zones of timestamp columns, also where the system has none
	"unicode/utf8"

	"github.com/relevo-io/relevo/internal/wire"
)

// Formats of values on the connection.
const (
	textFormat   int16 = 0
	binaryFormat int16 = 1
)

// maxStored is where a payload is not even fetched: what is stored is never larger than what it becomes as text, but for
// jsonb's few bytes of structure, and an event of this size is refused anyway.
const maxStored = wire.MaxEvent + wire.MaxEvent/8

// OrderKind says what order a source can promise with a layout.
type OrderKind int

// Kinds of order.
const (
	// OrderBestEffort: there is an order column, but not one that the database counts up one by one.
	OrderBestEffort OrderKind = iota
	// OrderRounds: there is no order column.
	OrderRounds
	// OrderPerKey: the database numbers the rows.
	OrderPerKey
)

// Layout is a mapping bound to a table: what to select, and how a row becomes an event. It is immutable; rows are decoded
// into a Row, one for each goroutine.
type Layout struct {
	Table  *Table
	Unique []Column // what identifies a row; the id first
	Order  *Column  // nil: there is none
	Time   *Column  // nil: there is none
	Tx     *Column  // nil: not mapped
	// KeyColumn is where the key is, or the document that it is in; "": no event has a key.
	KeyColumn string
	// Ignored is why a column that nobody named and that is there by its default name is not used.
	Ignored []*Problem

	selected                                  []selected
	unique                                    []int
	ctid                                      int // stand-in for a row that a NULL keeps from being identified; -1: none can
	key, typ, aggregateType, payload, content field
	tooLarge                                  int
	mime                                      string
	headers                                   []headerField
	headersObject                             field
	headerNames, headerValues                 field
	order                                     int
	when                                      timeField
	keyColumn, idColumn                       operand
}

// selected is one expression of the select list.
type selected struct {
	sql    string
	format int16
}

// field is where a value comes from: one of the selected columns, or a place in its JSON document.
type field struct {
	col   int // -1: not mapped
	path  []string
	ref   string // for messages
	loose bool   // a text column: whether it holds JSON is not known
	bytea bool
}

type headerField struct {
	name string
	field
}

// Bind looks the mapping's columns up in the table. The error is the first *Problem.
func Bind(m Mapping, t *Table) (*Layout, error) {
	l, faults := BindAll(m, t)
	if len(faults) > 0 {
		return nil, faults[0]
	}
	return l, nil
}

// BindAll is Bind with every fault; with any, the layout is good for nothing but its Table.
func BindAll(m Mapping, t *Table) (*Layout, []*Problem) {
	b := binder{l: &Layout{Table: t, KeyColumn: m.Key.Column, ctid: -1, order: -1, tooLarge: -1, mime: m.MIME}, m: m, t: t}
	b.unique()
	b.l.key = b.field("key", m.Key, true)
	b.l.typ = b.field("type", m.Type, false)
	b.l.aggregateType = b.field("aggregate_type", m.AggregateType, false)
	b.payload()
	b.l.content = b.field("content_type", m.ContentType, false)
	b.headers()
	b.time()
	b.order()
	b.tx()
	return b.l, b.faults
}

// binder collects faults.
type binder struct {
	l      *Layout
	m      Mapping
	t      *Table
	faults []*Problem
}

// fail notes a fault, once for each place.
func (b *binder) fail(p *Problem) {
	if !slices.ContainsFunc(b.faults, func(o *Problem) bool { return o.Path == p.Path && o.Code == p.Code }) {
		b.faults = append(b.faults, p)
	}
}

// column finds the column of a key; nil: it is not mapped, or missing where it may be.
func (b *binder) column(key, name string) *Column {
	if name == "" {
		return nil
	}
	c := b.t.Column(name)
	if c == nil && !b.m.optional[key] {
		b.fail(b.t.ColumnMissing("/columns/"+key, name))
	}
	return c
}

func (b *binder) add(sql string, format int16) int {
	s := selected{sql: sql, format: format}
	if i := slices.Index(b.l.selected, s); i >= 0 {
		return i
	}
	b.l.selected = append(b.l.selected, s)
	return len(b.l.selected) - 1
}

func (b *binder) unique() {
	if b.t.Column(b.m.ID.Column) == nil {
		b.fail(b.t.ColumnMissing("/columns/id", b.m.ID.Column))
		return
	}
	key, p := b.t.uniqueKey(b.m.ID.Column)
	if p != nil {
		b.fail(p)
		return
	}
	var nulls []string
	for _, name := range key {
		c := b.t.Column(name)
		b.l.Unique = append(b.l.Unique, *c)
		b.l.unique = append(b.l.unique, b.add(Quote(name), textFormat))
		if !c.NotNull {
			nulls = append(nulls, Quote(name)+" IS NULL")
		}
	}
	switch id := b.l.Unique[0]; id.Type {
	case oidUUID, oidInt2, oidInt4, oidInt8, oidText, oidVarchar, oidBpchar:
		b.l.idColumn = operandOf(id)
	default:
		b.fail(&Problem{
			Code: "id_type_unsupported", Path: "/columns/id",
			Message: fmt.Sprintf("the id column %s is of type %s", Quote(id.Name), id.SQLType), Hint: "an id is a uuid, an integer or a text",
		})
	}
	if nulls != nil {
		b.l.ctid = b.add("CASE WHEN "+strings.Join(nulls, " OR ")+" THEN "+StandIn+" END", textFormat)
	}
}

// StandIn is an SQL expression that names a row which has no id. It holds only as long as nobody touches the row.
const StandIn = "'row ' || tableoid::oid::text || ctid::text"

func (b *binder) field(key string, r Ref, isKey bool) field {
	f := field{col: -1, ref: r.String()}
	c := b.column(key, r.Column)
	if c == nil {
		return f
	}
	isJSON := c.Type == oidJSON || c.Type == oidJSONB
	f.path, f.bytea = r.Pointer, c.Type == oidBytea
	f.loose = r.Pointer != nil && !isJSON
	switch {
	case f.loose && (isKey || !isText(c.Type)):
		// The database itself leaves held keys out of the reading, and text that is no JSON would stop the whole query.
		b.fail(&Problem{
			Code: "pointer_column_not_json", Path: "/columns/" + key,
			Message: fmt.Sprintf("%s points into the column %s, which is of type %s", r, Quote(c.Name), c.SQLType),
			Hint:    "a key may come out of a json or jsonb column; add a generated column, or change the type",
			SQL:     fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s TYPE jsonb USING %[2]s::jsonb;", b.t.Name, Quote(c.Name)),
		})
		return f
	case f.bytea && key != "key" && key != "payload":
		b.fail(&Problem{
			Code: "column_type_unsupported", Path: "/columns/" + key,
			Message: fmt.Sprintf("the column %s is of type bytea, and %s is a text", Quote(c.Name), key), Hint: "map another column",
		})
		return f
	}
	format := textFormat
	if f.bytea {
		format = binaryFormat
	}
	if key != "payload" {
		f.col = b.add(Quote(c.Name), format)
	}
	if isKey {
		b.l.keyColumn = operandOf(*c)
		if r.Pointer != nil {
			path := []byte{'{'}
			for _, p := range r.Pointer {
				path = AppendArray(path, []byte(p))
			}
			b.l.keyColumn = operand{sql: "(" + Quote(c.Name) + " #>> " + Literal(string(path)+"}") + ")", kind: kindText, array: "text[]"}
		}
	}
	return f
}

func isText(oid uint32) bool { return oid == oidText || oid == oidVarchar || oid == oidBpchar }

func (b *binder) payload() {
	b.l.payload = b.field("payload", b.m.Payload, false)
	c := b.column("payload", b.m.Payload.Column)
	if c == nil {
		return
	}
	mime, format := "", textFormat
	switch c.Type {
	case oidJSON, oidJSONB:
		mime = "application/json"
	case oidText, oidVarchar, oidBpchar:
		mime = "text/plain; charset=utf-8"
	case oidXML:
		mime = "application/xml"
	case oidBytea:
		mime, format = "application/octet-stream", binaryFormat
	default:
		b.fail(&Problem{
			Code: "payload_type_unsupported", Path: "/columns/payload",
			Message: fmt.Sprintf("the payload column %s is of type %s", Quote(c.Name), c.SQLType),
			Hint:    "a message body is jsonb, json, text, xml or bytea",
		})
	}
	if b.m.Payload.Pointer != nil {
		mime = "application/json"
	}
	if b.l.mime == "" && b.m.ContentType.Column == "" {
		b.l.mime = mime
	}
	// What is too large is not fetched, so that one row of a gigabyte does not need a gigabyte here. pg_column_size reads
	// no more than the pointer to such a value.
	large := fmt.Sprintf("pg_column_size(%s) > %d", Quote(c.Name), maxStored)
	b.l.payload.col = b.add("CASE WHEN "+large+" THEN NULL ELSE "+Quote(c.Name)+" END", format)
	b.l.tooLarge = b.add(large, textFormat)
}

func (b *binder) headers() {
	none := field{col: -1}
	b.l.headersObject, b.l.headerNames, b.l.headerValues = none, none, none
	h := b.m.Headers
	switch {
	case h.Column != "":
		r, err := ParseRef(h.Column)
		if err != nil {
			b.fail(&Problem{Code: "column_invalid", Path: "/columns/headers", Message: err.Error(), Hint: "write column or column#/a/b"})
			return
		}
		f := b.field("headers", r, false)
		if c := b.t.Column(r.Column); f.col >= 0 && c != nil {
			f.loose = c.Type != oidJSON && c.Type != oidJSONB
			if f.loose && !isText(c.Type) {
				b.fail(&Problem{
					Code: "column_type_unsupported", Path: "/columns/headers",
					Message: fmt.Sprintf("the headers column %s is of type %s", Quote(c.Name), c.SQLType),
					Hint:    "headers are a JSON object (jsonb, json or text), two array columns, or single columns",
				})
			}
		}
		b.l.headersObject = f
	case h.Names != "":
		b.l.headerNames, b.l.headerValues = b.array(h.Names), b.array(h.Values)
	default:
		names := make([]string, 0, len(h.Columns))
		for name := range h.Columns {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			r, err := ParseRef(h.Columns[name])
			if err != nil || r.Column == "" {
				b.fail(&Problem{
					Code: "column_invalid", Path: "/columns/headers", Message: fmt.Sprintf("header %q: %q is not a column", name, h.Columns[name]),
					Hint: "write column or column#/a/b",
				})
				return
			}
			b.l.headers = append(b.l.headers, headerField{name: name, field: b.field("headers", r, false)})
		}
	}
}

// array selects an array column as JSON, which the server writes and the headers are read from anyway.
func (b *binder) array(name string) field {
	c := b.column("headers", name)
	if c == nil {
		return field{col: -1}
	}
	switch {
	case c.Type == oidJSON || c.Type == oidJSONB:
		return field{col: b.add(Quote(name), textFormat), ref: name}
	case strings.HasSuffix(c.SQLType, "[]"):
		return field{col: b.add("array_to_json("+Quote(name)+")", textFormat), ref: name}
	}
	b.fail(&Problem{
		Code: "column_type_unsupported", Path: "/columns/headers",
		Message: fmt.Sprintf("the headers column %s is of type %s", Quote(name), c.SQLType), Hint: "two columns of headers are arrays, names and values",
	})
	return field{col: -1}
}

func (b *binder) time() {
	b.l.when = timeField{col: -1}
	c := b.column("time", b.m.Time.Column)
	if c == nil {
		return
	}
	f, p := newTimeField(b.m.Time, c)
	if p != nil {
		// A column that only happens to be called created_at is no reason to refuse the table.
		if b.m.optional["time"] {
			b.l.Ignored = append(b.l.Ignored, p)
		} else {
			b.fail(p)
		}
		return
	}
	f.col = b.add(Quote(c.Name), f.format)
	b.l.when, b.l.Time = f, c
}

func (b *binder) order() {
	c := b.column("order", b.m.Order)
	if c == nil {
		return
	}
	switch {
	case c.Type != oidInt2 && c.Type != oidInt4 && c.Type != oidInt8:
		b.fail(&Problem{
			Code: "order_type_unsupported", Path: "/columns/order",
			Message: fmt.Sprintf("the order column %s is of type %s", Quote(c.Name), c.SQLType),
			Hint:    `an order is an integer that the database counts up; write order: "" to do without`,
		})
		return
	case !c.NotNull:
		b.fail(&Problem{
			Code: "order_nullable", Path: "/columns/order", Message: fmt.Sprintf("the order column %s may be NULL", Quote(c.Name)),
			Hint: `a row without a number has no place in the order; write order: "" to do without`,
			SQL:  fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL;", b.t.Name, Quote(c.Name)),
		})
		return
	}
	b.l.order, b.l.Order = b.add(Quote(c.Name), binaryFormat), c
}

// tx is not selected: only the reading of kept rows asks for it, and in conditions.
func (b *binder) tx() {
	c := b.column("tx", b.m.Tx)
	switch {
	case c == nil:
	case c.Type != oidXID8:
		b.fail(&Problem{
			Code: "tx_type_unsupported", Path: "/columns/tx",
			Message: fmt.Sprintf("the column %s is of type %s, and not xid8", Quote(c.Name), c.SQLType),
			Hint:    "it holds the 64-bit id of the inserting transaction; xid and xmin wrap around, and a savepoint changes xmin",
			SQL:     fmt.Sprintf("ALTER TABLE %s ADD COLUMN relevo_tx xid8 NOT NULL DEFAULT pg_current_xact_id();", b.t.Name),
		})
	case !c.NotNull:
		b.fail(&Problem{
			Code: "tx_nullable", Path: "/columns/tx", Message: fmt.Sprintf("the column %s may be NULL", Quote(c.Name)),
			Hint: "a row without it would never be published",
			SQL:  fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL;", b.t.Name, Quote(c.Name)),
		})
	default:
		b.l.Tx = c
	}
}

// Handle are the columns by which a row is deleted or marked: the order column where a unique index covers it alone, else
// Unique. Rows are removed about in their order, so their places in its index are neighbours. Those of a random id are all
// over its index, and each of them is a page that a large table does not have in memory.
func (l *Layout) Handle() []Column {
	if l.HandleIsOrder() {
		return []Column{*l.Order}
	}
	return l.Unique
}

// HandleIsOrder reports whether Handle is the order column.
func (l *Layout) HandleIsOrder() bool {
	return l.Order != nil && slices.ContainsFunc(l.Table.Indexes, func(x Index) bool {
		return x.Unique && len(x.Columns) == 1 && x.Columns[0] == l.Order.Name
	})
}

// Kind says what order the layout allows.
func (l *Layout) Kind() OrderKind {
	switch {
	case l.Order == nil:
		return OrderRounds
	case l.Order.Cache == 1 && l.Order.Increment > 0 && !l.Order.Cycle:
		return OrderPerKey
	}
	return OrderBestEffort
}

// Select is the select list.
func (l *Layout) Select() string {
	list := make([]string, len(l.selected))
	for i, s := range l.selected {
		list[i] = s.sql
	}
	return strings.Join(list, ", ")
}

// Formats are the result formats of the select list.
func (l *Layout) Formats() []int16 {
	formats := make([]int16, len(l.selected))
	for i, s := range l.selected {
		formats[i] = s.format
	}
	return formats
}

// Nullable reports whether a row may be without identity (see StandIn).
func (l *Layout) Nullable() bool { return l.ctid >= 0 }

// Key and ID compare the key and the id of a row with lists of them. Key is the zero Operand where no event has a key.
func (l *Layout) Key() Operand { return Operand{l.keyColumn} }

// ID see Key.
func (l *Layout) ID() Operand { return Operand{l.idColumn} }

// Operand is the SQL of a value that is compared with a list.
type Operand struct{ operand }

type operand struct {
	sql   string
	kind  operandKind
	array string // type of the list
}

type operandKind int

const (
	kindText operandKind = iota
	kindInt
	kindUUID
	kindBytea
)

// operandOf compares in the column's own type where its text form is unique, so that an index can be used.
func operandOf(c Column) operand {
	q := Quote(c.Name)
	switch c.Type {
	case oidInt2, oidInt4, oidInt8:
		return operand{q, kindInt, "bigint[]"}
	case oidUUID:
		return operand{q, kindUUID, "uuid[]"}
	case oidText, oidVarchar:
		return operand{q, kindText, "text[]"}
	case oidBpchar:
		return operand{q, kindText, "bpchar[]"}
	case oidBytea:
		return operand{q, kindBytea, "bytea[]"}
	}
	return operand{q + "::text", kindText, "text[]"}
}

// In is a condition: the value is one of the list in parameter n. It is NULL where the value is.
func (o Operand) In(n int) string { return fmt.Sprintf("%s = ANY($%d::%s)", o.sql, n, o.array) }

// NotIn is a condition: the value is not one of the list in parameter n; true where the value is NULL. `IS NOT TRUE` and
// not `<> ALL`: that would drop rows with NULL, and PostgreSQL 14 hashes the list for = ANY only.
func (o Operand) NotIn(n int) string { return "(" + o.In(n) + ") IS NOT TRUE" }

// Exists reports whether there is a value at all.
func (o Operand) Exists() bool { return o.sql != "" }

var uuidRule = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// Append adds an element to a list, in text form (see AppendArray). What cannot be a value of the column is left out: it
// equals no row's, and the server would refuse the whole list for it.
func (o Operand) Append(list, element []byte) []byte {
	switch o.kind {
	case kindInt:
		if _, err := strconv.ParseInt(string(element), 10, 64); err != nil {
			return list
		}
	case kindUUID:
		if !uuidRule.Match(element) {
			return list
		}
	case kindBytea:
		element = hex.AppendEncode([]byte(`\x`), element)
	case kindText:
		if !utf8.Valid(element) || slices.Contains(element, 0) {
			return list
		}
	}
	return AppendArray(list, element)
}

// zone loads a zone, for timestamps that have none.
func zone(name string) (*time.Location, error) {
	if strings.EqualFold(name, "utc") {
		return time.UTC, nil
	}
	return time.LoadLocation(name)
}
