package wire

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// maybeBytes draws absent, empty, and anything up to n bytes.
func maybeBytes(n int) *rapid.Generator[[]byte] {
	return rapid.Custom(func(t *rapid.T) []byte {
		if rapid.Bool().Draw(t, "absent") {
			return nil
		}
		return append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, n).Draw(t, "bytes")...)
	})
}

// anyText draws strings on both sides of the one-byte length (127 bytes), and of every plane of Unicode.
func anyText() *rapid.Generator[string] { return rapid.StringN(0, 90, 255) }

var anyEvent = rapid.Custom(func(t *rapid.T) *pluginv1.Event {
	e := &pluginv1.Event{
		Id:            anyText().Draw(t, "id"),
		Key:           maybeBytes(300).Draw(t, "key"),
		Type:          anyText().Draw(t, "type"),
		AggregateType: anyText().Draw(t, "aggregate_type"),
		ContentType:   anyText().Draw(t, "content_type"),
		Payload:       maybeBytes(40).Draw(t, "payload"),
	}
	if rapid.Bool().Draw(t, "has_time") {
		e.TimeUnixMicro = proto.Int64(rapid.Int64().Draw(t, "time"))
	}
	for range rapid.IntRange(0, 4).Draw(t, "headers") {
		e.Headers = append(e.Headers, &pluginv1.Header{Name: anyText().Draw(t, "name"), Value: maybeBytes(200).Draw(t, "value")})
	}
	if rapid.IntRange(0, 20).Draw(t, "large") == 0 { // a length of three bytes
		e.Payload = make([]byte, rapid.IntRange(16_000, 17_000).Draw(t, "payload_size"))
	}
	return e
})

// anyBatch draws batches that keep the rules of a frame.
var anyBatch = rapid.Custom(func(t *rapid.T) *pluginv1.Batch {
	b := &pluginv1.Batch{
		FirstSeq:    rapid.Uint64Range(1, 1<<53-64).Draw(t, "first_seq"),
		Position:    maybeBytes(20).Draw(t, "position"),
		Redelivered: rapid.Bool().Draw(t, "redelivered"),
	}
	n := rapid.IntRange(1, 12).Draw(t, "count")
	b.Count = uint32(n)
	for i := range n {
		if rapid.IntRange(0, 3).Draw(t, "reject") == 0 {
			b.Rejected = append(b.Rejected, &pluginv1.Rejected{
				Offset: uint32(i), Id: anyText().Draw(t, "id"), Key: maybeBytes(9).Draw(t, "key"), Code: "id_null", Message: anyText().Draw(t, "message"),
			})
		} else {
			b.Events = append(b.Events, anyEvent.Draw(t, "event"))
		}
	}
	b.Destinations = rapid.SliceOfN(anyText(), 0, 3).Draw(t, "destinations")
	if rapid.Bool().Draw(t, "indexed") {
		for range b.GetEvents() {
			b.DestinationIndex = append(b.DestinationIndex, rapid.Uint32Range(0, 300).Draw(t, "index"))
		}
	}
	return b
})

// scramble draws another encoding of a message, one that only the specification of protobuf promises can be read:
// fields in another order, fields twice, fields of later versions, lengths longer than need be, packed numbers one by one.
func scramble(t *rapid.T, raw []byte) []byte {
	var parts [][]byte
	for len(raw) > 0 {
		num, typ, n := protowire.ConsumeTag(raw)
		m := protowire.ConsumeFieldValue(num, typ, raw[n:])
		part := raw[:n+m]
		if typ == protowire.BytesType {
			body, _ := protowire.ConsumeBytes(raw[n:])
			switch rapid.IntRange(0, 5).Draw(t, "spelling") {
			case 0: // a tag of two bytes
				part = protowire.AppendBytes([]byte{raw[0] | 0x80, 0}, body)
			case 1: // a length one byte too long
				part = append(padded(append([]byte{}, raw[:n]...), uint64(len(body))), body...)
			}
		}
		parts = append(parts, part)
		if rapid.IntRange(0, 9).Draw(t, "twice") == 0 {
			parts = append(parts, part)
		}
		raw = raw[n+m:]
	}
	for range rapid.IntRange(0, 3).Draw(t, "later_fields") {
		num := rapid.SampledFrom([]protowire.Number{9, 14, 16, 1000, protowire.MaxValidNumber}).Draw(t, "number")
		typ := rapid.SampledFrom([]protowire.Type{
			protowire.VarintType, protowire.Fixed32Type, protowire.Fixed64Type, protowire.BytesType, protowire.StartGroupType,
		}).Draw(t, "wire_type")
		f := protowire.AppendTag(nil, num, typ)
		switch typ {
		case protowire.VarintType:
			f = protowire.AppendVarint(f, 1<<40)
		case protowire.Fixed32Type:
			f = protowire.AppendFixed32(f, 7)
		case protowire.Fixed64Type:
			f = protowire.AppendFixed64(f, 7)
		case protowire.BytesType:
			f = protowire.AppendString(f, "\xff later")
		case protowire.StartGroupType:
			f = append(f, 0x0a, 0x01, 'x') // field 1 of the group
			f = protowire.AppendTag(f, num, protowire.EndGroupType)
		}
		parts = append(parts, f)
	}
	if rapid.Bool().Draw(t, "shuffle") && len(parts) > 1 {
		parts = rapid.Permutation(parts).Draw(t, "order")
	}
	var out []byte
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// padded appends v as a varint with one byte more than it needs.
func padded(dst []byte, v uint64) []byte {
	dst = protowire.AppendVarint(dst, v)
	dst[len(dst)-1] |= 0x80
	return append(dst, 0)
}

// unpack writes the destination indexes one by one, as an old writer may.
func unpack(b *pluginv1.Batch, raw []byte) []byte {
	var out []byte
	for len(raw) > 0 {
		num, typ, n := protowire.ConsumeTag(raw)
		m := protowire.ConsumeFieldValue(num, typ, raw[n:])
		if num != batchDestIndex {
			out = append(out, raw[:n+m]...)
		}
		raw = raw[n+m:]
	}
	for _, i := range b.GetDestinationIndex() {
		out = protowire.AppendTag(out, batchDestIndex, protowire.VarintType)
		out = protowire.AppendVarint(out, uint64(i))
	}
	return out
}
