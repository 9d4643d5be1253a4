package config

import (
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v4"
)

type valueKind uint8

const (
	scalar valueKind = iota
	mapping
	list
)

// value is one YAML value, substituted, with its place.
type value struct {
	kind  valueKind
	place place
	key   *place // of the key that holds it; nil in a list and at the top
	flow  bool   // written with { } or [ ]

	// Of a scalar.
	text    string
	plain   bool   // neither quoted nor tagged: YAML decides the type
	tag     string // what YAML takes it for: !!str, !!int, …
	from    bool   // from ${…}: text must not be shown
	unknown bool   // a missing ${…} that is tolerated
	endLine int

	entries []entry  // of a mapping
	items   []*value // of a list
}

type entry struct {
	key   string
	place place
	value *value
}

// get returns the value of a key, or nil.
func (v *value) get(key string) *value {
	if v == nil {
		return nil
	}
	for i := range v.entries {
		if v.entries[i].key == key {
			return v.entries[i].value
		}
	}
	return nil
}

// each calls f for every value directly inside.
func (v *value) each(f func(*value)) {
	for i := range v.entries {
		f(v.entries[i].value)
	}
	for _, c := range v.items {
		f(c)
	}
}

// at follows a JSON Schema instance location.
func (v *value) at(path []string) *value {
	for _, p := range path {
		if v == nil {
			return nil
		}
		if v.kind == list {
			i, err := strconv.Atoi(p)
			if err != nil || i < 0 || i >= len(v.items) {
				return nil
			}
			v = v.items[i]
		} else {
			v = v.get(p)
		}
	}
	return v
}

// owner is the place that names the value to a person: its key, or itself.
func (v *value) owner() place {
	if v.key != nil {
		return *v.key
	}
	return v.place
}

func (v *value) isNull() bool { return v.kind == scalar && v.plain && !v.from && v.tag == "!!null" }

// hasUnknown reports whether a tolerated missing ${…} is in it.
func (v *value) hasUnknown() bool {
	if v.unknown {
		return true
	}
	found := false
	v.each(func(c *value) { found = found || c.hasUnknown() })
	return found
}

// show is the text for a message: quoted, or a word for what may not be shown.
func (v *value) show() string {
	if v.from {
		return "what ${…} stands for"
	}
	if len(v.text) > 60 {
		return strconv.Quote(v.text[:60] + "…")
	}
	return strconv.Quote(v.text)
}

var (
	jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)
	octalTrap  = regexp.MustCompile(`^[+-]?0[0-9_]+$`)
)

const (
	maxValues = 100_000 // of a document, aliases expanded
	maxDepth  = 100
)

// builder makes values of YAML nodes.
type builder struct {
	file  *file
	env   environment
	count int
	last  *value              // the scalar before, whose end is not known yet
	open  map[*yaml.Node]bool // aliases being expanded
}

// document returns the values of a document, or nil if it is empty.
func (f *file) document(n *yaml.Node, env environment) *value {
	b := &builder{file: f, env: env, open: map[*yaml.Node]bool{}}
	if n.Kind == yaml.DocumentNode {
		if len(n.Content) == 0 {
			return nil
		}
		n = n.Content[0]
	}
	v := b.value(n, nil, 0)
	b.ends(len(f.lines) + 1)
	return v
}

// ends notes that the scalar before ends above line.
func (b *builder) ends(line int) {
	if b.last != nil {
		b.last.endLine = max(b.last.place.line, line-1)
	}
	b.last = nil
}

func (b *builder) value(n *yaml.Node, key *place, depth int) *value {
	at := place{n.Line, n.Column}
	v := &value{place: at, key: key, flow: n.Style&yaml.FlowStyle != 0}
	if b.count++; b.count > maxValues || depth > maxDepth {
		if b.count <= maxValues || b.count == maxValues+1 {
			b.file.report(at, CodeUnsupportedYAML, "", "the document is too deep or too large")
			b.count = maxValues + 1
		}
		return v
	}
	if len(b.open) == 0 {
		b.ends(n.Line)
	}
	switch n.Kind {
	case yaml.MappingNode:
		v.kind = mapping
		b.mapping(v, n, depth)
	case yaml.SequenceNode:
		v.kind = list
		for _, c := range n.Content {
			v.items = append(v.items, b.value(c, nil, depth+1))
		}
	case yaml.AliasNode:
		if n.Alias == nil || b.open[n.Alias] {
			b.file.report(at, CodeUnsupportedYAML, "", "the alias *%s contains itself", n.Value)
			return v
		}
		b.open[n.Alias] = true
		v = b.value(n.Alias, key, depth+1)
		delete(b.open, n.Alias)
	default:
		b.scalar(v, n)
	}
	return v
}

func (b *builder) mapping(v *value, n *yaml.Node, depth int) {
	seen := map[string]place{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		at := place{k.Line, k.Column}
		if len(b.open) == 0 {
			b.ends(k.Line)
		}
		switch {
		case k.Kind != yaml.ScalarNode:
			b.file.report(at, CodeUnsupportedYAML, "keys are text", "a mapping or list is used as a key")
			continue
		case k.Tag == "!!merge":
			b.file.report(at, CodeUnsupportedYAML, "write the keys out, or use an alias for a whole value", "merge keys (<<) are not supported")
			continue
		}
		if first, ok := seen[k.Value]; ok {
			b.file.report(at, CodeDuplicateKey, "", "the key %q is written twice, first in line %d", k.Value, first.line)
			b.file.hide(b.value(n.Content[i+1], &at, depth+1))
			continue
		}
		seen[k.Value] = at
		v.entries = append(v.entries, entry{key: k.Value, place: at, value: b.value(n.Content[i+1], &at, depth+1)})
	}
}

func (b *builder) scalar(v *value, n *yaml.Node) {
	v.kind, v.text, v.endLine = scalar, n.Value, n.Line
	v.tag = n.Tag
	quoted := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
	tagged := n.Style&yaml.TaggedStyle != 0
	v.plain = !quoted && !tagged
	if tagged {
		switch n.Tag {
		case "!!str", "!!int", "!!float", "!!bool", "!!null":
		default:
			b.file.report(v.place, CodeUnsupportedYAML, "", "the YAML tag %s is not supported", n.Tag)
		}
	}
	if len(b.open) == 0 {
		b.last = v
	}
	s, faults := b.env.substitute(n.Value)
	for _, e := range faults {
		at := b.file.inside(v, e.offset)
		if e.open && v.plain && b.cutByComment(v, n.Value) {
			b.file.report(at, e.code, `quote the value: "…"`, `"${" has no "}": YAML takes what follows " #" for a comment`)
			continue
		}
		b.file.report(at, e.code, e.hint, "%s", e.message)
	}
	v.text, v.from, v.unknown = s.text, s.changed, s.unknown || len(faults) > 0
}

// cutByComment reports whether a comment follows the scalar on its line.
func (b *builder) cutByComment(v *value, text string) bool {
	rs := []rune(b.file.line(v.place.line))
	at := v.place.column - 1 + len([]rune(text))
	if at >= len(rs) {
		return false
	}
	for i := at; i < len(rs); i++ {
		switch rs[i] {
		case ' ', '\t':
		case '#':
			return i > at
		default:
			return false
		}
	}
	return false
}

// inside is the place of a byte of a scalar's text as written, if that can be told, else the scalar's.
func (f *file) inside(v *value, offset int) place {
	rs := []rune(f.line(v.place.line))
	at := v.place.column - 1
	if at < 0 || at >= len(rs) {
		return v.place
	}
	if rs[at] == '"' || rs[at] == '\'' {
		at++
	}
	rest := string(rs[at:])
	if offset > len(rest) || offset > len(v.text) || rest[:offset] != v.text[:offset] {
		return v.place
	}
	return place{v.place.line, at + 1 + len([]rune(rest[:offset]))}
}
