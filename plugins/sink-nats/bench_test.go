package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/relevo-io/relevo/internal/natstest"
	"github.com/relevo-io/relevo/sdk"
)

// BenchmarkSink compares the sink, from the batch that the host sends to the ack that it gets, with the bare client doing
// the same publishes under the same guarantees, in turns:
//
//	go test -run '^$' -bench Sink -benchtime 1x ./plugins/sink-nats
//
// batch: atomic batches of 500, one in flight, by orbit.go's jetstreamext. key_serial: 1000 keys, one message in flight for
// each, by jetstream's PublishMsgAsync. Of five rounds the best counts. ratio is the sink's rate over the bare client's; noise is the bare
// client's best over its own worst.
func BenchmarkSink(b *testing.B) {
	const keys = 1000
	for _, sync := range []string{"2m", "always"} {
		for _, mode := range []string{publishBatch, publishKeySerial} {
			b.Run(fmt.Sprintf("%s/sync=%s", mode, sync), func(b *testing.B) {
				n := 50_000
				if sync == "always" && mode == publishKeySerial {
					n = 10_000
				}
				c := natstest.StartChild(b, "jetstream { sync_interval: "+sync+fmt.Sprintf(", store_dir: %q }", natstest.Dir(b)))
				js := natstest.JetStream(b, c.URL())
				natstest.Stream(b, js, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, AllowAtomicPublish: true})
				const rounds = 5
				var own, bare []time.Duration
				for b.Loop() {
					for round := range rounds {
						own = append(own, timeSink(b, c.URL(), mode, load(fmt.Sprint("s", b.N, round), keys, n)))
						bare = append(bare, timeBare(b, js, mode, load(fmt.Sprint("b", b.N, round), keys, n)))
						require.NoError(b, mustStream(b, js).Purge(b.Context()))
					}
				}
				b.ReportMetric(float64(n)/slices.Min(own).Seconds(), "events/s")
				b.ReportMetric(float64(n)/slices.Min(bare).Seconds(), "bare_events/s")
				b.ReportMetric(slices.Min(bare).Seconds()/slices.Min(own).Seconds(), "ratio")
				b.ReportMetric(slices.Max(bare).Seconds()/slices.Min(bare).Seconds(), "noise")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func mustStream(b *testing.B, js jetstream.JetStream) jetstream.Stream {
	s, err := js.Stream(b.Context(), "ORDERS")
	require.NoError(b, err)
	return s
}

func load(prefix string, keys, n int) []sdk.Item {
	payload := make([]byte, 500)
	all := make([]sdk.Item, n)
	for i := range all {
		k := strconv.Itoa(i % keys)
		all[i] = sdk.Item{
			Event: sdk.Event{
				ID: prefix + "-" + strconv.Itoa(i), Key: []byte(k), Type: "OrderPlaced", AggregateType: "order",
				ContentType: "application/json", Payload: payload,
			},
			Destination: "orders.created",
		}
		all[i].SetTime(time.UnixMicro(int64(i)))
	}
	return all
}

// benchHost hands over what the window lets through, and counts.
type benchHost struct {
	requests chan sdk.Request
	opened   chan struct{}
	acked    atomic.Int64
	progress chan struct{}
	b        *testing.B
}

func (h *benchHost) Requests() <-chan sdk.Request { return h.requests }
func (h *benchHost) Opened(sdk.SinkOpened) error  { close(h.opened); return nil }
func (h *benchHost) Return(...uint64)             { h.b.Error("returned") }
func (h *benchHost) Failed(*sdk.Item) bool        { return false }
func (h *benchHost) Status(sdk.SinkStatus) error  { return nil }
func (h *benchHost) Fail(_ *sdk.Item, err error)  { h.b.Error(err) }
func (h *benchHost) Ack(seqs ...uint64) {
	h.acked.Add(int64(len(seqs)))
	select {
	case h.progress <- struct{}{}:
	default:
	}
}

func timeSink(b *testing.B, url, mode string, all []sdk.Item) time.Duration {
	h := &benchHost{requests: make(chan sdk.Request, 1024), opened: make(chan struct{}), progress: make(chan struct{}, 1), b: b}
	var wg sync.WaitGroup
	wg.Go(func() {
		err := attempt(b.Context(), sdk.SinkOpen[Config]{
			Config: config(url, func(c *Config) { c.Publish = mode }), Instance: sdk.Instance{Pipeline: "p", Name: "s"},
			DrainTimeout: time.Minute, ConstantDestination: "orders.created",
		}, h)
		if err != nil {
			b.Error(err)
		}
	})
	<-h.opened
	window := 10_000
	if mode == publishKeySerial {
		window = 1000 // one of each key
	}
	begin := time.Now()
	for sent := 0; sent < len(all); {
		n := min(500, len(all)-sent, window-(sent-int(h.acked.Load())))
		if n <= 0 {
			<-h.progress
			continue
		}
		items := all[sent : sent+n]
		for i := range items {
			items[i].Seq = uint64(sent + i + 1)
		}
		h.requests <- &sdk.Events{Items: items}
		sent += n
	}
	for int(h.acked.Load()) < len(all) {
		<-h.progress
	}
	took := time.Since(begin)
	h.requests <- sdk.Stop{}
	close(h.requests)
	wg.Wait()
	return took
}

// bareMessage is the message that the sink makes, made the usual way.
func bareMessage(it *sdk.Item) *nats.Msg {
	t, _ := it.Time()
	return &nats.Msg{Subject: it.Destination, Data: it.Payload, Header: nats.Header{
		headerMsgID: {"p/s/" + it.ID}, headerID: {it.ID}, headerType: {it.Type}, headerAggregateType: {it.AggregateType},
		headerContentType: {it.ContentType}, headerTime: {t.Format(timeLayout)},
	}}
}

func timeBare(b *testing.B, js jetstream.JetStream, mode string, all []sdk.Item) time.Duration {
	begin := time.Now()
	if mode == publishBatch {
		for at := 0; at < len(all); at += maxBatch {
			msgs := make([]*nats.Msg, 0, maxBatch)
			for i := range all[at:min(at+maxBatch, len(all))] {
				msgs = append(msgs, bareMessage(&all[at+i]))
			}
			ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
			_, err := jetstreamext.PublishMsgBatch(ctx, js, msgs, jetstreamext.BatchFlowControl{})
			cancel()
			require.NoError(b, err)
		}
		return time.Since(begin)
	}
	js, err := jetstream.New(js.Conn(), jetstream.WithPublishAsyncMaxPending(2000))
	require.NoError(b, err)
	futures := make([]jetstream.PubAckFuture, 0, len(all))
	settle := func(f jetstream.PubAckFuture) {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			require.NoError(b, err)
		}
	}
	for i := range all {
		if i >= 1000 {
			settle(futures[i-1000]) // the one before of the same key
		}
		f, err := js.PublishMsgAsync(bareMessage(&all[i]), jetstream.WithRetryAttempts(0))
		require.NoError(b, err)
		futures = append(futures, f)
	}
	for _, f := range futures[max(0, len(futures)-1000):] {
		settle(f)
	}
	return time.Since(begin)
}

// BenchmarkMessage is what making and encoding one message costs.
func BenchmarkMessage(b *testing.B) {
	c := newComposer(sdk.Instance{Pipeline: "p", Name: "s"}, "")
	it := load("x", 1, 1)[0]
	b.ReportAllocs()
	for b.Loop() {
		_ = c.message(&it, "reply")
	}
}

// BenchmarkPubAck is what reading one confirmation costs.
func BenchmarkPubAck(b *testing.B) {
	data := []byte(`{"stream":"ORDERS","seq":123456}`)
	b.ReportAllocs()
	for b.Loop() {
		var a pubAck
		if err := json.Unmarshal(data, &a); err != nil {
			b.Fatal(err)
		}
	}
}
