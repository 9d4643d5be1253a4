// Package destination is the `to` of a sink: a text with placeholders that are filled from each event.
package destination

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/relevo-io/relevo/internal/wire"
)

// Codes of EventError.
const (
	CodeEmpty   = "destination_empty"
	CodeInvalid = "destination_invalid"
)

// Template is a parsed `to`. It is immutable and may be shared.
type Template struct {
	text  string
	parts []part
}

// part is literal text, or a placeholder.
type part struct {
	field   field
	literal string // of a literal
	header  string // of a {header.NAME}
}

type field uint8

const (
	literal field = iota
	fieldID
	fieldKey
	fieldType
	fieldAggregateType
	fieldContentType
	fieldHeader
)

// EventError says why an event has no destination.
type EventError struct {
	Code    string // destination_empty, destination_invalid
	Message string
}

func (e *EventError) Error() string { return e.Message }

// String returns the text that was parsed.
func (t *Template) String() string { return t.text }

// Constant returns the destination, if there is no placeholder.
func (t *Template) Constant() (string, bool) {
	if len(t.parts) == 1 && t.parts[0].field == literal {
		return t.parts[0].literal, true
	}
	return "", false
}

// MinBytes is the length of the shortest destination that can come out: each placeholder yields at least one byte.
func (t *Template) MinBytes() int {
	n := 0
	for i := range t.parts {
		if t.parts[i].field == literal {
			n += len(t.parts[i].literal)
		} else {
			n++
		}
	}
	return n
}

// Append appends the event's destination to dst. A placeholder that is missing or empty in the event is
// destination_empty; one with a forbidden character, a destination that is too long or not UTF-8 destination_invalid.
// The error is an *EventError, and dst is then returned as it was. Nothing is allocated unless dst must grow.
func (t *Template) Append(dst []byte, e *wire.Event, r *Rules) ([]byte, error) {
	out := dst
	for i := range t.parts {
		p := &t.parts[i]
		from := len(out)
		switch p.field {
		case literal:
			out = append(out, p.literal...)
			continue // what the user wrote is the user's to choose
		case fieldID:
			out = append(out, e.ID...)
		case fieldKey:
			out = append(out, e.Key...)
		case fieldType:
			out = append(out, e.Type...)
		case fieldAggregateType:
			out = append(out, e.AggregateType...)
		case fieldContentType:
			out = append(out, e.ContentType...)
		case fieldHeader:
			out = append(out, header(e, p.header)...)
		}
		if len(out) == from {
			return dst, &EventError{
				Code:    CodeEmpty,
				Message: fmt.Sprintf("the %s %q needs %s, which the event does not have", r.noun, t.text, p.describe()),
			}
		}
		if c, bad := r.find(out[from:]); bad {
			return dst, &EventError{Code: CodeInvalid, Message: r.complaint(p, c)}
		}
	}
	if n := len(out) - len(dst); r.maxBytes > 0 && n > r.maxBytes {
		return dst, &EventError{
			Code:    CodeInvalid,
			Message: fmt.Sprintf("the %s has %d bytes, the limit is %d", r.noun, n, r.maxBytes),
		}
	}
	return out, nil
}

// header is the value of the first header of that name.
func header(e *wire.Event, name string) []byte {
	for i := range e.Headers {
		if e.Headers[i].Name == name {
			return e.Headers[i].Value
		}
	}
	return nil
}

// describe names the placeholder for a person.
func (p *part) describe() string {
	if p.field == fieldHeader {
		return fmt.Sprintf("the header %q", p.header)
	}
	return "its " + strings.ReplaceAll(fieldNames[p.field], "_", " ")
}

// complaint says which character of an event's field may not stand in a destination.
func (r *Rules) complaint(p *part, c rune) string {
	what := p.describe()
	if c == utf8.RuneError {
		return fmt.Sprintf("%s is not UTF-8, or holds a character that may not stand in a %s", what, r.noun)
	}
	return fmt.Sprintf("%s holds %q, which may not stand in a %s", what, c, r.noun)
}
