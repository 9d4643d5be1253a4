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

// Secrets are the values that may not be shown: those that the schema marks writeOnly, passwords in URLs, and the
// values of Env. For hiding them in text that others wrote.
func (p Plugin) Secrets() []string {
	var all []string
	for _, v := range p.Env {
		all = append(all, v)
	}
	x, err := jsonschema.UnmarshalJSON(bytes.NewReader(p.Config))
	if err != nil {
		return all
	}
	s, err := compileSchema(p.Describe.GetConfigSchema())
	if err != nil {
		return all
	}
	var walk func(x any, c candidates, secret bool)
	walk = func(x any, c candidates, secret bool) {
		secret = secret || c.secret()
		switch x := x.(type) {
		case map[string]any:
			for k, v := range x {
				walk(v, c.property(k), secret)
			}
		case []any:
			for i, v := range x {
				walk(v, c.item(i), secret)
			}
		case string:
			if secret {
				all = append(all, x)
			}
			if m := urlPassword.FindStringSubmatchIndex(x); m != nil {
				all = append(all, x[m[3]:m[1]-1])
			}
		}
	}
	walk(x, expand(s), false)
	return all
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
