package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// checker holds a value against a schema and reports what is wrong in plain words, at its place.
type checker struct {
	file *file
	top  *value
	root candidates
	path string // of top, for messages: "source.config"; "" at the top of a file
	// unknown may give an unknown key another code, message and hint; "" leaves it as it is.
	unknown func(path []string, key string) (code, message, hint string)
}

// check returns the JSON value, and whether it is right. Secrets are hidden first, so that no source line shows them.
func (c *checker) check(s *jsonschema.Schema) (x any, ok bool) {
	c.root = expand(s)
	c.hideSecrets(c.top, c.root)
	x = instance(c.top, c.root)
	err := s.Validate(x)
	if err == nil {
		return x, !c.top.hasUnknown()
	}
	before := len(c.file.faults)
	if ve, isValidation := err.(*jsonschema.ValidationError); isValidation {
		c.walk(ve)
	} else {
		c.file.report(c.top.owner(), CodeBadValue, "", "%s cannot be checked: %s", c.name(nil), err)
	}
	return x, len(c.file.faults) == before && !c.top.hasUnknown()
}

func (c *checker) hideSecrets(v *value, at candidates) {
	if at.secret() {
		c.file.hide(v)
		return
	}
	for _, e := range v.entries {
		next := at.property(e.key)
		if len(next) == 0 && len(at) > 0 && !slices.Contains(at.names(), e.key) && c.closed(at) {
			if meant := closest(e.key, at.names()); meant == "" || at.property(meant).secret() {
				c.file.hide(e.value) // a misspelt password is a password
			}
			continue
		}
		c.hideSecrets(e.value, next)
	}
	for i, x := range v.items {
		c.hideSecrets(x, at.item(i))
	}
}

// closed reports whether the schemas refuse keys that they do not name.
func (*checker) closed(at candidates) bool {
	return slices.ContainsFunc(at, func(s *jsonschema.Schema) bool { return s.AdditionalProperties == false })
}

// walk goes down to the leaves: what stands above them ("$ref", "allOf") says nothing to a person.
func (c *checker) walk(e *jsonschema.ValidationError) {
	switch e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf:
		c.alternatives(e)
		return
	}
	if len(e.Causes) == 0 {
		c.leaf(e)
		return
	}
	for _, cause := range e.Causes {
		c.walk(cause)
	}
}

// alternatives reports the one branch that was meant, judged by the type, or all that would be right.
func (c *checker) alternatives(e *jsonschema.ValidationError) {
	v := c.top.at(e.InstanceLocation)
	if v != nil && v.hasUnknown() {
		return
	}
	var meant []*jsonschema.ValidationError
	for _, branch := range e.Causes {
		if !slices.ContainsFunc(leaves(branch), func(l *jsonschema.ValidationError) bool {
			_, wrongType := l.ErrorKind.(*kind.Type)
			return wrongType && len(l.InstanceLocation) == len(e.InstanceLocation)
		}) {
			meant = append(meant, branch)
		}
	}
	switch {
	case len(meant) == 1:
		c.walk(meant[0])
	case len(meant) > 1 && v != nil && v.kind != scalar:
		c.walk(slices.MinFunc(meant, func(a, b *jsonschema.ValidationError) int { return len(leaves(a)) - len(leaves(b)) }))
	case len(meant) > 1 || len(e.Causes) == 0:
		c.value(e.InstanceLocation, CodeBadValue, c.wants(c.root.at(c.top, e.InstanceLocation)))
	default:
		c.wrongType(e.InstanceLocation, c.root.at(c.top, e.InstanceLocation).types())
	}
}

func leaves(e *jsonschema.ValidationError) []*jsonschema.ValidationError {
	if len(e.Causes) == 0 {
		return []*jsonschema.ValidationError{e}
	}
	var all []*jsonschema.ValidationError
	for _, c := range e.Causes {
		all = append(all, leaves(c)...)
	}
	return all
}

func (c *checker) leaf(e *jsonschema.ValidationError) {
	path := e.InstanceLocation
	v := c.top.at(path)
	if v == nil || v.unknown {
		return
	}
	switch k := e.ErrorKind.(type) {
	case *kind.AdditionalProperties:
		for _, p := range k.Properties {
			c.unknownKey(path, p)
		}
	case *kind.FalseSchema:
		if len(path) > 0 {
			c.unknownKey(path[:len(path)-1], path[len(path)-1])
		}
	case *kind.Required:
		for _, p := range k.Missing {
			c.missing(path, p, "")
		}
	case *kind.DependentRequired:
		for _, p := range k.Missing {
			c.missing(path, p, fmt.Sprintf(" beside %q", k.Prop))
		}
	case *kind.Type:
		c.wrongType(path, k.Want)
	case *kind.Enum:
		c.oneOf(path, k.Want)
	case *kind.Const:
		c.oneOf(path, []any{k.Want})
	case *kind.Pattern:
		c.value(path, CodeBadValue, c.wantsPattern(c.root.at(c.top, path), k.Want))
	case *kind.MinLength:
		if k.Want == 1 && v.from {
			c.file.report(v.place, CodeBadValue, "", "%s is empty after substitution", c.name(path))
			return
		}
		if k.Want == 1 {
			c.file.report(v.owner(), CodeBadValue, "", "%s is empty", c.name(path))
			return
		}
		c.value(path, CodeBadValue, fmt.Sprintf("at least %d characters", k.Want))
	case *kind.MaxLength:
		c.value(path, CodeBadValue, fmt.Sprintf("at most %d characters", k.Want))
	case *kind.Minimum:
		c.value(path, CodeBadValue, "at least "+number(k.Want))
	case *kind.Maximum:
		c.value(path, CodeBadValue, "at most "+number(k.Want))
	case *kind.ExclusiveMinimum:
		c.value(path, CodeBadValue, "more than "+number(k.Want))
	case *kind.ExclusiveMaximum:
		c.value(path, CodeBadValue, "less than "+number(k.Want))
	case *kind.MultipleOf:
		c.value(path, CodeBadValue, "a multiple of "+number(k.Want))
	case *kind.MinItems:
		c.count(path, "at least", k.Want, "item")
	case *kind.MaxItems:
		c.count(path, "at most", k.Want, "item")
	case *kind.MinProperties:
		c.count(path, "at least", k.Want, "key")
	case *kind.MaxProperties:
		c.count(path, "at most", k.Want, "key")
	case *kind.UniqueItems:
		if v.hasUnknown() {
			return
		}
		at := v.place
		if k.Duplicates[1] < len(v.items) {
			at = v.items[k.Duplicates[1]].place
		}
		c.file.report(at, CodeBadValue, "", "%s names the same thing twice", c.name(path))
	case *kind.PropertyNames:
		c.file.report(v.owner(), CodeBadValue, "", "%s: the key %q is not allowed here", c.name(path), k.Property)
	default:
		// Other keywords' own words may hold the value, so they are not shown.
		c.file.report(v.owner(), CodeBadValue, "", "%s does not satisfy %q of the schema", c.name(path), strings.Join(e.ErrorKind.KeywordPath(), "/"))
	}
}

func (c *checker) unknownKey(path []string, key string) {
	v := c.top.at(path)
	at := v.place
	for _, e := range v.entries {
		if e.key == key {
			at = e.place
		}
	}
	if c.unknown != nil {
		if code, message, hint := c.unknown(path, key); code != "" {
			c.file.report(at, code, hint, "%s", message)
			return
		}
	}
	names := c.root.at(c.top, path).names()
	hint := didYouMean(key, names)
	if hint == "" && len(names) > 0 && len(names) <= 20 {
		hint = "the keys are " + strings.Join(names, ", ")
	}
	where := c.name(path)
	if where == "" {
		c.file.report(at, CodeUnknownKey, hint, "unknown key %q", key)
		return
	}
	c.file.report(at, CodeUnknownKey, hint, "unknown key %q in %s", key, where)
}

func (c *checker) missing(path []string, key, why string) {
	v := c.top.at(path)
	hint := ""
	for _, e := range v.entries {
		if len(c.root.at(c.top, path).property(e.key)) == 0 && closest(e.key, []string{key}) != "" {
			return // the unknown key says it
		}
	}
	for _, s := range c.root.at(c.top, path).property(key) {
		if s.Description != "" {
			hint = firstSentence(s.Description)
			break
		}
	}
	where := c.name(path)
	if where == "" {
		where = "the pipeline"
	}
	c.file.report(v.owner(), CodeMissingKey, hint, "%s needs %q%s", where, key, why)
}

var typeWords = map[string]string{
	"object": "a mapping", "array": "a list", "string": "text", "integer": "a whole number", "number": "a number",
	"boolean": "true or false", "null": "nothing",
}

func (c *checker) wrongType(path, want []string) {
	v := c.top.at(path)
	if v == nil || v.unknown {
		return
	}
	if slices.Contains(want, "string") && v.kind == mapping && v.flow && looksLikePlaceholder(v) {
		name := v.entries[0].key
		c.file.report(v.place, CodeUnquotedPlaceholder, fmt.Sprintf(`quote it: "{%s}"`, name), "{%s} is a mapping in YAML, not text", name)
		return
	}
	words := make([]string, 0, len(want))
	for _, t := range want {
		if t != "null" || len(want) == 1 {
			words = append(words, typeWords[t])
		}
	}
	at, got := v.place, ""
	hint := ""
	switch {
	case v.kind != scalar:
		got = "not " + map[valueKind]string{mapping: "a mapping", list: "a list"}[v.kind]
		at = v.owner()
	case v.isNull():
		got = "and has no value"
		at = v.owner()
	default:
		got = "not " + v.show()
		if c.root.at(c.top, path).secret() {
			got = "which it is not"
		}
		if slices.Contains(want, "boolean") && slices.Contains([]string{"yes", "no", "on", "off"}, strings.ToLower(v.text)) && !v.from {
			hint = "YAML 1.2 knows true and false only"
		}
		if !v.plain && !v.from && numberOf(v.text) != nil {
			hint = "leave the quotes out"
		}
	}
	c.file.report(at, CodeWrongType, hint, "%s must be %s, %s", c.name(path), strings.Join(words, " or "), got)
}

// looksLikePlaceholder reports whether a flow mapping is {name} written without quotes.
func looksLikePlaceholder(v *value) bool {
	return len(v.entries) == 1 && v.entries[0].value.isNull()
}

func (c *checker) oneOf(path []string, want []any) {
	v := c.top.at(path)
	words := make([]string, len(want))
	var names []string
	for i, w := range want {
		if s, ok := w.(string); ok {
			words[i] = s
			names = append(names, s)
			continue
		}
		b, _ := json.Marshal(w)
		words[i] = string(b)
	}
	hint := ""
	if v.kind == scalar && !v.from && !c.root.at(c.top, path).secret() {
		hint = didYouMean(v.text, names)
	}
	if code, message, h := c.notYet(path, v); code != "" {
		c.file.report(v.place, code, h, "%s", message)
		return
	}
	what := "one of " + strings.Join(words, ", ")
	if len(words) == 1 {
		what = words[0]
	}
	c.valueHint(path, CodeBadValue, what, hint)
}

// notYet lets the owner of the schema name values that a later version will know.
func (c *checker) notYet(path []string, v *value) (code, message, hint string) {
	if c.unknown == nil || v.kind != scalar || v.from {
		return "", "", ""
	}
	return c.unknown(path, "="+v.text)
}

func (c *checker) value(path []string, code, want string) { c.valueHint(path, code, want, "") }

// valueHint reports a value that is not what is wanted; a secret one, and one from ${…}, is not shown.
func (c *checker) valueHint(path []string, code, want, hint string) {
	v := c.top.at(path)
	got := ""
	switch {
	case v.kind != scalar:
	case v.from:
		got = ", which " + v.show() + " is not"
	case !c.root.at(c.top, path).secret():
		got = ", not " + MaskText(v.show())
	}
	c.file.report(v.place, code, hint, "%s must be %s%s", c.name(path), want, got)
}

func (c *checker) count(path []string, how string, n int, what string) {
	if n != 1 {
		what += "s"
	}
	c.file.report(c.top.at(path).owner(), CodeBadValue, "", "%s must have %s %d %s", c.name(path), how, n, what)
}

// wants describes all alternatives of a scalar.
func (c *checker) wants(at candidates) string {
	var words []string
	for _, s := range at {
		switch {
		case s.Enum != nil:
			for _, v := range s.Enum.Values {
				words = append(words, fmt.Sprint(v))
			}
		case s.Const != nil:
			words = append(words, fmt.Sprint(*s.Const))
		case s.Pattern != nil:
			words = append(words, c.wantsPattern(candidates{s}, s.Pattern.String()))
		}
	}
	if len(words) == 0 {
		for _, t := range at.types() {
			words = append(words, typeWords[t])
		}
	}
	return strings.Join(words, " or ")
}

// wantsPattern is the title and the examples of the schema that has the pattern, which say more than the pattern.
func (c *checker) wantsPattern(at candidates, pattern string) string {
	for _, s := range at {
		if s.Pattern == nil || s.Pattern.String() != pattern {
			continue
		}
		if known, ok := patternWords[pattern]; ok {
			return known
		}
		if s.Title == "" && len(s.Examples) == 0 {
			continue
		}
		words := cmp.Or(s.Title, "text")
		for i, x := range s.Examples {
			if i == 0 {
				words += " such as "
			} else {
				words += ", "
			}
			words += fmt.Sprint(x)
		}
		return words
	}
	return "text of the form " + pattern
}

var patternWords = map[string]string{
	DurationPattern: "a duration such as 250ms, 1m30s or 2d",
	SizePattern:     "a size such as 500kB, 64MiB or 1GiB",
}

func number(r *big.Rat) string {
	if r.IsInt() {
		return r.Num().String()
	}
	f, _ := r.Float64()
	return fmt.Sprint(f)
}

// name is the path of a value for messages: source.config.table, sinks[0].to.
func (c *checker) name(path []string) string {
	var b strings.Builder
	b.WriteString(c.path)
	v := c.top
	for _, p := range path {
		if v != nil && v.kind == list {
			b.WriteString("[" + p + "]")
		} else {
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(p)
		}
		v = v.at([]string{p})
	}
	return b.String()
}

func firstSentence(s string) string {
	if i := strings.Index(s, ". "); i >= 0 {
		return s[:i+1]
	}
	return s
}
