package destination

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// fieldNames are the placeholders by field; {header.NAME} stands beside them.
var fieldNames = [...]string{
	fieldID:            "id",
	fieldKey:           "key",
	fieldType:          "type",
	fieldAggregateType: "aggregate_type",
	fieldContentType:   "content_type",
}

const headerPrefix = "header."

// SyntaxError is a fault in a `to`, with its place.
type SyntaxError struct {
	Offset  int // bytes into the text
	Message string
	Hint    string // "did you mean {type}?", or ""
}

func (e *SyntaxError) Error() string { return e.Message }

// Parse reads literal text, {id} {key} {type} {aggregate_type} {content_type} {header.NAME}, and {{ and }} for braces.
// The error is a *SyntaxError.
func Parse(text string) (*Template, error) {
	if text == "" {
		return nil, &SyntaxError{Message: "the destination is empty"}
	}
	if !utf8.ValidString(text) {
		return nil, &SyntaxError{Message: "the destination is not UTF-8"}
	}
	t := &Template{text: text}
	var lit strings.Builder
	flush := func() {
		if lit.Len() > 0 {
			t.parts = append(t.parts, part{literal: lit.String()})
			lit.Reset()
		}
	}
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case (c == '{' || c == '}') && strings.HasPrefix(text[i+1:], text[i:i+1]):
			lit.WriteByte(c)
			i += 2
		case c == '}':
			return nil, &SyntaxError{Offset: i, Message: `"}" without "{"`, Hint: `write "}}" for a brace that stands for itself`}
		case c == '{':
			n := strings.IndexAny(text[i+1:], "{}")
			if n < 0 || text[i+1+n] == '{' {
				return nil, &SyntaxError{Offset: i, Message: `"{" is not closed`, Hint: `write "{{" for a brace that stands for itself`}
			}
			p, err := placeholder(text[i+1:i+1+n], i)
			if err != nil {
				return nil, err
			}
			flush()
			t.parts = append(t.parts, p)
			i += n + 2
		default:
			lit.WriteByte(c)
			i++
		}
	}
	flush()
	return t, nil
}

// placeholder reads what stands between braces; offset is the place of the opening one.
func placeholder(name string, offset int) (part, error) {
	if h, ok := strings.CutPrefix(name, headerPrefix); ok {
		if h == "" {
			return part{}, &SyntaxError{Offset: offset, Message: "{header.} names no header", Hint: "write {header.NAME}"}
		}
		return part{field: fieldHeader, header: h}, nil
	}
	for f, n := range fieldNames {
		if n != "" && n == name {
			return part{field: field(f)}, nil
		}
	}
	return part{}, &SyntaxError{
		Offset:  offset,
		Message: fmt.Sprintf("{%s} is not a field of an event", name),
		Hint:    hint(name),
	}
}

// otherNames are words that people use for a field, in lower case without dashes and underscores.
var otherNames = map[string]string{
	"eventid": "id", "messageid": "id", "uuid": "id",
	"aggregateid": "key", "aggregate": "aggregate_type", "partitionkey": "key",
	"eventtype": "type", "name": "type", "event": "type",
	"aggregatetype": "aggregate_type", "entity": "aggregate_type",
	"contenttype": "content_type", "mimetype": "content_type",
}

func hint(name string) string {
	plain := strings.NewReplacer("_", "", "-", "", " ", "", ".", "").Replace(strings.ToLower(name))
	if n, ok := otherNames[plain]; ok {
		return fmt.Sprintf("did you mean {%s}?", n)
	}
	for _, n := range fieldNames {
		if n != "" && plain == strings.ReplaceAll(n, "_", "") {
			return fmt.Sprintf("did you mean {%s}?", n)
		}
	}
	for _, p := range []string{"headers.", "header_", "header-", "header:", "event."} {
		if rest, ok := strings.CutPrefix(strings.ToLower(name), p); ok && rest != "" {
			if p == "event." {
				if _, err := placeholder(rest, 0); err == nil {
					return fmt.Sprintf("did you mean {%s}?", rest)
				}
				continue
			}
			return fmt.Sprintf("did you mean {header.%s}?", name[len(p):])
		}
	}
	for _, n := range fieldNames {
		if n != "" && oneEdit(plain, strings.ReplaceAll(n, "_", "")) {
			return fmt.Sprintf("did you mean {%s}?", n)
		}
	}
	return "the fields are {id}, {key}, {type}, {aggregate_type}, {content_type} and {header.NAME}"
}

// oneEdit reports whether one insertion, deletion, replacement or swap of neighbours makes b of a.
func oneEdit(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b)-len(a) > 1 {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	if len(a) < len(b) {
		return a[i:] == b[i+1:]
	}
	if i == len(a) || a[i+1:] == b[i+1:] {
		return true
	}
	return i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}
