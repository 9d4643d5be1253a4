package wire

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

func TestEventReadsWhatTheGeneratedCodeWrites(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		raw, err := proto.Marshal(anyEvent.Draw(t, "event"))
		require.NoError(t, err)
		agreeEvent(t, raw)
		agreeEvent(t, scramble(t, raw))
	})
}

func TestEventReadsNothingOfATornMessage(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		raw, err := proto.Marshal(anyEvent.Draw(t, "event"))
		require.NoError(t, err)
		agreeEvent(t, raw[:rapid.IntRange(0, len(raw)).Draw(t, "torn_at")])
	})
}

func TestEventKeepsAbsentAndEmptyApart(t *testing.T) {
	t.Parallel()
	for _, e := range []*pluginv1.Event{
		{Id: "tombstone"},
		{Id: "empty", Payload: []byte{}, Key: []byte{}},
		{Id: "headers", Headers: []*pluginv1.Header{{Name: "null"}, {Name: "empty", Value: []byte{}}, {Name: "null"}}},
		{Id: "epoch", TimeUnixMicro: proto.Int64(0)},
		{},
	} {
		raw, err := proto.Marshal(e)
		require.NoError(t, err)
		agreeEvent(t, raw)
	}
}

func TestEventLastOfARepeatedFieldWins(t *testing.T) {
	t.Parallel()
	var raw []byte
	raw = appendString(raw, eventID, "first")
	raw = appendOptional(raw, eventKey, []byte("first"))
	raw = appendOptional(raw, eventKey, []byte{})
	raw = appendString(raw, eventID, "last")
	e := &Event{}
	require.NoError(t, e.Parse(raw))
	require.Equal(t, "last", e.ID)
	require.NotNil(t, e.Key)
	require.Empty(t, e.Key)
	agreeEvent(t, raw)
}

func TestEventRefusesAKnownFieldWithAnotherWireType(t *testing.T) {
	t.Parallel()
	for num, want := range eventTypes {
		for _, typ := range []protowire.Type{protowire.VarintType, protowire.Fixed32Type, protowire.Fixed64Type, protowire.BytesType} {
			if typ == want {
				continue
			}
			raw := protowire.AppendTag(nil, num, typ)
			raw = append(raw, make([]byte, map[protowire.Type]int{0: 1, 1: 8, 2: 1, 5: 4}[typ])...)
			require.ErrorIs(t, (&Event{}).Parse(raw), errWireType, "field %d", num)
			agreeEvent(t, raw)
		}
	}
}

func TestEventViewsCannotGrowIntoTheirNeighbours(t *testing.T) {
	t.Parallel()
	raw := (&Event{ID: "1", Key: []byte("key"), Payload: []byte("payload"), Headers: []Header{{Name: "n", Value: []byte("value")}}}).Append(nil)
	keep := string(raw)
	e := &Event{}
	require.NoError(t, e.Parse(raw))
	_, key, err := IDAndKey(raw)
	require.NoError(t, err)
	for _, b := range [][]byte{e.Key, e.Payload, e.Headers[0].Value, key} {
		_ = append(b, "overwritten"...)
	}
	require.Equal(t, keep, string(raw))
}

func TestEventTimeKeepsMicroseconds(t *testing.T) {
	t.Parallel()
	at := time.Date(1969, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
	e := &Event{}
	_, ok := e.Time()
	require.False(t, ok)
	e.SetTime(at)
	got := &Event{}
	require.NoError(t, got.Parse(e.Append(nil)))
	back, ok := got.Time()
	require.True(t, ok)
	require.Equal(t, at, back)
}

func TestEventCheckNamesTheLimit(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", MaxName+1)
	good := func() *Event { return &Event{ID: "1"} }
	headers := func(n int, h Header) []Header {
		hs := make([]Header, n)
		for i := range hs {
			hs[i] = h
		}
		return hs
	}
	for name, c := range map[string]struct {
		change func(*Event)
		code   string // "": within the limits
	}{
		"smallest":            {func(*Event) {}, ""},
		"no id":               {func(e *Event) { e.ID = "" }, "id_missing"},
		"longest id":          {func(e *Event) { e.ID = long[1:] }, ""},
		"long id":             {func(e *Event) { e.ID = long }, "id_too_long"},
		"longest key":         {func(e *Event) { e.Key = make([]byte, MaxKey) }, ""},
		"long key":            {func(e *Event) { e.Key = make([]byte, MaxKey+1) }, "key_too_long"},
		"key is any bytes":    {func(e *Event) { e.Key = []byte{0xff, 0} }, ""},
		"long type":           {func(e *Event) { e.Type = long }, "type_too_long"},
		"long aggregate type": {func(e *Event) { e.AggregateType = long }, "aggregate_type_too_long"},
		"long content type":   {func(e *Event) { e.ContentType = long }, "content_type_too_long"},
		"id not UTF-8":        {func(e *Event) { e.ID = "\xff" }, "not_utf8"},
		"type not UTF-8":      {func(e *Event) { e.Type = "\xff" }, "not_utf8"},
		"header not UTF-8":    {func(e *Event) { e.Headers = []Header{{Name: "\xff"}} }, "not_utf8"},
		"header without name": {func(e *Event) { e.Headers = []Header{{Value: []byte("v")}} }, "header_name_empty"},
		"most headers":        {func(e *Event) { e.Headers = headers(MaxHeaders, Header{Name: "n"}) }, ""},
		"too many headers":    {func(e *Event) { e.Headers = headers(MaxHeaders+1, Header{Name: "n"}) }, "too_many_headers"},
		"largest headers":     {func(e *Event) { e.Headers = headers(1, Header{Name: "n", Value: make([]byte, MaxHeaderBytes-1)}) }, ""},
		"large headers":       {func(e *Event) { e.Headers = headers(1, Header{Name: "n", Value: make([]byte, MaxHeaderBytes)}) }, "headers_too_large"},
		"largest":             {func(e *Event) { e.Payload = make([]byte, MaxEvent-3-5) }, ""}, // id: 3, tag and length of the payload: 5
		"large":               {func(e *Event) { e.Payload = make([]byte, MaxEvent-3-4) }, "event_too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := good()
			c.change(e)
			err := e.Check()
			if c.code == "" {
				require.NoError(t, err)
				return
			}
			var le *LimitError
			require.ErrorAs(t, err, &le)
			require.Equal(t, c.code, le.Code)
		})
	}
}
