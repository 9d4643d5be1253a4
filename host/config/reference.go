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

// SettingsSchema is the JSON Schema of the host settings.
func SettingsSchema() string { return settingsSchemaText }

// Key is one key of a configuration, for people.
type Key struct {
	Path        string `json:"path"` // columns.id, servers[].url, env.*
	Type        string `json:"type"` // text, a whole number, one of a, b
	Required    bool   `json:"required,omitempty"`
	Secret      bool   `json:"secret,omitempty"`
	Default     string `json:"default,omitempty"` // as YAML
	Description string `json:"description,omitempty"`
}

// maxKeyDepth ends the walk through schemas that contain themselves.
const maxKeyDepth = 6

// Keys lists every key that a schema has, required ones first, then as its author ordered them, each followed by those
// inside it.
func Keys(schema string) ([]Key, error) {
	s, err := compileSchema(schema)
	if err != nil {
		return nil, err
	}
	l := lister{order: keyOrder(schema), requiredFirst: true}
	return l.keys(expand(s), "", 0), nil
}

// lister lists the keys of schemas.
type lister struct {
	order         map[string]int
	requiredFirst bool
	stop          func(path string) bool // paths whose inside is left out; nil: none
}

// keyOrder ranks names by where they first stand under "properties" in a schema's text: compiled, it has forgotten that.
func keyOrder(text string) map[string]int {
	order := map[string]int{}
	d := json.NewDecoder(strings.NewReader(text))
	var walk func(under string) bool
	walk = func(under string) bool {
		t, err := d.Token()
		if err != nil {
			return false
		}
		delim, _ := t.(json.Delim)
		if delim != '{' && delim != '[' {
			return true
		}
		for d.More() {
			name := ""
			if delim == '{' {
				k, err := d.Token()
				if err != nil {
					return false
				}
				name, _ = k.(string)
				if _, seen := order[name]; !seen && under == "properties" {
					order[name] = len(order)
				}
			}
			if !walk(name) {
				return false
			}
		}
		_, err = d.Token()
		return err == nil
	}
	walk("")
	return order
}

// keys lists those of a mapping, and those inside them.
func (l lister) keys(c candidates, prefix string, depth int) []Key {
	if depth > maxKeyDepth {
		return nil
	}
	required := c.required()
	names := c.names()
	slices.SortStableFunc(names, func(a, b string) int {
		first := 0
		if l.requiredFirst {
			first = cmp.Compare(boolInt(!required[a]), boolInt(!required[b]))
		}
		return cmp.Or(first, cmp.Compare(l.order[a], l.order[b]))
	})
	var keys []Key
	for _, n := range names {
		path := n
		if prefix != "" {
			path = prefix + "." + n
		}
		at := c.property(n)
		k := Key{Path: path, Type: at.words(), Required: required[n], Secret: at.secret()}
		for _, s := range at {
			k.Description = cmp.Or(k.Description, s.Description)
			if s.Default != nil && k.Default == "" && !k.Secret {
				k.Default = yamlText(*s.Default)
			}
		}
		keys = append(keys, k)
		if l.stop != nil && l.stop(path) {
			continue
		}
		keys = append(keys, l.keys(at, path, depth+1)...)
		if item := at.item(0); len(item) > 0 {
			keys = append(keys, l.keys(item, path+"[]", depth+1)...)
		}
	}
	return keys
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// required are the keys without which no alternative is right, as far as they are stated plainly.
func (c candidates) required() map[string]bool {
	all := map[string]bool{}
	if len(c) == 0 {
		return all
	}
	var add func(s *jsonschema.Schema)
	add = func(s *jsonschema.Schema) {
		if s == nil {
			return
		}
		for _, r := range s.Required {
			all[r] = true
		}
		add(s.Ref)
		for _, a := range s.AllOf {
			add(a)
		}
	}
	add(c[0])
	if len(c[0].AnyOf)+len(c[0].OneOf) == 0 {
		return all
	}
	// A mapping among alternatives: what it needs if it is the one.
	for _, alternatives := range [][]*jsonschema.Schema{c[0].AnyOf, c[0].OneOf} {
		for _, s := range alternatives {
			if len(s.Properties) > 0 {
				add(s)
			}
		}
	}
	return all
}

// words describe what a value may be.
func (c candidates) words() string {
	var words []string
	add := func(w string) {
		if w != "" && !slices.Contains(words, w) {
			words = append(words, w)
		}
	}
	for _, s := range c {
		switch {
		case s.Enum != nil:
			var names []string
			for _, v := range s.Enum.Values {
				names = append(names, yamlText(v))
			}
			add(strings.Join(names, ", "))
		case s.Const != nil:
			add(yamlText(*s.Const))
		case s.Pattern != nil && patternWords[s.Pattern.String()] != "":
			known, _, _ := strings.Cut(patternWords[s.Pattern.String()], " such as")
			add(strings.TrimPrefix(known, "a "))
		case s.Types != nil:
			for _, t := range s.Types.ToStrings() {
				if t == "null" {
					continue
				}
				w := strings.TrimPrefix(typeWords[t], "a ")
				if t == "array" {
					if item := (candidates{s}).item(0); len(item) > 0 && item.words() != "mapping" {
						w = "list of " + item.words()
					}
				}
				add(w)
			}
		}
	}
	return strings.Join(words, ", or ")
}

// yamlText is a JSON value as one would write it in YAML, on one line.
func yamlText(x any) string {
	if s, ok := x.(string); ok && s != "" && !strings.ContainsAny(s, ":#{}[],&*!|>'\"%@`\n ") {
		return s
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(x); err != nil {
		return ""
	}
	return strings.TrimSpace(b.String())
}

// Reference is docs/pipeline-reference.md: every key of pipeline files, of the plugins' configs and of the host settings.
func Reference(plugins []*pluginv1.DescribeResponse) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("# Pipeline reference\n\n<!-- Made by `relevo schema --markdown` from the schemas that `relevo validate` checks with. Do not edit. -->\n\n")
	b.WriteString("Durations are written as in Go, with `d` for days (`250ms`, `1m30s`, `2d`), sizes with B, kB, MB, GB, KiB, MiB or GiB.\n" +
		"`${VAR}`, `${VAR:-default}`, `${VAR:?message}` and `${file:/path}` are filled in where a value stands; `$$` is a dollar sign.\n")
	inConfig := func(path string) bool { return path == "source.config" || path == "sinks[].config" }
	b.WriteString("\n## Pipeline file\n\n")
	file := lister{order: keyOrder(pipelineSchemaText), stop: inConfig}
	writeKeys(&b, file.keys(expand(pipelineSchema()), "", 0))
	for _, p := range sortedPlugins(plugins) {
		kind := "Source"
		if p.GetKind() == pluginv1.PluginKind_PLUGIN_KIND_SINK {
			kind = "Sink"
		}
		keys, err := Keys(p.GetConfigSchema())
		if err != nil {
			return nil, fmt.Errorf("plugin %s: %w", p.GetName(), err)
		}
		fmt.Fprintf(&b, "\n## %s `%s`\n\n", kind, p.GetName())
		if p.GetSummary() != "" {
			fmt.Fprintf(&b, "%s\n\n", p.GetSummary())
		}
		if d := p.GetDestination(); d != nil {
			fmt.Fprintf(&b, "`to` is the %s.\n\n", d.GetNoun())
		}
		writeKeys(&b, keys)
	}
	b.WriteString("\n## Host settings\n\n")
	settings := lister{order: keyOrder(settingsSchemaText)}
	writeKeys(&b, settings.keys(expand(settingsSchema()), "", 0))
	return b.Bytes(), nil
}

func writeKeys(b *bytes.Buffer, keys []Key) {
	if len(keys) == 0 {
		b.WriteString("No configuration.\n")
		return
	}
	cell := strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace
	b.WriteString("| key | value | meaning |\n| --- | --- | --- |\n")
	for _, k := range keys {
		name := "`" + k.Path + "`"
		if k.Required {
			name = "**" + name + "**"
		}
		value := k.Type
		if k.Secret {
			value += ", secret"
		}
		if k.Default != "" && !strings.Contains(k.Description, "Defaults to") {
			value += ", default `" + k.Default + "`"
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, cell(value), cell(k.Description))
	}
}
