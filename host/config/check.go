package config

import (
	"errors"
	"fmt"
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
	if ve, isValidation := errors.AsType[*jsonschema.ValidationError](err); isValidation {
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
		c.value(e.InstanceLocation, c.wants(c.root.at(c.top, e.InstanceLocation)))
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
		c.value(path, c.wantsPattern(c.root.at(c.top, path), k.Want))
	case *kind.MinLength:
		if k.Want == 1 && v.from {
			c.file.report(v.place, CodeBadValue, "", "%s is empty after substitution", c.name(path))
			return
		}
		if k.Want == 1 {
			c.file.report(v.owner(), CodeBadValue, "", "%s is empty", c.name(path))
			return
		}
		c.value(path, fmt.Sprintf("at least %d characters", k.Want))
	case *kind.MaxLength:
		c.value(path, fmt.Sprintf("at most %d characters", k.Want))
	case *kind.Minimum:
		c.value(path, "at least "+number(k.Want))
	case *kind.Maximum:
		c.value(path, "at most "+number(k.Want))
	case *kind.ExclusiveMinimum:
		c.value(path, "more than "+number(k.Want))
	case *kind.ExclusiveMaximum:
		c.value(path, "less than "+number(k.Want))
	case *kind.MultipleOf:
		c.value(path, "a multiple of "+number(k.Want))
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
