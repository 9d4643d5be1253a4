package sdk

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

type empty struct{}

// ackAll acks what arrives.
func ackAll(_ context.Context, _ SinkOpen[empty], s *SinkStream) error {
	if err := s.Opened(SinkOpened{}); err != nil {
		return err
	}
	for r := range s.Requests() {
		if e, ok := r.(*Events); ok {
			for i := range e.Items {
				s.Ack(e.Items[i].Seq)
			}
		}
	}
	return nil
}

func TestSinkAcksThenStops(t *testing.T) {
	t.Parallel()
	h := newHost(t, StreamSink(Spec[empty]{Name: "test"}, ackAll))
	s := h.write(&pluginv1.SinkOpen{})
	require.False(t, s.opened().GetKeepsOrder())
	s.batch("a", "b", "")
	s.batch("c")
	s.stop()
	l := newLedger(t)
	s.untilStopped(l)
	require.Len(t, l.ends, 4)
	for seq, o := range l.ends {
		require.Equal(t, "acked", o.what, "number %d", seq)
	}
}
