// Package wire is the batch frame of the plugin protocol: writing it, and reading it as views on the received bytes.
//
// It covers exactly the messages of proto/relevo/plugin/v1 that travel once per event (Event, Batch and the one-field
// messages around a Batch); everything else uses the generated code. Both are held against each other by tests and
// fuzzing. Host and SDK share it.
package wire

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
)

// Limits of an event, in bytes and headers, from event.proto.
const (
	MaxEvent       = 16 << 20
	MaxID          = 255
	MaxName        = 255 // type, aggregate_type, content_type
	MaxKey         = 4 << 10
	MaxHeaders     = 128
	MaxHeaderBytes = 64 << 10
)

// Field numbers of Event and Header.
const (
	eventID            protowire.Number = 1
	eventKey           protowire.Number = 2
	eventType          protowire.Number = 3
	eventAggregateType protowire.Number = 4
	eventContentType   protowire.Number = 5
	eventTime          protowire.Number = 6
	eventHeaders       protowire.Number = 7
	eventPayload       protowire.Number = 8

	headerName  protowire.Number = 1
	headerValue protowire.Number = 2
)

// Event is one event, as fields. Read from a batch, its strings and slices are views on the batch's memory: they stay
// valid as long as anything refers to them, and must not be written to.
//
// For Key, Payload and Header.Value nil means absent, and empty but not nil means present without bytes.
type Event struct {
	ID            string
	Key           []byte
	Type          string
	AggregateType string
	ContentType   string
	TimeMicro     int64 // microseconds since 1970; only with HasTime
	HasTime       bool
	Headers       []Header
	Payload       []byte
}

// Header is one name and value beside the payload.
type Header struct {
	Name  string
	Value []byte
}

// Time is when it happened, and whether that is known.
func (e *Event) Time() (time.Time, bool) { return time.UnixMicro(e.TimeMicro).UTC(), e.HasTime }

// SetTime sets when it happened, to the microsecond.
func (e *Event) SetTime(t time.Time) { e.TimeMicro, e.HasTime = t.UnixMicro(), true }

// LimitError says which limit of event.proto an event breaks.
type LimitError struct {
	Code    string // snake_case: id_missing, id_too_long, key_too_long, …
	Message string
}

func (e *LimitError) Error() string { return e.Message }

func limit(code, format string, a ...any) error {
	return &LimitError{Code: code, Message: fmt.Sprintf(format, a...)}
}

// Check reports the first limit that the event breaks, as a *LimitError.
func (e *Event) Check() error {
	switch {
	case e.ID == "":
		return limit("id_missing", "the event has no id")
	case len(e.ID) > MaxID:
		return limit("id_too_long", "the id has %d bytes, the limit is %d", len(e.ID), MaxID)
	case len(e.Key) > MaxKey:
		return limit("key_too_long", "the key has %d bytes, the limit is %d", len(e.Key), MaxKey)
	case len(e.Type) > MaxName:
		return limit("type_too_long", "the type has %d bytes, the limit is %d", len(e.Type), MaxName)
	case len(e.AggregateType) > MaxName:
		return limit("aggregate_type_too_long", "the aggregate type has %d bytes, the limit is %d", len(e.AggregateType), MaxName)
	case len(e.ContentType) > MaxName:
		return limit("content_type_too_long", "the content type has %d bytes, the limit is %d", len(e.ContentType), MaxName)
	case len(e.Headers) > MaxHeaders:
		return limit("too_many_headers", "the event has %d headers, the limit is %d", len(e.Headers), MaxHeaders)
	case !utf8.ValidString(e.ID) || !utf8.ValidString(e.Type) || !utf8.ValidString(e.AggregateType) || !utf8.ValidString(e.ContentType):
		return limit("not_utf8", "the id, type, aggregate type or content type is not UTF-8")
	}
	n := 0
	for i := range e.Headers {
		h := &e.Headers[i]
		if h.Name == "" {
			return limit("header_name_empty", "header %d has no name", i)
		}
		if !utf8.ValidString(h.Name) {
			return limit("not_utf8", "the name of header %d is not UTF-8", i)
		}
		n += len(h.Name) + len(h.Value)
	}
	if n > MaxHeaderBytes {
		return limit("headers_too_large", "the headers have %d bytes, the limit is %d", n, MaxHeaderBytes)
	}
	if n := e.Size(); n > MaxEvent {
		return limit("event_too_large", "the event has %d bytes, the limit is %d", n, MaxEvent)
	}
	return nil
}

// sizeBytes is the size of a bytes field with a one-byte tag.
func sizeBytes(n int) int { return 1 + protowire.SizeBytes(n) }

func sizeOptional(b []byte) int {
	if b == nil {
		return 0
	}
	return sizeBytes(len(b))
}

func sizeString(s string) int {
	if s == "" {
		return 0
	}
	return sizeBytes(len(s))
}

func (h *Header) size() int { return sizeString(h.Name) + sizeOptional(h.Value) }

// Size is the length of the encoded event, without tag and length.
func (e *Event) Size() int {
	n := sizeString(e.ID) + sizeOptional(e.Key) + sizeString(e.Type) + sizeString(e.AggregateType) +
		sizeString(e.ContentType) + sizeOptional(e.Payload)
	if e.HasTime {
		n += 9
	}
	for i := range e.Headers {
		n += sizeBytes(e.Headers[i].size())
	}
	return n
}

func appendString(dst []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return dst
	}
	dst = append(dst, byte(num)<<3|byte(protowire.BytesType))
	dst = protowire.AppendVarint(dst, uint64(len(s)))
	return append(dst, s...)
}

func appendOptional(dst []byte, num protowire.Number, b []byte) []byte {
	if b == nil {
		return dst
	}
	dst = append(dst, byte(num)<<3|byte(protowire.BytesType))
	dst = protowire.AppendVarint(dst, uint64(len(b)))
	return append(dst, b...)
}

// Append appends the encoded event, without tag and length, to dst: the same bytes as the generated code makes.
func (e *Event) Append(dst []byte) []byte {
	dst = appendString(dst, eventID, e.ID)
	dst = appendOptional(dst, eventKey, e.Key)
	dst = appendString(dst, eventType, e.Type)
	dst = appendString(dst, eventAggregateType, e.AggregateType)
	dst = appendString(dst, eventContentType, e.ContentType)
	if e.HasTime {
		dst = append(dst, byte(eventTime)<<3|byte(protowire.Fixed64Type))
		dst = protowire.AppendFixed64(dst, uint64(e.TimeMicro))
	}
	for i := range e.Headers {
		h := &e.Headers[i]
		dst = append(dst, byte(eventHeaders)<<3|byte(protowire.BytesType))
		dst = protowire.AppendVarint(dst, uint64(h.size()))
		dst = appendString(dst, headerName, h.Name)
		dst = appendOptional(dst, headerValue, h.Value)
	}
	return appendOptional(dst, eventPayload, e.Payload)
}

var (
	errTruncated = errors.New("message is truncated or malformed")
	errUTF8      = errors.New("string field is not UTF-8")
	errWireType  = errors.New("field has the wrong wire type")
)

// view makes a string of b without copying. Received batches are never written to.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func viewUTF8(b []byte) (string, error) {
	if !utf8.Valid(b) {
		return "", errUTF8
	}
	return view(b), nil
}

// present makes an empty value distinguishable from an absent one.
func present(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b[:len(b):len(b)]
}

// field reads one field: its number and, for length-delimited ones, its body. rest is what follows.
func field(b []byte) (num protowire.Number, typ protowire.Type, body, rest []byte, err error) {
	var n int
	if len(b) > 1 && b[0] < 0x80 && b[0]&7 == byte(protowire.BytesType) && b[0] >= 8 && b[1] < 0x80 {
		// Almost every field: one byte of tag, one of length.
		end := 2 + int(b[1])
		if end > len(b) {
			return 0, 0, nil, nil, errTruncated
		}
		return protowire.Number(b[0] >> 3), protowire.BytesType, b[2:end], b[end:], nil
	}
	num, typ, n = protowire.ConsumeTag(b)
	if n < 0 || num > protowire.MaxValidNumber {
		return 0, 0, nil, nil, errTruncated
	}
	b = b[n:]
	if typ == protowire.BytesType {
		body, n = protowire.ConsumeBytes(b)
	} else if n = protowire.ConsumeFieldValue(num, typ, b); n >= 0 {
		body = b[:n]
	}
	if n < 0 {
		return 0, 0, nil, nil, errTruncated
	}
	return num, typ, body, b[n:], nil
}

// Parse reads an encoded event into e, which it overwrites; e.Headers keeps its capacity. It accepts what the generated
// code accepts, with one exception: a known field with another wire type is an error, where the generated code would
// skip it as unknown. No writer makes such a field, and an event without the id or the key that it had must not pass.
func (e *Event) Parse(raw []byte) (err error) {
	*e = Event{Headers: e.Headers[:0]}
	for len(raw) > 0 {
		var (
			num  protowire.Number
			typ  protowire.Type
			body []byte
		)
		if num, typ, body, raw, err = field(raw); err != nil {
			return fmt.Errorf("event: %w", err)
		}
		if num < eventID || num > eventPayload {
			continue // a later version's
		}
		if want := protowire.BytesType; typ != want && num != eventTime {
			return fmt.Errorf("event: field %d: %w", num, errWireType)
		}
		switch num {
		case eventID:
			e.ID, err = viewUTF8(body)
		case eventKey:
			e.Key = present(body)
		case eventType:
			e.Type, err = viewUTF8(body)
		case eventAggregateType:
			e.AggregateType, err = viewUTF8(body)
		case eventContentType:
			e.ContentType, err = viewUTF8(body)
		case eventTime:
			if typ != protowire.Fixed64Type {
				return fmt.Errorf("event: field %d: %w", num, errWireType)
			}
			v, _ := protowire.ConsumeFixed64(body)
			e.TimeMicro, e.HasTime = int64(v), true
		case eventHeaders:
			var h Header
			if h, err = parseHeader(body); err == nil {
				e.Headers = append(e.Headers, h)
			}
		case eventPayload:
			e.Payload = present(body)
		}
		if err != nil {
			return fmt.Errorf("event: field %d: %w", num, err)
		}
	}
	return nil
}

func parseHeader(b []byte) (h Header, err error) {
	for len(b) > 0 {
		var (
			num  protowire.Number
			typ  protowire.Type
			body []byte
		)
		if num, typ, body, b, err = field(b); err != nil {
			return h, err
		}
		if num != headerName && num != headerValue {
			continue
		}
		if typ != protowire.BytesType {
			return h, errWireType
		}
		if num == headerName {
			if h.Name, err = viewUTF8(body); err != nil {
				return h, err
			}
		} else {
			h.Value = present(body)
		}
	}
	return h, nil
}

// IDAndKey reads only the id and the key of an encoded event. Events without a key, and with an empty one, have key nil.
func IDAndKey(raw []byte) (id, key []byte, err error) {
	for len(raw) > 0 {
		var (
			num  protowire.Number
			typ  protowire.Type
			body []byte
		)
		if num, typ, body, raw, err = field(raw); err != nil {
			return nil, nil, fmt.Errorf("event: %w", err)
		}
		if typ != protowire.BytesType {
			continue
		}
		switch num {
		case eventID:
			id = body
		case eventKey:
			if key = nil; len(body) > 0 {
				key = present(body)
			}
		}
	}
	return id, key, nil
}
