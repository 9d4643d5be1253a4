package config

import (
	"bytes"
	"encoding/json"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Masked is the configuration with *** for every secret: what the plugin's schema marks writeOnly, and passwords in
// URLs. It may be printed (I9).
func (p Plugin) Masked() []byte {
	x, err := jsonschema.UnmarshalJSON(bytes.NewReader(p.Config))
	if err != nil {
		return []byte("{}")
	}
	s, err := compileSchema(p.Describe.GetConfigSchema())
	if err != nil {
		return []byte("{}") // nobody says what is secret
	}
	b, err := json.MarshalIndent(maskValue(x, expand(s)), "", "  ")
	if err != nil {
		panic("BUG: marshal a decoded config: " + err.Error())
	}
	return b
}

func maskValue(x any, c candidates) any {
	if c.secret() {
		return mask
	}
	switch x := x.(type) {
	case map[string]any:
		m := make(map[string]any, len(x))
		for k, v := range x {
			m[k] = maskValue(v, c.property(k))
		}
		return m
	case []any:
		l := make([]any, len(x))
		for i, v := range x {
			l[i] = maskValue(v, c.item(i))
		}
		return l
	case string:
		return MaskText(x)
	}
	return x
}
