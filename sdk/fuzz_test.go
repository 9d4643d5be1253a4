package sdk

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// FuzzSinkRequest gives a sink's stream whatever a host could send. It takes it or refuses it; and every number that it
// took is open, or has ended.
func FuzzSinkRequest(f *testing.F) {
	add := func(m *pluginv1.WriteRequest) {
		b, err := proto.Marshal(m)
		require.NoError(f, err)
		f.Add(b)
	}
	add(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Batch{Batch: &pluginv1.Batch{
		FirstSeq: 1, Count: 3, Destinations: []string{"a", "b"}, DestinationIndex: []uint32{0, 1, 0},
		Events: []*pluginv1.Event{
			{Id: "1", Key: []byte("k"), Headers: []*pluginv1.Header{{Name: "h", Value: []byte("v")}}},
			{Id: "2", Headers: []*pluginv1.Header{{Name: "h"}, {Name: "i"}}},
			{Id: "3", Key: []byte("failed"), Payload: []byte("p"), TimeUnixMicro: proto.Int64(1)},
		},
	}}})
	add(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Release{Release: &pluginv1.Release{Keys: [][]byte{[]byte("failed")}}}})
	add(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Window{Window: &pluginv1.Window{Events: 1, Bytes: 1}}})
	add(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Stop{Stop: &pluginv1.Stop{}}})
	f.Fuzz(func(t *testing.T, data []byte) {
		ctx, cancel := context.WithCancelCause(t.Context())
		s := &SinkStream{
			session: session{cancel: cancel, requests: newQueue(Window{Events: 10, Bytes: 1000})},
			untold:  make(chan struct{}, 1),
			keeps:   true,
			failed:  map[string]struct{}{"failed": {}},
		}
		s.failing.Store(1)
		if s.request(ctx, data) != nil {
			require.Zero(t, s.ends.last, "what is refused has not arrived")
			return
		}
		open := uint64(0)
		for seq := uint64(1); seq <= s.ends.last; seq++ {
			if s.ends.open.has(seq) {
				open++
			}
		}
		items := uint64(0)
		for _, q := range s.requests.items {
			if e, ok := q.request.(*Events); ok {
				items += uint64(len(e.Items))
				for i := range e.Items {
					require.True(t, s.ends.open.has(e.Items[i].Seq))
					require.NotEqual(t, "failed", string(e.Items[i].Key))
				}
			}
		}
		require.Equal(t, open, items, "the sink has what is open, and the stream has ended the rest")
	})
}
