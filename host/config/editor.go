package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// Schema is one JSON Schema of a whole pipeline file, for editors, with the configuration of each plugin where that
// plugin is named. It stands alone. Where a value is no text, ${…} is allowed beside it.
func Schema(plugins []*pluginv1.DescribeResponse) ([]byte, error) {
	root, err := decodeObject(pipelineSchemaText)
	if err != nil {
		panic("BUG: pipeline.schema.json: " + err.Error())
	}
	defs := root["$defs"].(map[string]any)
	names := map[string][]any{}
	conditions := map[string][]any{}
	for _, p := range sortedPlugins(plugins) {
		kind := map[pluginv1.PluginKind]string{
			pluginv1.PluginKind_PLUGIN_KIND_SOURCE: "source", pluginv1.PluginKind_PLUGIN_KIND_SINK: "sink",
		}[p.GetKind()]
		if kind == "" {
			return nil, fmt.Errorf("plugin %q is neither a source nor a sink", p.GetName())
		}
		name := kind + "-" + p.GetName()
		compiled, err := compileSchema(p.GetConfigSchema())
		if err != nil {
			return nil, fmt.Errorf("plugin %s: %w", name, err)
		}
		schema, err := decodeObject(cmp.Or(p.GetConfigSchema(), `{"type":"object"}`))
		if err != nil {
			return nil, fmt.Errorf("plugin %s: %w", name, err)
		}
		delete(schema, "$schema")
		delete(schema, "$id")
		defs[name] = rebase(schema, "#/$defs/"+name)
		names[kind] = append(names[kind], p.GetName())
		conditions[kind] = append(conditions[kind], condition(p, requires(compiled), kind, name))
	}
	for _, kind := range []string{"source", "sink"} {
		def := defs[kind].(map[string]any)
		if len(conditions[kind]) == 0 {
			continue
		}
		def["allOf"] = conditions[kind]
		plugin := def["properties"].(map[string]any)["plugin"].(map[string]any)
		plugin["examples"] = names[kind]
	}
	allowSubstitution(root)
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(root); err != nil {
		return nil, fmt.Errorf("encode schema: %w", err)
	}
	return b.Bytes(), nil
}

// condition says what holds where the plugin is named.
func condition(p *pluginv1.DescribeResponse, needsConfig bool, kind, name string) map[string]any {
	properties := map[string]any{"config": map[string]any{"$ref": "#/$defs/" + name}}
	var required []any
	if needsConfig {
		required = append(required, "config")
	}
	if kind == "sink" {
		if d := p.GetDestination(); d == nil {
			properties["to"] = false
		} else {
			required = append(required, "to")
			if d.GetNoun() != "" {
				properties["to"] = map[string]any{"title": d.GetNoun()}
			}
		}
	}
	then := map[string]any{"properties": properties}
	if len(required) > 0 {
		then["required"] = required
	}
	return map[string]any{
		"if": map[string]any{
			"properties": map[string]any{"plugin": map[string]any{"const": p.GetName()}},
			"required":   []any{"plugin"},
		},
		"then": then,
	}
}

// requires reports whether a schema refuses an empty mapping for want of a key.
func requires(s *jsonschema.Schema) bool {
	return s != nil && (len(s.Required) > 0 || requires(s.Ref) || slices.ContainsFunc(s.AllOf, requires))
}

func sortedPlugins(plugins []*pluginv1.DescribeResponse) []*pluginv1.DescribeResponse {
	plugins = slices.Clone(plugins)
	slices.SortFunc(plugins, func(a, b *pluginv1.DescribeResponse) int {
		return cmp.Or(cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return plugins
}

func decodeObject(text string) (map[string]any, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		return nil, fmt.Errorf("parse schema: %w", err)
	}
	return m, nil
}

// rebase makes references within a plugin's schema hold where it now stands. (A nested $id would do by the standard, but
// editors do not follow it.)
func rebase(x any, base string) any {
	switch x := x.(type) {
	case map[string]any:
		for k, v := range x {
			if s, ok := v.(string); ok && k == "$ref" && strings.HasPrefix(s, "#") {
				x[k] = base + strings.TrimPrefix(s, "#")
				continue
			}
			x[k] = rebase(v, base)
		}
	case []any:
		for i, v := range x {
			x[i] = rebase(v, base)
		}
	}
	return x
}

// allowSubstitution lets ${…} stand where a schema wants no text, or text of a certain form: an editor sees the file
// before substitution.
func allowSubstitution(schema map[string]any) {
	for _, key := range []string{"properties", "$defs", "patternProperties"} {
		if m, ok := schema[key].(map[string]any); ok {
			for k, v := range m {
				m[k] = substitutable(v)
			}
		}
	}
	for _, key := range []string{"items", "additionalProperties", "then", "else"} {
		if v, ok := schema[key]; ok {
			schema[key] = substitutable(v)
		}
	}
	for _, key := range []string{"allOf", "anyOf", "oneOf", "prefixItems"} {
		if l, ok := schema[key].([]any); ok {
			for i, v := range l {
				if m, ok := v.(map[string]any); ok {
					if key == "prefixItems" {
						l[i] = substitutable(m)
					} else {
						allowSubstitution(m)
					}
				}
			}
		}
	}
}

func substitutable(x any) any {
	s, ok := x.(map[string]any)
	if !ok {
		return x
	}
	allowSubstitution(s)
	if !restrictedScalar(s) {
		return s
	}
	form := map[string]any{"type": "string", "pattern": `\$\{.+\}`}
	outer := map[string]any{}
	for _, k := range []string{"title", "description", "default", "examples", "writeOnly", "deprecated"} {
		if v, ok := s[k]; ok { // shown by editors, from the outside
			outer[k] = v
			delete(s, k)
		}
	}
	outer["anyOf"] = []any{s, form}
	return outer
}

// restrictedScalar reports whether a schema refuses the text "${X}" but takes some scalar.
func restrictedScalar(s map[string]any) bool {
	t, typed := s["type"].(string)
	for _, k := range []string{"pattern", "enum", "maxLength", "format"} {
		if _, ok := s[k]; ok && (t == "string" || !typed) {
			return true
		}
	}
	if c, ok := s["const"]; ok {
		_, text := c.(string)
		return !text // a constant text tells branches apart
	}
	return t == "integer" || t == "number" || t == "boolean"
}
