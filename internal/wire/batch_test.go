package wire

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

func TestBatchReadsWhatTheGeneratedCodeWrites(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := anyBatch.Draw(t, "batch")
		raw, err := proto.Marshal(b)
		require.NoError(t, err)
		_, err = ParseBatch(raw)
		require.NoError(t, err)
		agreeBatch(t, raw)
		agreeBatch(t, unpack(b, raw))
		agreeBatch(t, scramble(t, raw))
		agreeBatch(t, raw[:rapid.IntRange(0, len(raw)).Draw(t, "torn_at")])
	})
}

func TestBatchGathersScatteredEvents(t *testing.T) {
	t.Parallel()
	event := func(id string) []byte {
		return protowire.AppendBytes([]byte{eventsTag}, (&Event{ID: id}).Append(nil))
	}
	raw := event("a")
	raw = appendVarint(raw, batchFirstSeq, 7)
	raw = append(raw, event("b")...)
	raw = appendVarint(raw, batchCount, 3)
	raw = append(raw, event("c")...)
	b, err := ParseBatch(raw)
	require.NoError(t, err)
	require.Equal(t, 3, b.Len())
	for i, want := range []string{"a", "b", "c"} {
		id, _, err := IDAndKey(b.Raw(i))
		require.NoError(t, err)
		require.Equal(t, want, string(id))
	}
	require.Equal(t, append(event("b"), event("c")...), b.Framed(1, 3))
	require.Nil(t, b.Framed(2, 2))
	agreeBatch(t, raw)
}

func TestBatchKeepsTheRulesOfAFrame(t *testing.T) {
	t.Parallel()
	one := []*pluginv1.Event{{Id: "1"}}
	two := []*pluginv1.Event{{Id: "1"}, {Id: "2"}}
	for name, c := range map[string]struct {
		b  *pluginv1.Batch
		ok bool
	}{
		"one event":               {&pluginv1.Batch{FirstSeq: 1, Count: 1, Events: one}, true},
		"last number":             {&pluginv1.Batch{FirstSeq: 1<<53 - 1, Count: 1, Events: one}, true},
		"beyond the last number":  {&pluginv1.Batch{FirstSeq: 1<<53 - 1, Count: 2, Events: two}, false},
		"number that wraps round": {&pluginv1.Batch{FirstSeq: math.MaxUint64, Count: 1, Events: one}, false},
		"number 0":                {&pluginv1.Batch{Count: 1, Events: one}, false},
		"empty":                   {&pluginv1.Batch{FirstSeq: 1}, false},
		"count too small":         {&pluginv1.Batch{FirstSeq: 1, Count: 1, Events: two}, false},
		"count too large":         {&pluginv1.Batch{FirstSeq: 1, Count: 3, Events: two}, false},
		"count of 2^32-1":         {&pluginv1.Batch{FirstSeq: 1, Count: math.MaxUint32, Events: one}, false},
		"only rejected rows":      {&pluginv1.Batch{FirstSeq: 1, Count: 1, Rejected: []*pluginv1.Rejected{{}}}, true},
		"rejected beyond the end": {&pluginv1.Batch{FirstSeq: 1, Count: 2, Events: one, Rejected: []*pluginv1.Rejected{{Offset: 2}}}, false},
		"rejected out of order":   {&pluginv1.Batch{FirstSeq: 1, Count: 2, Rejected: []*pluginv1.Rejected{{Offset: 1}, {Offset: 0}}}, false},
		"rejected twice":          {&pluginv1.Batch{FirstSeq: 1, Count: 2, Rejected: []*pluginv1.Rejected{{Offset: 1}, {Offset: 1}}}, false},
		"too few indexes":         {&pluginv1.Batch{FirstSeq: 1, Count: 2, Events: two, DestinationIndex: []uint32{0}}, false},
		"an index per row":        {&pluginv1.Batch{FirstSeq: 1, Count: 2, Events: one, Rejected: []*pluginv1.Rejected{{}}, DestinationIndex: []uint32{0, 0}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, err := proto.Marshal(c.b)
			require.NoError(t, err)
			require.Equal(t, c.ok, keepsFrameRules(c.b))
			_, err = ParseBatch(raw)
			require.Equal(t, c.ok, err == nil, "%v", err)
		})
	}
}

func TestBuilderMakesTheGeneratedBytes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := anyBatch.Draw(t, "batch")
		want.Redelivered, want.Destinations, want.DestinationIndex = false, nil, nil // the host's
		var w Builder
		if rapid.Bool().Draw(t, "grow") {
			w.Grow(1000)
		}
		events, rejected := want.GetEvents(), want.GetRejected()
		for i := range want.GetCount() {
			require.Equal(t, int(i), w.Count())
			if len(rejected) > 0 && rejected[0].GetOffset() == i {
				r := proto.CloneOf(rejected[0])
				r.Offset = 0 // set by the builder
				w.Reject(r)
				rejected = rejected[1:]
				continue
			}
			raw, err := proto.Marshal(events[0])
			require.NoError(t, err)
			if rapid.Bool().Draw(t, "raw") {
				w.AddRaw(raw)
			} else {
				e := &Event{}
				require.NoError(t, e.Parse(raw))
				w.Add(e)
			}
			events = events[1:]
		}
		f := w.Response(want.GetFirstSeq(), want.GetPosition())
		require.Zero(t, w.Count(), "the builder is empty again")
		require.Zero(t, w.Bytes())

		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(&pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Batch{Batch: want}})
		require.NoError(t, err)
		require.True(t, bytes.Equal(raw, bytes.Join(f.Segments, nil)))
		require.Equal(t, len(raw), f.Size())

		body, ok := BatchOf(raw)
		require.True(t, ok)
		agreeBatch(t, body)
	})
}

func TestBuilderCutsAtTheLargestBatch(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var w Builder
		size := rapid.IntRange(1000, 700_000)
		for {
			e := &Event{ID: "1", Payload: make([]byte, size.Draw(t, "size"))}
			if !w.Fits(e.Size()) {
				break
			}
			if rapid.IntRange(0, 4).Draw(t, "reject") == 0 {
				w.Reject(&pluginv1.Rejected{Id: "1", Key: make([]byte, MaxKey), Message: strings.Repeat("é", 30_000)})
				continue
			}
			w.Add(e)
		}
		require.LessOrEqual(t, w.Response(1<<53-1, make([]byte, 1000)).Size(), MaxBatch)
	})
	var w Builder
	require.True(t, w.Fits(MaxEvent), "an empty batch takes any event")
}

func TestBuilderReplacesWhatIsNotUTF8(t *testing.T) {
	t.Parallel()
	var w Builder
	w.Reject(&pluginv1.Rejected{Id: "\xff", Code: "\xfe", Message: "row \xff", Key: []byte{0xff}})
	body, ok := BatchOf(bytes.Join(w.Response(1, nil).Segments, nil))
	require.True(t, ok)
	b, err := ParseBatch(body)
	require.NoError(t, err)
	require.True(t, proto.Equal(&pluginv1.Rejected{Id: "\uFFFD", Code: "\uFFFD", Message: "row \uFFFD", Key: []byte{0xff}}, b.Rejected[0]))
}

func TestSinkBatchMakesTheGeneratedBytes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := anyBatch.Draw(t, "batch")
		want.Position, want.Rejected = nil, nil // the source's
		want.Count = uint32(len(want.GetEvents()))
		if want.GetCount() == 0 {
			t.Skip("a batch of rejected rows")
		}
		source, err := proto.Marshal(&pluginv1.Batch{FirstSeq: 1, Count: want.GetCount(), Events: want.GetEvents()})
		require.NoError(t, err)
		in, err := ParseBatch(source)
		require.NoError(t, err)
		s := &SinkBatch{
			FirstSeq: want.GetFirstSeq(), Count: in.Len(), Redelivered: want.GetRedelivered(),
			Destinations: want.GetDestinations(), DestinationIndex: want.GetDestinationIndex(),
		}
		for i := 0; i < in.Len(); {
			j := rapid.IntRange(i+1, in.Len()).Draw(t, "run")
			s.Events = append(s.Events, in.Framed(i, j))
			i = j
		}
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Batch{Batch: want}})
		require.NoError(t, err)
		require.True(t, bytes.Equal(raw, bytes.Join(s.Request().Segments, nil)))
	})
}

func TestBatchOfTellsBatchesFromTheRest(t *testing.T) {
	t.Parallel()
	ack, err := proto.Marshal(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Stop{Stop: &pluginv1.Stop{}}})
	require.NoError(t, err)
	batch, err := proto.Marshal(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Batch{Batch: &pluginv1.Batch{FirstSeq: 9}}})
	require.NoError(t, err)
	for name, raw := range map[string][]byte{
		"nothing": {}, "stop": ack, "torn": batch[:len(batch)-1], "batch and more": append(bytes.Clone(batch), ack...),
		"a number": {0x10, 0x01},
	} {
		_, ok := BatchOf(raw)
		require.False(t, ok, name)
	}
	body, ok := BatchOf(batch)
	require.True(t, ok)
	require.Equal(t, []byte{0x08, 0x09}, body)
}

func TestBuilderCutsTheTextsOfARejectedRow(t *testing.T) {
	t.Parallel()
	var w Builder
	w.Reject(&pluginv1.Rejected{Id: "x" + strings.Repeat("é", 200), Message: strings.Repeat("m", 1<<20)})
	body, _ := BatchOf(bytes.Join(w.Response(1, nil).Segments, nil))
	b, err := ParseBatch(body)
	require.NoError(t, err)
	require.Equal(t, "x"+strings.Repeat("é", 127), b.Rejected[0].GetId())
	require.Len(t, b.Rejected[0].GetMessage(), 1<<10)
}
