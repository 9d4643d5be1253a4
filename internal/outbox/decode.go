package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/relevo-io/relevo/internal/wire"
	"github.com/relevo-io/relevo/sdk"
)

// Codes of rejected rows, beside those of sdk.LimitError.
const (
	CodeIDNull         = "id_null"         // the id, or a partition's column that identifies the row with it, is NULL
	CodePointerMissing = "pointer_missing" // the JSON document has nothing at the place that a column names
	CodeJSONInvalid    = "json_invalid"    // a text that should be a JSON document is none
	CodeHeadersInvalid = "headers_invalid" // the headers are no object, or the two arrays do not match
	CodeTimeInvalid    = "time_invalid"
	CodeTooLarge       = "event_too_large"
)

// Row is a row as an event. Everything in it but Rejected is a view on the values it was decoded from.
type Row struct {
	Event  sdk.Event
	Order  int64    // 0 without an order column
	Unique [][]byte // what identifies the row, in text form; nil elements are NULL
	// Rejected is set where the row cannot become an event; Event then has what could be read. Its texts are its own: a
	// batch keeps them.
	Rejected *sdk.Rejected

	arrays [2][][]byte // of parallel header arrays
}

// fault is a reason to reject a row.
type fault struct{ code, message string }

func (f *fault) Error() string { return f.message }

func faultf(code, format string, a ...any) error { return &fault{code, fmt.Sprintf(format, a...)} }

// Decode reads one row of the select list into r, which it overwrites. What is wrong with a row is in r.Rejected.
func (l *Layout) Decode(values [][]byte, r *Row) {
	r.Rejected = nil
	r.Event = sdk.Event{Headers: r.Event.Headers[:0]}
	r.Unique = r.Unique[:0]
	identified := true
	for _, i := range l.unique {
		r.Unique = append(r.Unique, values[i])
		identified = identified && values[i] != nil
	}
	err := l.decode(values, r)
	if !identified {
		err = faultf(CodeIDNull, "a column that identifies the row is NULL")
		r.Event.ID = string(values[l.ctid])
	}
	if err != nil {
		r.Reject(err)
	}
}

// Reject marks the row as one that cannot become an event: also for what Batch.Add refuses.
func (r *Row) Reject(err error) {
	r.Rejected = &sdk.Rejected{ID: strings.Clone(r.Event.ID), Key: r.Event.Key, Message: err.Error(), Code: "row_invalid"}
	if f, ok := errors.AsType[*fault](err); ok {
		r.Rejected.Code = f.code
	}
	if f, ok := errors.AsType[*sdk.LimitError](err); ok {
		r.Rejected.Code = f.Code
	}
}

// decode goes on after a fault where it can: the key of a rejected row is what keeps its order.
func (l *Layout) decode(values [][]byte, r *Row) error {
	e := &r.Event
	e.ID = view(r.Unique[0])
	var errs [7]error
	if l.order >= 0 {
		r.Order, errs[0] = readInt(values[l.order])
	}
	e.Key, errs[1] = l.key.text(values)
	e.Type, errs[2] = l.typ.string(values)
	e.AggregateType, errs[3] = l.aggregateType.string(values)
	e.ContentType = l.mime
	if l.content.col >= 0 {
		e.ContentType, errs[4] = l.content.string(values)
	}
	errs[5] = l.decodeHeaders(values, r)
	errs[6] = l.decodePayload(values, e)
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	if l.when.col >= 0 && values[l.when.col] != nil {
		var err error
		if e.TimeMicro, e.HasTime, err = l.when.read(values[l.when.col]); err != nil {
			return faultf(CodeTimeInvalid, "the column %s does not hold a time", Quote(l.when.ref))
		}
	}
	return nil
}

func (l *Layout) decodePayload(values [][]byte, e *sdk.Event) error {
	f := &l.payload
	if f.col < 0 {
		return nil
	}
	if large := values[l.tooLarge]; len(large) == 1 && large[0] == 't' {
		return faultf(CodeTooLarge, "the payload is larger than an event may be (%d bytes)", wire.MaxEvent)
	}
	v, err := f.raw(values)
	if err == nil && f.path != nil && v == nil {
		err = faultf(CodePointerMissing, "there is nothing at %s", f.ref)
	}
	e.Payload = v
	return err
}

func (l *Layout) decodeHeaders(values [][]byte, r *Row) (err error) {
	for i := range l.headers {
		h := &l.headers[i]
		v, err := h.text(values)
		if err != nil {
			return err
		}
		if v != nil {
			r.Event.Headers = append(r.Event.Headers, sdk.Header{Name: h.name, Value: v})
		}
	}
	if l.headersObject.col >= 0 {
		return l.headersObject.object(values, r)
	}
	if l.headerNames.col < 0 {
		return nil
	}
	if r.arrays[0], err = l.headerNames.array(values, r.arrays[0][:0]); err != nil {
		return err
	}
	if r.arrays[1], err = l.headerValues.array(values, r.arrays[1][:0]); err != nil {
		return err
	}
	if len(r.arrays[0]) != len(r.arrays[1]) {
		return faultf(CodeHeadersInvalid, "there are %d header names and %d values", len(r.arrays[0]), len(r.arrays[1]))
	}
	for i, name := range r.arrays[0] {
		if name == nil {
			return faultf(CodeHeadersInvalid, "the name of header %d is NULL", i)
		}
		r.Event.Headers = append(r.Event.Headers, sdk.Header{Name: view(name), Value: r.arrays[1][i]})
	}
	return nil
}

// raw is the column's value, or what the pointer finds in it, as JSON; nil: NULL, or nothing there.
func (f *field) raw(values [][]byte) ([]byte, error) {
	v := values[f.col]
	if v == nil || f.path == nil {
		return v, nil
	}
	if f.loose && !json.Valid(v) {
		return nil, faultf(CodeJSONInvalid, "the column of %s does not hold a JSON document", f.ref)
	}
	v, err := lookUp(v, f.path)
	if err != nil {
		return nil, faultf(CodeJSONInvalid, "the column of %s does not hold a JSON document", f.ref)
	}
	return v, nil
}

// text is the value as bytes: what a pointer finds without JSON's quotes. nil: NULL (SQL's or JSON's).
func (f *field) text(values [][]byte) ([]byte, error) {
	if f.col < 0 {
		return nil, nil
	}
	v, err := f.raw(values)
	if err != nil || f.path == nil {
		return v, err
	}
	if v == nil {
		return nil, faultf(CodePointerMissing, "there is nothing at %s", f.ref)
	}
	v, err = plain(v)
	if err != nil {
		return nil, faultf(CodeJSONInvalid, "the value at %s is not JSON", f.ref)
	}
	return v, nil
}

func (f *field) string(values [][]byte) (string, error) {
	v, err := f.text(values)
	return view(v), err
}

// object reads headers from a JSON object: strings as they are, null as a header without a value, everything else as
// JSON.
func (f *field) object(values [][]byte, r *Row) error {
	doc, err := f.raw(values)
	if err != nil {
		return err
	}
	if doc == nil || string(doc) == "null" {
		return nil // no headers
	}
	if f.loose && f.path == nil && !json.Valid(doc) || skipSpace(doc)[0] != '{' {
		return faultf(CodeHeadersInvalid, "the headers in %s are not a JSON object", f.ref)
	}
	var bad error
	err = eachMember(doc, func(name, value []byte) bool {
		var h sdk.Header
		var n []byte
		if n, bad = unquote(name); bad == nil {
			h.Value, bad = plain(value)
		}
		h.Name = view(n)
		r.Event.Headers = append(r.Event.Headers, h)
		return bad == nil
	})
	if err = errors.Join(err, bad); err != nil {
		return faultf(CodeHeadersInvalid, "the headers in %s are not a JSON object", f.ref)
	}
	return nil
}

// array reads one of two parallel arrays, as JSON.
func (f *field) array(values [][]byte, dst [][]byte) ([][]byte, error) {
	doc := values[f.col]
	if doc == nil {
		return dst, nil
	}
	if doc[0] != '[' {
		return dst, faultf(CodeHeadersInvalid, "the headers in %s are not an array", f.ref)
	}
	var bad error
	err := eachMember(doc, func(_, value []byte) bool {
		var v []byte
		v, bad = plain(value)
		dst = append(dst, v)
		return bad == nil
	})
	if err = errors.Join(err, bad); err != nil {
		return dst, faultf(CodeHeadersInvalid, "the headers in %s are not an array", f.ref)
	}
	return dst, nil
}

// view makes a string of b without copying; nobody writes to b while the string is used.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
