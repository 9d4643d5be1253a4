package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/invopop/jsonschema"
)

// Columns says which column is what. A key that is not written has its default; "" says that there is no such column.
// Wherever a column is named, `column#/a/b` takes a value out of the JSON document in it (a JSON pointer, RFC 6901).
type Columns struct {
	ID            *string  `json:"id,omitempty" doc:"The event's id: uuid, integer or text. A unique index must cover it alone (on a partitioned table: together with the partition's columns). Defaults to id."`
	Key           *string  `json:"key,omitempty" doc:"The aggregate's id: events of one key are delivered in order. NULL: no order is asked for. \"\": no event has a key. Defaults to aggregate_id."`
	Type          *string  `json:"type,omitempty" doc:"What happened. Defaults to type."`
	AggregateType *string  `json:"aggregate_type,omitempty" doc:"What it happened to. Defaults to aggregate_type, where the table has it."`
	Payload       *string  `json:"payload,omitempty" doc:"The message body: jsonb, json, text or bytea. SQL NULL is a tombstone, JSON null the body null. Defaults to payload."`
	ContentType   *string  `json:"content_type,omitempty" doc:"A column with the MIME type of the payload, or a MIME type (it has a slash). Defaults to application/json for json and jsonb, text/plain for text, application/octet-stream for bytea."`
	Headers       *Headers `json:"headers,omitempty" doc:"Further headers: a column with a JSON object; a list of two array columns, names and values; or a mapping from header names to columns (NULL: left out). Defaults to headers, where the table has it."`
	Time          *Time    `json:"time,omitempty" doc:"When it happened: a timestamptz column, a bigint of milliseconds since 1970, ISO 8601 text; or {column, zone} for a timestamp without time zone and {column, unit} for integers (s, ms, us). Never used for order. Defaults to created_at, where the table has it."`
	Order         *string  `json:"order,omitempty" doc:"An identity or serial column with cache 1 and an index: the order of events. Defaults to seq, where the table has it. Without it the order is best effort."`
	Tx            *string  `json:"tx,omitempty" doc:"The id of the transaction that inserted the row: an xid8 column, NOT NULL DEFAULT pg_current_xact_id(), with an index; nobody writes it. Needed by after_publish: keep, and used by nothing else. Defaults to none."`
}

// Headers says where the further headers are. One of the three is set, or none.
type Headers struct {
	Column        string            // a JSON object
	Names, Values string            // parallel arrays
	Columns       map[string]string // header name → column
}

// UnmarshalJSON reads a string, a list of two strings, or an object of strings.
func (h *Headers) UnmarshalJSON(b []byte) error {
	*h = Headers{}
	var list []string
	switch b = bytes.TrimSpace(b); {
	case b[0] == '"':
		return json.Unmarshal(b, &h.Column)
	case b[0] == '{':
		return json.Unmarshal(b, &h.Columns)
	case json.Unmarshal(b, &list) == nil && len(list) == 2:
		h.Names, h.Values = list[0], list[1]
		return nil
	}
	return errors.New("headers is a column, a list of two columns (names, values) or a mapping from names to columns")
}

// MarshalJSON writes what UnmarshalJSON reads.
func (h Headers) MarshalJSON() ([]byte, error) {
	switch {
	case h.Columns != nil:
		return json.Marshal(h.Columns)
	case h.Names != "":
		return json.Marshal([]string{h.Names, h.Values})
	}
	return json.Marshal(h.Column)
}

// JSONSchema describes the three forms.
func (Headers) JSONSchema() *jsonschema.Schema {
	text := &jsonschema.Schema{Type: "string"}
	two := uint64(2)
	return &jsonschema.Schema{OneOf: []*jsonschema.Schema{
		text,
		{Type: "array", Items: text, MinItems: &two, MaxItems: &two},
		{Type: "object", AdditionalProperties: text},
	}}
}

// Units of an integer time column.
const (
	Seconds      = "s"
	Milliseconds = "ms"
	Microseconds = "us"
)

// Time says where the time of an event is.
type Time struct {
	Column string `json:"column"`
	Zone   string `json:"zone,omitempty"` // of a timestamp without time zone, as in the IANA database
	Unit   string `json:"unit,omitempty"` // of an integer; "": ms
}

// UnmarshalJSON reads a string or an object.
func (t *Time) UnmarshalJSON(b []byte) error {
	*t = Time{}
	if b = bytes.TrimSpace(b); b[0] == '"' {
		return json.Unmarshal(b, &t.Column)
	}
	type plain Time
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode((*plain)(t)); err != nil {
		return fmt.Errorf("time is a column or {column, zone, unit}: %w", err)
	}
	if t.Column == "" {
		return errors.New("time: column is missing")
	}
	if !slices.Contains([]string{"", Seconds, Milliseconds, Microseconds}, t.Unit) {
		return fmt.Errorf("time: unit %q is not s, ms or us", t.Unit)
	}
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (t Time) MarshalJSON() ([]byte, error) {
	if t.Zone == "" && t.Unit == "" {
		return json.Marshal(t.Column)
	}
	type plain Time
	return json.Marshal(plain(t))
}

// JSONSchema describes the two forms.
func (Time) JSONSchema() *jsonschema.Schema {
	text := &jsonschema.Schema{Type: "string"}
	p := jsonschema.NewProperties()
	p.Set("column", text)
	p.Set("zone", text)
	p.Set("unit", &jsonschema.Schema{Type: "string", Enum: []any{Seconds, Milliseconds, Microseconds}})
	return &jsonschema.Schema{OneOf: []*jsonschema.Schema{
		text,
		{Type: "object", Properties: p, Required: []string{"column"}, AdditionalProperties: jsonschema.FalseSchema},
	}}
}

// Ref is a column, or a place in the JSON document in it.
type Ref struct {
	Column  string
	Pointer []string // nil: the whole column
}

// ParseRef reads `column` or `column#/json/pointer`.
func ParseRef(s string) (Ref, error) {
	column, pointer, ok := strings.Cut(s, "#")
	if !ok {
		return Ref{Column: s}, nil
	}
	if column == "" || len(pointer) < 2 || pointer[0] != '/' {
		return Ref{}, fmt.Errorf("%q is not column#/pointer", s)
	}
	path := strings.Split(pointer[1:], "/")
	for i, p := range path {
		path[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(p)
	}
	return Ref{Column: column, Pointer: path}, nil
}

func (r Ref) String() string {
	if r.Pointer == nil {
		return r.Column
	}
	s := r.Column + "#"
	for _, p := range r.Pointer {
		s += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(p)
	}
	return s
}

// Mapping is Columns with the defaults filled in. A Ref without a column is not mapped.
type Mapping struct {
	ID, Key, Type, AggregateType, Payload Ref
	ContentType                           Ref
	MIME                                  string // content type of every event; "": ContentType, or by the payload's type
	Headers                               Headers
	Time                                  Time
	Order                                 string
	Tx                                    string // "": not mapped

	optional map[string]bool // names of keys whose column may be missing, because nobody wrote them
}

// Presets that exist, for messages.
func Presets() []string { return slices.Sorted(maps.Keys(presets)) }

// presets are complete mappings. What one does not name, a table of its kind does not have.
var presets = map[string]func() Mapping{
	// The article's table, and the columns that are recommended beside its own.
	"": func() Mapping {
		return Mapping{
			ID:            Ref{Column: "id"},
			Key:           Ref{Column: "aggregate_id"},
			Type:          Ref{Column: "type"},
			AggregateType: Ref{Column: "aggregate_type"},
			Payload:       Ref{Column: "payload"},
			Headers:       Headers{Column: "headers"},
			Time:          Time{Column: "created_at"},
			Order:         "seq",
			optional:      map[string]bool{"aggregate_type": true, "headers": true, "time": true, "order": true},
		}
	},
	// Debezium's outbox event router, with its default column names. What may be added to such a table is used if named.
	"debezium": func() Mapping {
		return Mapping{
			ID:            Ref{Column: "id"},
			Key:           Ref{Column: "aggregateid"},
			Type:          Ref{Column: "type"},
			AggregateType: Ref{Column: "aggregatetype"},
			Payload:       Ref{Column: "payload"},
		}
	},
}

// Map fills in the defaults. A fault is a *Problem.
func Map(preset string, c *Columns) (Mapping, error) {
	base, ok := presets[preset]
	if !ok {
		return Mapping{}, &Problem{
			Code: "preset_unknown", Path: "/preset", Message: fmt.Sprintf("there is no preset %q", preset),
			Hint: "presets: " + strings.Join(Presets()[1:], ", "),
		}
	}
	m := base()
	if m.optional == nil {
		m.optional = map[string]bool{}
	}
	if c == nil {
		return m, nil
	}
	for _, f := range []struct {
		name string
		from *string
		to   *Ref
	}{
		{"id", c.ID, &m.ID},
		{"key", c.Key, &m.Key},
		{"type", c.Type, &m.Type},
		{"aggregate_type", c.AggregateType, &m.AggregateType},
		{"payload", c.Payload, &m.Payload},
	} {
		if err := m.override(f.name, f.from, f.to); err != nil {
			return Mapping{}, err
		}
	}
	if c.ContentType != nil && strings.Contains(*c.ContentType, "/") && !strings.Contains(*c.ContentType, "#") {
		m.MIME = *c.ContentType
	} else if err := m.override("content_type", c.ContentType, &m.ContentType); err != nil {
		return Mapping{}, err
	}
	if c.Headers != nil {
		m.Headers, m.optional["headers"] = *c.Headers, false
	}
	if c.Time != nil {
		m.Time, m.optional["time"] = *c.Time, false
	}
	if c.Order != nil {
		m.Order, m.optional["order"] = *c.Order, false
	}
	if c.Tx != nil {
		m.Tx = *c.Tx
	}
	switch {
	case m.ID.Column == "":
		return Mapping{}, &Problem{Code: "column_required", Path: "/columns/id", Message: "an event needs an id", Hint: "name the column that holds it"}
	case m.ID.Pointer != nil:
		return Mapping{}, &Problem{
			Code: "id_is_pointer", Path: "/columns/id", Message: fmt.Sprintf("the id %s is inside a document", m.ID),
			Hint: "a row is deleted by its id, so it must be a column with a unique index",
		}
	}
	return m, nil
}

func (m *Mapping) override(name string, from *string, to *Ref) error {
	if from == nil {
		return nil
	}
	r, err := ParseRef(*from)
	if err != nil {
		return &Problem{
			Code: "column_invalid", Path: "/columns/" + name, Message: err.Error(),
			Hint: "write a column, or column#/a/b for a value in the JSON document of that column",
		}
	}
	*to, m.optional[name] = r, false
	return nil
}
