package wire

import (
	"testing"

	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

var fuzzEvents = []*pluginv1.Event{
	{Id: "1"},
	{
		Id: "018f", Key: []byte("order-1"), Type: "OrderPlaced", AggregateType: "order", ContentType: "application/json",
		TimeUnixMicro: proto.Int64(1), Headers: []*pluginv1.Header{{Name: "a", Value: []byte("b")}, {Name: "null"}}, Payload: []byte("{}"),
	},
	{Id: "2", Key: []byte{}, Payload: []byte{}},
}

// FuzzEvent: whatever the generated code accepts is accepted with the same meaning, and nothing else.
func FuzzEvent(f *testing.F) {
	for _, e := range fuzzEvents {
		raw, err := proto.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte{0x08, 0x01})                               // id as a number
	f.Add([]byte{0x8a, 0x00, 0x81, 0x00, 'x'})              // overlong tag and length
	f.Add([]byte{0x4b, 0x0a, 0x01, 'x', 0x4c})              // a group that we don't know
	f.Add([]byte{0x82, 0x80, 0x80, 0x80, 0x10, 0x01, 0x00}) // a field number that can't be
	f.Fuzz(func(t *testing.T, raw []byte) { agreeEvent(t, raw) })
}

// FuzzBatch: the same for batches, but for the rules of a frame.
func FuzzBatch(f *testing.F) {
	for _, b := range []*pluginv1.Batch{
		{FirstSeq: 1, Count: 3, Events: fuzzEvents},
		{FirstSeq: 1 << 40, Count: 4, Position: []byte("0/16B3748"), Rejected: []*pluginv1.Rejected{{Offset: 3, Id: "(0,1)", Code: "id_null"}}, Events: fuzzEvents},
		{FirstSeq: 5, Count: 3, Redelivered: true, Destinations: []string{"a", "b"}, DestinationIndex: []uint32{0, 1, 0}, Events: fuzzEvents},
	} {
		raw, err := proto.Marshal(b)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
		f.Add(unpack(b, raw))
		f.Add(append(raw, raw...))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		agreeBatch(t, raw)
		BatchOf(raw)
	})
}
