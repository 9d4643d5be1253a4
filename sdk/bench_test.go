package sdk

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// What the benchmarks send: batches of 500 events with payloads of 500 bytes.
const (
	benchBatch   = 500
	benchPayload = 500
)

// benchHost serves a plugin on a unix socket, as a process does, but in this one: the figures have both ends in them.
func benchHost(b *testing.B, p Plugin) *host {
	b.Helper()
	dir, err := os.MkdirTemp("", "sdk")
	require.NoError(b, err)
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	lis, err := net.Listen("unix", path)
	require.NoError(b, err)
	return serveOn(b, p, lis, func(ctx context.Context, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	})
}

func perEvent(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*benchBatch), "ns/event")
}

func benchEvent(payload []byte, i int) Event {
	return Event{
		ID: fmt.Sprintf("%036d", i), Key: []byte(fmt.Sprintf("order-%d", i%1000)), Type: "OrderPlaced", AggregateType: "order",
		ContentType: "application/json", Payload: payload,
	}
}

// BenchmarkSourceStream is events from a source's Add to the host's Recv. One operation is one batch.
func BenchmarkSourceStream(b *testing.B) {
	payload := make([]byte, benchPayload)
	events := make([]Event, benchBatch)
	for i := range events {
		events[i] = benchEvent(payload, i)
	}
	h := benchHost(b, Source(sourceSpec(), func(_ context.Context, _ SourceOpen[empty], s *SourceStream) error {
		if err := s.Opened(SourceOpened{}); err != nil {
			return err
		}
		var batch Batch
		for range b.N {
			for i := range events {
				if err := batch.Add(&events[i]); err != nil {
					return err
				}
			}
			if _, err := s.Send(&batch, nil); err != nil {
				return err
			}
		}
		for range s.Requests() {
		}
		return nil
	}))
	s := h.read(&pluginv1.SourceOpen{})
	var f wire.Frame
	require.NoError(b, s.RecvMsg(&f))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		require.NoError(b, s.RecvMsg(&f))
	}
	perEvent(b)
}

// BenchmarkSinkStream is events from the host's Send to a sink that reads them, and its acks back. One operation is one
// batch.
func BenchmarkSinkStream(b *testing.B) {
	var builder wire.Builder
	payload := make([]byte, benchPayload)
	for i := range benchBatch {
		e := benchEvent(payload, i)
		builder.Add(&e)
	}
	body, ok := wire.BatchOf(joined(builder.Response(1, nil)))
	require.True(b, ok)
	parsed, err := wire.ParseBatch(body)
	require.NoError(b, err)
	events := parsed.Framed(0, parsed.Len())

	h := benchHost(b, StreamSink(emptySpec(), sinkWith(func(s *SinkStream, e *Events) {
		seqs := make([]uint64, 0, benchBatch)
		for i := range e.Items {
			if it := &e.Items[i]; !s.Failed(it) {
				seqs = append(seqs, it.Seq)
			}
		}
		s.Ack(seqs...)
	})))
	const window = 20 // batches
	s := h.write(&pluginv1.SinkOpen{Window: &pluginv1.Window{Events: window * benchBatch, Bytes: 64 << 20}})
	s.opened()
	b.ReportAllocs()
	b.ResetTimer()
	acked, sent := uint64(0), uint64(0)
	for acked < uint64(b.N)*benchBatch {
		for sent < uint64(b.N)*benchBatch && sent-acked < window*benchBatch {
			r := wire.SinkBatch{FirstSeq: sent + 1, Count: benchBatch, Destinations: []string{"d"}, Events: [][]byte{events}}
			require.NoError(b, s.SendMsg(r.Request()))
			sent += benchBatch
		}
		acked = max(acked, s.recv().GetAck().GetThroughSeq())
	}
	perEvent(b)
}

// BenchmarkEnds is the bookkeeping of an acknowledgement alone.
func BenchmarkEnds(b *testing.B) {
	var e ends
	b.ReportAllocs()
	for range b.N {
		e.arrive(benchBatch)
		for seq := e.last - benchBatch + 1; seq <= e.last; seq++ {
			e.ack(seq)
		}
		e.take()
	}
	perEvent(b)
}
