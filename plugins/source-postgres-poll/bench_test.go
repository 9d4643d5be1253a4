package main

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// fill writes rows with payloads of about 500 bytes.
func (d *db) fill(rows int) {
	d.t.Helper()
	d.exec(`INSERT INTO outbox (aggregate_id, type, payload)
		SELECT i % 1000, 'OrderPlaced', jsonb_build_object('n', i, 'text', repeat(md5(i::text), 14)) FROM generate_series(1, $1::int) i`, rows)
	d.exec(`VACUUM ANALYZE outbox`)
}

// BenchmarkDrain reports rows/s of the relay with a host that passes batches on and acks at once, of the bare loop (read
// 1000 rows in order, delete them by id, again) on the same rows, and the ratio of the medians. The relay works with two
// sessions of the server side by side, so it needs cores of its own to show.
func BenchmarkDrain(b *testing.B) {
	const rows = 30_000
	var bare, relay []float64
	for b.Loop() {
		d := newDB(b, seqDDL)
		for range 3 {
			d.fill(rows)
			bare = append(bare, bareDrain(b, d))
			d.fill(rows)
			relay = append(relay, relayDrain(b, d, rows))
			require.Zero(b, d.int(`SELECT count(*) FROM outbox`))
		}
	}
	slices.Sort(bare)
	slices.Sort(relay)
	x, y := bare[len(bare)/2], relay[len(relay)/2]
	b.ReportMetric(x, "bare-rows/s")
	b.ReportMetric(y, "relay-rows/s")
	b.ReportMetric(y/x, "relay/bare")
}

// relayDrain is a host without sinks: it reads envelopes and acks.
func relayDrain(b *testing.B, d *db, rows int) float64 {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := serve(b).NewStream(ctx, &pluginv1.SourceService_ServiceDesc.Streams[0], pluginv1.SourceService_Read_FullMethodName,
		grpc.ForceCodecV2(wire.Codec{}))
	require.NoError(b, err)
	conf, err := json.Marshal(map[string]any{"dsn": d.dsn})
	require.NoError(b, err)
	send := func(m *pluginv1.ReadRequest) { require.NoError(b, stream.SendMsg(m)) }
	send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Open{Open: &pluginv1.SourceOpen{
		Config: conf, Instance: &pluginv1.Instance{Pipeline: "p", Name: "source"},
		Window: &pluginv1.Window{Events: 10_000, Bytes: 64 << 20}, DrainTimeout: durationpb.New(patience),
	}}})
	var begun time.Time
	for n := 0; ; {
		var f wire.Frame
		require.NoError(b, stream.RecvMsg(&f))
		data, ok := wire.BatchOf(f.Data)
		if !ok {
			var m pluginv1.ReadResponse
			require.NoError(b, proto.Unmarshal(f.Data, &m))
			if m.GetOpened() != nil {
				begun = time.Now()
			}
			if m.GetStopped() != nil {
				return float64(rows) / time.Since(begun).Seconds()
			}
			continue
		}
		batch, err := wire.ParseBatch(data)
		require.NoError(b, err)
		send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Ack{Ack: &pluginv1.SourceAck{
			Ranges: []*pluginv1.SeqRange{{First: batch.FirstSeq, Last: batch.FirstSeq + uint64(batch.Count) - 1}},
		}}})
		if n += batch.Count; n == rows {
			send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Stop{Stop: &pluginv1.Stop{}}})
		}
	}
}

// bareDrain is the limit: no order of keys to keep, no window, nobody to send to.
func bareDrain(b *testing.B, d *db) float64 {
	b.Helper()
	ctx := context.Background()
	c := d.session()
	do(b, c, `SET synchronous_commit = local`)
	do(b, c, `SET enable_seqscan = off`)
	start, n := time.Now(), 0
	for {
		rows, err := c.Query(ctx, `SELECT id, aggregate_id, aggregate_type, type, payload, headers, created_at, seq FROM outbox ORDER BY seq LIMIT 1000`,
			pgx.QueryResultFormats{1, 1, 0, 0, 0, 0, 1, 1})
		require.NoError(b, err)
		var ids [][16]byte
		for rows.Next() {
			ids = append(ids, [16]byte(rows.RawValues()[0]))
		}
		require.NoError(b, rows.Err())
		if len(ids) == 0 {
			return float64(n) / time.Since(start).Seconds()
		}
		_, err = c.Exec(ctx, `DELETE FROM outbox WHERE id = ANY($1::uuid[])`, ids)
		require.NoError(b, err)
		n += len(ids)
	}
}

// BenchmarkLatency reports from commit to arrival at 200 events/s that come at random, after the relay has drained a
// backlog with the same configuration.
func BenchmarkLatency(b *testing.B) {
	const events = 600
	for b.Loop() {
		d := newDB(b, seqDDL)
		d.fill(5000)
		var mu sync.Mutex
		at := map[string]time.Time{}
		r := startRelay(b, d.dsn, relayOptions{onBatch: func(r *relay, gs []got) {
			now := time.Now()
			mu.Lock()
			for _, g := range gs {
				at[g.id()] = now
			}
			mu.Unlock()
			r.ack(gs...)
		}})
		r.awaitGot(5000)
		committed := map[string]time.Time{}
		rnd := rand.New(rand.NewPCG(1, 1))
		for next := time.Now(); len(committed) < events; {
			next = next.Add(time.Duration(rnd.ExpFloat64() * float64(5*time.Millisecond)))
			time.Sleep(time.Until(next)) // the load itself, not a wait for something
			committed[d.text(`INSERT INTO outbox (aggregate_id, type, payload) VALUES (1, 't', '{}') RETURNING id`)] = time.Now()
		}
		r.awaitGot(5000 + events)
		r.drain()
		var waits []time.Duration
		for id, c := range committed {
			waits = append(waits, at[id].Sub(c))
		}
		slices.Sort(waits)
		b.ReportMetric(waits[len(waits)/2].Seconds()*1000, "p50-ms")
		b.ReportMetric(waits[len(waits)*99/100].Seconds()*1000, "p99-ms")
	}
}
