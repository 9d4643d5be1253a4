package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"
)

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
		if slices.Contains(want, "array") {
			hint = "a list is written [a, b], or with a dash before each item"
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
	c.valueHint(path, what, hint)
}

// notYet lets the owner of the schema name values that a later version will know.
func (c *checker) notYet(path []string, v *value) (code, message, hint string) {
	if c.unknown == nil || v.kind != scalar || v.from {
		return "", "", ""
	}
	return c.unknown(path, "="+v.text)
}

func (c *checker) value(path []string, want string) { c.valueHint(path, want, "") }

// valueHint reports a value that is not what is wanted; a secret one, and one from ${…}, is not shown.
func (c *checker) valueHint(path []string, want, hint string) {
	v := c.top.at(path)
	got := ""
	switch {
	case v.kind != scalar:
	case v.from:
		got = ", which " + v.show() + " is not"
	case !c.root.at(c.top, path).secret():
		got = ", not " + MaskText(v.show())
	}
	c.file.report(v.place, CodeBadValue, hint, "%s must be %s%s", c.name(path), want, got)
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
