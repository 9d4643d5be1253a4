package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/invopop/jsonschema"
)

// Ways to deal with a published row.
const (
	AfterDelete = "delete"
	AfterSet    = "set"
	AfterKeep   = "keep"
)

// AfterPublish says what happens to a row once its event has reached every broker. The zero value: nobody wrote it.
type AfterPublish struct {
	Do  string            // AfterDelete, AfterSet or AfterKeep
	Set map[string]string // with AfterSet: column → SQL expression
}

// Columns are those of Set, in order.
func (a AfterPublish) Columns() []string { return slices.Sorted(maps.Keys(a.Set)) }

// UnmarshalJSON reads "delete", "keep", or {"set": {column: expression}}. A number or a boolean is an expression, too.
func (a *AfterPublish) UnmarshalJSON(b []byte) error {
	*a = AfterPublish{}
	if b = bytes.TrimSpace(b); b[0] == '"' {
		if err := json.Unmarshal(b, &a.Do); err != nil {
			return err
		}
		if a.Do != AfterDelete && a.Do != AfterKeep {
			return fmt.Errorf("after_publish: %q is neither delete nor keep; to mark rows write {set: {column: expression}}", a.Do)
		}
		return nil
	}
	var o struct {
		Set map[string]json.RawMessage `json:"set"`
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil || len(o.Set) == 0 {
		return errors.New("after_publish is delete, keep, or {set: {column: expression}}")
	}
	a.Do, a.Set = AfterSet, make(map[string]string, len(o.Set))
	for column, v := range o.Set {
		var text string
		switch {
		case json.Unmarshal(v, &text) == nil && string(v) != "null":
		case v[0] != '{' && v[0] != '[':
			text = string(v)
		default:
			return fmt.Errorf("after_publish: the value of %s is not an SQL expression", column)
		}
		a.Set[column] = text
	}
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (a AfterPublish) MarshalJSON() ([]byte, error) {
	if a.Do == AfterSet {
		return json.Marshal(map[string]any{"set": a.Set})
	}
	return json.Marshal(a.Do)
}

// JSONSchema describes the two forms.
func (AfterPublish) JSONSchema() *jsonschema.Schema {
	one := uint64(1)
	expression := &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "string"}, {Type: "number"}, {Type: "boolean"}, {Type: "null"}}}
	p := jsonschema.NewProperties()
	p.Set("set", &jsonschema.Schema{
		Type: "object", MinProperties: &one, AdditionalProperties: expression,
		Description: "Columns and the SQL expressions that they are set to, for example published_at: now(). Afterwards the row must not satisfy pending any more.",
	})
	return &jsonschema.Schema{OneOf: []*jsonschema.Schema{
		{Type: "string", Enum: []any{AfterDelete, AfterKeep}},
		{Type: "object", Properties: p, Required: []string{"set"}, AdditionalProperties: jsonschema.FalseSchema},
	}}
}
