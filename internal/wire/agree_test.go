package wire

import (
	"bytes"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// testingT is what a property, a fuzz target and a plain test have in common.
type testingT interface {
	require.TestingT
	Helper()
}

// Wire types of the fields that we know. The generated code skips a known field that comes with another wire type, as
// if it were unknown; this package refuses it, because no writer makes one and the host would relay an event whose id
// or key it can't see.
var (
	eventTypes = map[protowire.Number]protowire.Type{
		eventID: protowire.BytesType, eventKey: protowire.BytesType, eventType: protowire.BytesType,
		eventAggregateType: protowire.BytesType, eventContentType: protowire.BytesType, eventTime: protowire.Fixed64Type,
		eventHeaders: protowire.BytesType, eventPayload: protowire.BytesType,
	}
	headerTypes = map[protowire.Number]protowire.Type{headerName: protowire.BytesType, headerValue: protowire.BytesType}
	batchTypes  = map[protowire.Number]protowire.Type{
		batchFirstSeq: protowire.VarintType, batchCount: protowire.VarintType, batchPosition: protowire.BytesType,
		batchRedelivered: protowire.VarintType, batchRejected: protowire.BytesType, batchDestination: protowire.BytesType,
		batchEvents: protowire.BytesType,
	}
)

// hasWrongType reports whether a known field of the well-formed message comes with another wire type.
func hasWrongType(raw []byte, types map[protowire.Number]protowire.Type) bool {
	for len(raw) > 0 {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return false
		}
		m := protowire.ConsumeFieldValue(num, typ, raw[n:])
		if m < 0 {
			return false
		}
		if want, ok := types[num]; ok && typ != want {
			return true
		}
		if num == batchDestIndex && len(types) == len(batchTypes) && typ != protowire.BytesType && typ != protowire.VarintType {
			return true
		}
		raw = raw[n+m:]
	}
	return false
}

// eventHasWrongType looks into headers too.
func eventHasWrongType(raw []byte) bool {
	if hasWrongType(raw, eventTypes) {
		return true
	}
	for len(raw) > 0 {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return false
		}
		m := protowire.ConsumeFieldValue(num, typ, raw[n:])
		if m < 0 {
			return false
		}
		if num == eventHeaders && typ == protowire.BytesType {
			if body, _ := protowire.ConsumeBytes(raw[n:]); hasWrongType(body, headerTypes) {
				return true
			}
		}
		raw = raw[n+m:]
	}
	return false
}

// agreeEvent demands that Parse and the generated code say the same about raw.
func agreeEvent(t testingT, raw []byte) {
	t.Helper()
	want := &pluginv1.Event{}
	wantErr := proto.Unmarshal(raw, want)
	got := Event{ID: "left over", Key: []byte("left over"), Headers: []Header{{Name: "left over"}}, HasTime: true}
	gotErr := got.Parse(raw)
	switch {
	case wantErr != nil:
		require.Error(t, gotErr, "the generated code says: %v", wantErr)
		return
	case eventHasWrongType(raw):
		require.ErrorIs(t, gotErr, errWireType)
		return
	}
	require.NoError(t, gotErr)
	requireSameEvent(t, want, &got)

	id, key, err := IDAndKey(raw)
	require.NoError(t, err)
	require.Equal(t, want.GetId(), string(id))
	require.Equal(t, len(want.GetKey()) == 0, key == nil)
	require.True(t, bytes.Equal(want.GetKey(), key))

	// What we write of it is what the generated code writes of it.
	want.ProtoReflect().SetUnknown(nil)
	for _, h := range want.GetHeaders() {
		h.ProtoReflect().SetUnknown(nil)
	}
	canonical, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
	require.NoError(t, err)
	require.True(t, bytes.Equal(canonical, got.Append(nil)), "want %x\ngot  %x", canonical, got.Append(nil))
	require.Equal(t, len(canonical), got.Size())
}

func requireSameEvent(t testingT, want *pluginv1.Event, got *Event) {
	t.Helper()
	require.Equal(t, want.GetId(), got.ID)
	requireSameBytes(t, want.Key, got.Key)
	require.Equal(t, want.GetType(), got.Type)
	require.Equal(t, want.GetAggregateType(), got.AggregateType)
	require.Equal(t, want.GetContentType(), got.ContentType)
	require.Equal(t, want.TimeUnixMicro != nil, got.HasTime)
	require.Equal(t, want.GetTimeUnixMicro(), got.TimeMicro)
	require.Len(t, got.Headers, len(want.GetHeaders()))
	for i, h := range want.GetHeaders() {
		require.Equal(t, h.GetName(), got.Headers[i].Name)
		requireSameBytes(t, h.Value, got.Headers[i].Value)
	}
	requireSameBytes(t, want.Payload, got.Payload)
}

// requireSameBytes tells absent from empty.
func requireSameBytes(t testingT, want, got []byte) {
	t.Helper()
	require.Equal(t, want == nil, got == nil, "absent")
	require.True(t, bytes.Equal(want, got), "want %x\ngot  %x", want, got)
}

// agreeBatch demands that ParseBatch and the generated code say the same about raw, but for the rules of a frame.
func agreeBatch(t testingT, raw []byte) {
	t.Helper()
	keep := bytes.Clone(raw)
	want := &pluginv1.Batch{}
	wantErr := proto.Unmarshal(raw, want)
	got, gotErr := ParseBatch(raw)
	require.True(t, bytes.Equal(keep, raw), "ParseBatch wrote to what it was given")
	switch {
	case wantErr != nil:
		if gotErr != nil {
			return
		}
		// ParseBatch leaves the events alone: one of them must be what the generated code stumbled over.
		for i := range got.Len() {
			if (&Event{}).Parse(got.Raw(i)) != nil {
				return
			}
		}
		require.Fail(t, "accepted", "the generated code says: %v", wantErr)
	case hasWrongType(raw, batchTypes):
		require.ErrorIs(t, gotErr, errWireType)
	case !keepsFrameRules(want):
		require.Error(t, gotErr)
	default:
		require.NoError(t, gotErr)
		requireSameBatch(t, want, got)
	}
}

// keepsFrameRules says of a decoded batch what ParseBatch must check: I6, numbers below 2^53, places of rejected rows,
// one destination index per event or none.
func keepsFrameRules(b *pluginv1.Batch) bool {
	const most = 1 << 53
	n := uint64(b.GetCount())
	if n == 0 || n != uint64(len(b.GetEvents())+len(b.GetRejected())) {
		return false
	}
	if b.GetFirstSeq() == 0 || b.GetFirstSeq() > most || b.GetFirstSeq()+n-1 >= most {
		return false
	}
	if k := len(b.GetDestinationIndex()); k > 0 && k != len(b.GetEvents()) {
		return false
	}
	next := uint64(0)
	for _, r := range b.GetRejected() {
		if uint64(r.GetOffset()) < next || uint64(r.GetOffset()) >= n {
			return false
		}
		next = uint64(r.GetOffset()) + 1
	}
	return true
}

func requireSameBatch(t testingT, want *pluginv1.Batch, got *Batch) {
	t.Helper()
	require.Equal(t, want.GetFirstSeq(), got.FirstSeq)
	require.Equal(t, int(want.GetCount()), got.Count)
	require.True(t, bytes.Equal(want.GetPosition(), got.Position))
	require.Equal(t, want.GetRedelivered(), got.Redelivered)
	require.Len(t, got.Rejected, len(want.GetRejected()))
	for i, r := range want.GetRejected() {
		require.True(t, proto.Equal(r, got.Rejected[i]))
	}
	require.Equal(t, len(want.GetDestinations()), len(got.Destinations))
	for i, d := range want.GetDestinations() {
		require.Equal(t, d, got.Destinations[i])
	}
	require.Equal(t, len(want.GetDestinationIndex()), len(got.DestinationIndex))
	require.Equal(t, len(want.GetEvents()), got.Len())
	total := 0
	for i, w := range want.GetEvents() {
		e := &Event{}
		if err := e.Parse(got.Raw(i)); err != nil {
			require.True(t, eventHasWrongType(got.Raw(i)), "event %d: %v", i, err)
		} else {
			requireSameEvent(t, w, e)
		}
		k := uint32(0)
		if len(want.GetDestinationIndex()) > 0 {
			k = want.GetDestinationIndex()[i]
		}
		d, ok := got.Destination(i)
		require.Equal(t, uint64(k) < uint64(len(want.GetDestinations())), ok)
		if ok {
			require.Equal(t, want.GetDestinations()[k], d)
		}
		total += got.Size(i)
	}
	require.Equal(t, got.Bytes(), total)

	// A run of framed events is itself the events field of a Batch.
	half := got.Len() / 2
	framed := append(bytes.Clone(got.Framed(0, half)), got.Framed(half, got.Len())...)
	again := &pluginv1.Batch{}
	require.NoError(t, proto.Unmarshal(framed, again))
	require.True(t, proto.Equal(&pluginv1.Batch{Events: want.GetEvents()}, again))
}
