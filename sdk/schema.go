package sdk

import (
	"encoding/json"
	"reflect"

	"github.com/invopop/jsonschema"
)

// configSchema makes the JSON Schema (draft 2020-12) of C: names from json tags, descriptions from doc tags, constraints
// from jsonschema tags (`jsonschema:"required,minimum=1,enum=a,enum=b"`), defaults from defaults. Only a key that is
// tagged required is required, and no key but those of C is allowed.
func configSchema[C any](defaults func() C) ([]byte, error) {
	r := jsonschema.Reflector{
		Anonymous:                  true,
		ExpandedStruct:             true,
		DoNotReference:             true,
		RequiredFromJSONSchemaTags: true,
		LookupComment: func(t reflect.Type, field string) string {
			if t.Kind() != reflect.Struct || field == "" {
				return ""
			}
			f, _ := t.FieldByName(field)
			return f.Tag.Get("doc")
		},
	}
	s := r.ReflectFromType(reflect.TypeFor[C]())
	if defaults != nil {
		// Through JSON and back: defaults look as a user would write them.
		b, err := json.Marshal(defaults())
		if err != nil {
			return nil, err
		}
		var d any
		if err := json.Unmarshal(b, &d); err != nil {
			return nil, err
		}
		setDefaults(s, d)
	}
	return json.Marshal(s)
}

// setDefaults writes values into a schema. A zero value says nothing that its absence does not, and the default of a
// secret is nobody's business (I9).
func setDefaults(s *jsonschema.Schema, v any) {
	switch v := v.(type) {
	case map[string]any:
		if s.Properties != nil {
			for p := s.Properties.Oldest(); p != nil; p = p.Next() {
				if d, ok := v[p.Key]; ok {
					setDefaults(p.Value, d)
				}
			}
			return
		}
		if len(v) == 0 {
			return
		}
	case []any:
		if len(v) == 0 {
			return
		}
	case nil:
		return
	default:
		if reflect.ValueOf(v).IsZero() {
			return
		}
	}
	if !s.WriteOnly && s.Default == nil {
		s.Default = v
	}
}
