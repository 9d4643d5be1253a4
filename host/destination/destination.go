// Package destination is the `to` of a sink: a text with placeholders that are filled from each event.
package destination

import "github.com/relevo-io/relevo/internal/wire"

// Template is a parsed `to`. It is immutable and may be shared.
type Template struct{}

// SyntaxError is a fault in a `to`, with its place.
type SyntaxError struct {
	Offset  int // bytes into the text
	Message string
	Hint    string // "did you mean {type}?", or ""
}

func (e *SyntaxError) Error() string { return e.Message }

// Parse reads literal text, {id} {key} {type} {aggregate_type} {content_type} {header.NAME}, and {{ and }} for braces.
// The error is a *SyntaxError.
func Parse(text string) (*Template, error) { panic("TODO") }

// Constant returns the destination, if there is no placeholder.
func (t *Template) Constant() (string, bool) { panic("TODO") }

// Rules are what a sink says of its destinations (Destination in the protocol's Describe).
type Rules struct{}

// NewRules compiles forbidden, an RE2 character class or "", to a look-up that costs nothing per ASCII character.
// maxBytes 0 means no limit.
func NewRules(noun, forbidden string, maxBytes int) (*Rules, error) { panic("TODO") }

// EventError says why an event has no destination.
type EventError struct {
	Code    string // destination_empty, destination_invalid
	Message string
}

func (e *EventError) Error() string { return e.Message }

// Append appends the event's destination to dst. A placeholder that is missing or empty in the event is
// destination_empty; one with a forbidden character, a destination that is too long or not UTF-8 destination_invalid.
// The error is an *EventError.
func (t *Template) Append(dst []byte, e *wire.Event, r *Rules) ([]byte, error) { panic("TODO") }
