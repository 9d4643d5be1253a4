package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// compileSchema compiles a JSON Schema that stands alone; "" allows any object.
func compileSchema(text string) (*jsonschema.Schema, error) {
	if text == "" {
		text = `{"type":"object"}`
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("parse schema: %w", err)
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	const url = "relevo:///schema.json"
	if err := c.AddResource(url, doc); err != nil {
		return nil, fmt.Errorf("read schema: %w", err)
	}
	s, err := c.Compile(url)
	if err != nil {
		return nil, fmt.Errorf("compile schema: %w", err)
	}
	return s, nil
}

// noLoader keeps the schema of a plugin from reading files of the host.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s: a schema must stand alone", url)
}

// candidates are the schemas that may speak about one value: alternatives and combinations alike.
type candidates []*jsonschema.Schema

// expand follows references and combinations, each schema once.
func expand(ss ...*jsonschema.Schema) candidates {
	var all candidates
	var add func(s *jsonschema.Schema)
	add = func(s *jsonschema.Schema) {
		if s == nil || slices.Contains(all, s) {
			return
		}
		all = append(all, s)
		add(s.Ref)
		for _, group := range [][]*jsonschema.Schema{s.AllOf, s.AnyOf, s.OneOf, {s.If, s.Then, s.Else}} {
			for _, g := range group {
				add(g)
			}
		}
	}
	for _, s := range ss {
		add(s)
	}
	return all
}

// property are the schemas of a key of a mapping.
func (c candidates) property(name string) candidates {
	var next []*jsonschema.Schema
	for _, s := range c {
		found := false
		if p, ok := s.Properties[name]; ok {
			next, found = append(next, p), true
		}
		for re, p := range s.PatternProperties {
			if re.MatchString(name) {
				next, found = append(next, p), true
			}
		}
		if p, ok := s.AdditionalProperties.(*jsonschema.Schema); ok && !found {
			next = append(next, p)
		}
	}
	return expand(next...)
}

// item are the schemas of an item of a list.
func (c candidates) item(i int) candidates {
	var next []*jsonschema.Schema
	for _, s := range c {
		if i < len(s.PrefixItems) {
			next = append(next, s.PrefixItems[i])
			continue
		}
		if s.Items2020 != nil {
			next = append(next, s.Items2020)
		}
		switch items := s.Items.(type) { // drafts before 2020-12
		case *jsonschema.Schema:
			next = append(next, items)
		case []*jsonschema.Schema:
			if i < len(items) {
				next = append(next, items[i])
			}
		}
	}
	return expand(next...)
}

// at are the schemas of an instance location.
func (c candidates) at(v *value, path []string) candidates {
	for _, p := range path {
		if v != nil && v.kind == list {
			i, err := strconv.Atoi(p)
			if err != nil {
				return nil
			}
			c = c.item(i)
		} else {
			c = c.property(p)
		}
		v = v.at([]string{p})
	}
	return c
}

// names are the keys that a mapping may have.
func (c candidates) names() []string {
	var names []string
	for _, s := range c {
		for n, p := range s.Properties {
			if p.Bool == nil || *p.Bool {
				names = append(names, n)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (c candidates) secret() bool {
	return slices.ContainsFunc(c, func(s *jsonschema.Schema) bool { return s.WriteOnly })
}

// types are the JSON types that the schemas name, also by enum or const.
func (c candidates) types() []string {
	var types []string
	for _, s := range c {
		switch {
		case s.Types != nil && !s.Types.IsEmpty():
			types = append(types, s.Types.ToStrings()...)
		case s.Enum != nil:
			for _, v := range s.Enum.Values {
				types = append(types, typeOf(v))
			}
		case s.Const != nil:
			types = append(types, typeOf(*s.Const))
		}
	}
	slices.Sort(types)
	return slices.Compact(types)
}

func typeOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	}
	return "number"
}

// accepts reports whether the schemas that name the type of x take it as it is.
func (c candidates) accepts(x any) bool {
	t := typeOf(x)
	for _, s := range c {
		own := candidates{s}.types()
		if (slices.Contains(own, t) || t == "number" && slices.Contains(own, "integer")) && s.Validate(x) == nil {
			return true
		}
	}
	return false
}

// instance is the JSON value of v: what stands in a plain scalar, and what came from ${…}, is given the type that the
// schema asks for, so that a password 12345 stays text and `batch: ${N}` is a number.
func instance(v *value, c candidates) any {
	switch v.kind {
	case mapping:
		m := make(map[string]any, len(v.entries))
		for _, e := range v.entries {
			m[e.key] = instance(e.value, c.property(e.key))
		}
		return m
	case list:
		l := make([]any, len(v.items))
		for i, x := range v.items {
			l[i] = instance(x, c.item(i))
		}
		return l
	}
	return scalarInstance(v, c)
}

func scalarInstance(v *value, c candidates) any {
	switch {
	case v.isNull():
		return nil
	case v.from:
		// Text if the schema has a place for it; where it names no type, too.
		types := c.types()
		if len(types) == 0 || c.accepts(v.text) {
			return v.text
		}
		for _, x := range []any{numberOf(v.text), boolOf(v.text)} {
			if x != nil && c.accepts(x) {
				return x
			}
		}
		if slices.Contains(types, "string") {
			return v.text
		}
		if x := numberOf(v.text); x != nil && (slices.Contains(types, "integer") || slices.Contains(types, "number")) {
			return x
		}
		return v.text
	case v.plain:
		x, types := yamlInstance(v), c.types()
		wanted := slices.Contains(types, typeOf(x)) || typeOf(x) == "number" && slices.Contains(types, "integer")
		if !wanted && slices.Contains(types, "string") {
			return v.text // as written: 12345, 2024-01-01, 0x1f, true
		}
		return x
	case v.tag == "!!str" || v.tag == "":
		return v.text
	}
	return yamlInstance(v) // tagged
}

// yamlInstance is what YAML takes a scalar for.
func yamlInstance(v *value) any {
	switch v.tag {
	case "!!null":
		return nil
	case "!!bool":
		if b := boolOf(strings.ToLower(v.text)); b != nil {
			return b
		}
	case "!!int":
		if n := numberOf(v.text); n != nil {
			return n
		}
		if octalTrap.MatchString(v.text) {
			break // 012: ten or twelve, depending on whom one asks
		}
		if n, err := strconv.ParseInt(v.text, 0, 64); err == nil {
			return json.Number(strconv.FormatInt(n, 10))
		}
	case "!!float":
		if n := numberOf(v.text); n != nil {
			return n
		}
		if f, err := strconv.ParseFloat(v.text, 64); err == nil {
			if n := numberOf(strconv.FormatFloat(f, 'g', -1, 64)); n != nil {
				return n
			}
		}
	}
	return v.text
}

// numberOf returns nil if the text is not a JSON number. Long exponents are refused: they are expanded when compared.
func numberOf(s string) any {
	if len(s) > 40 || !jsonNumber.MatchString(s) {
		return nil
	}
	if _, err := strconv.ParseFloat(s, 64); err != nil {
		return nil
	}
	return json.Number(s)
}

func boolOf(s string) any {
	switch s {
	case "true":
		return true
	case "false":
		return false
	}
	return nil
}
