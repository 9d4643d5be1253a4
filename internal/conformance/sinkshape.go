package conformance

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// eventShapes sends one event of each shape. A target may be unable to hold some of them (a header, a null): it refuses
// those for good, which is an answer too.
func eventShapes(ctx context.Context, r *attempt) error {
	_, s, err := r.connectedSink(ctx)
	if err != nil {
		return err
	}
	many := make([]*pluginv1.Header, maxHeaders)
	for i := range many {
		many[i] = &pluginv1.Header{Name: fmt.Sprintf("header-%d", i), Value: []byte("value")}
	}
	shapes := []struct {
		name  string
		shape func(e *pluginv1.Event)
	}{
		{"a tombstone", func(e *pluginv1.Event) { e.Payload = nil }},
		{"an empty payload", func(e *pluginv1.Event) { e.Payload = []byte{} }},
		{"no key", func(e *pluginv1.Event) { e.Key = nil }},
		{"no key, again", func(e *pluginv1.Event) { e.Key = nil }},
		{"an empty key", func(e *pluginv1.Event) { e.Key = []byte{} }},
		{"a key in Greek and emoji", func(e *pluginv1.Event) { e.Key = []byte("παραγγελία-🧾-" + r.runID) }},
		{"a key of bytes that are not UTF-8", func(e *pluginv1.Event) { e.Key = append([]byte{0xff, 0x00, 0xfe}, r.runID...) }},
		{"the longest key", func(e *pluginv1.Event) { e.Key = []byte(strings.Repeat("k", maxKey)) }},
		{"the longest id", func(e *pluginv1.Event) { e.Id += strings.Repeat("i", maxID-len(e.GetId())) }},
		{"an id with spaces and accents", func(e *pluginv1.Event) { e.Id = "é à \t" + e.GetId() }},
		{"the longest type", func(e *pluginv1.Event) { e.Type = strings.Repeat("t", maxName) }},
		{"no types", func(e *pluginv1.Event) { e.Type, e.AggregateType, e.ContentType = "", "", "" }},
		{"a time before 1970", func(e *pluginv1.Event) { e.TimeUnixMicro = proto.Int64(-1) }},
		{"128 headers", func(e *pluginv1.Event) { e.Headers = many }},
		{"a header twice", func(e *pluginv1.Event) { e.Headers = append(many[:1:1], many[0]) }},
		{"a header without value", func(e *pluginv1.Event) { e.Headers = []*pluginv1.Header{{Name: "null"}} }},
		{"a header with an empty value", func(e *pluginv1.Event) { e.Headers = []*pluginv1.Header{{Name: "empty", Value: []byte{}}} }},
		{"a header of bytes", func(e *pluginv1.Event) {
			e.Headers = []*pluginv1.Header{{Name: "bytes", Value: []byte{0, '\r', '\n', 0xff}}}
		}},
		{"the largest headers", func(e *pluginv1.Event) {
			e.Headers = []*pluginv1.Header{{Name: "h", Value: bytes.Repeat([]byte("v"), maxHeaderBytes-1)}}
		}},
	}
	r.try("sent %d events: tombstone, no key, keys and headers of bytes, the longest of everything, …", len(shapes))
	var refused []string
	for i, c := range shapes { // one after the other, so that it is plain which one a sink chokes on
		e := r.event(r.key(fmt.Sprintf("shape-%d", i)))
		c.shape(e)
		seq, err := s.send(e)
		if err != nil {
			return fmt.Errorf("an event with %s: %w", c.name, err)
		}
		if err := s.allEnded(ctx); err != nil {
			return fmt.Errorf("an event with %s: %w", c.name, err)
		}
		var n number
		s.look(func() { n = *s.numbers[seq-1] })
		switch {
		case n.standing == acked:
		case n.failure.GetClass() == pluginv1.ErrorClass_ERROR_CLASS_PERMANENT:
			refused = append(refused, fmt.Sprintf("%s (%s)", c.name, n.failure.GetCode()))
		default:
			return fmt.Errorf("an event with %s %s", c.name, n.says())
		}
	}
	r.saw("%d were acked", s.acks())
	if len(refused) > 0 {
		r.saw("refused for good: %s", strings.Join(refused, ", "))
	}
	return s.stop(ctx)
}
