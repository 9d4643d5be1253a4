package wire

import (
	"strconv"
	"testing"
)

const benchEvents = 500 // a usual batch

// benchEvent has 500 bytes of payload and what a usual row brings along.
func benchEvent(i int) *Event {
	return &Event{
		ID: "018f6d2e-7b3c-7000-8000-" + strconv.Itoa(100_000_000_000+i), Key: []byte("order-" + strconv.Itoa(i%50)), Type: "OrderPlaced",
		AggregateType: "order", ContentType: "application/json", TimeMicro: 1_700_000_000_000_000, HasTime: true,
		Headers: []Header{{Name: "traceparent", Value: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")}},
		Payload: make([]byte, 500),
	}
}

func perEvent(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchEvents, "ns/event")
}

func benchBatch() []byte {
	var w Builder
	for i := range benchEvents {
		w.Add(benchEvent(i))
	}
	f := w.Response(1, nil)
	raw := append(append([]byte{}, f.Segments[0]...), f.Segments[1]...)
	body, _ := BatchOf(raw)
	return body
}

func BenchmarkAppend(b *testing.B) {
	e := benchEvent(1)
	b.ReportAllocs()
	for b.Loop() {
		var w Builder
		w.Grow(benchEvents * (e.Size() + 3))
		for range benchEvents {
			w.Add(e)
		}
	}
	perEvent(b)
}

func BenchmarkParse(b *testing.B) {
	batch, err := ParseBatch(benchBatch())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	var e Event
	for b.Loop() {
		for i := range batch.Len() {
			if err := e.Parse(batch.Raw(i)); err != nil {
				b.Fatal(err)
			}
		}
	}
	perEvent(b)
}

func BenchmarkParseBatch(b *testing.B) {
	raw := benchBatch()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseBatch(raw); err != nil {
			b.Fatal(err)
		}
	}
	perEvent(b)
}

func BenchmarkIDAndKey(b *testing.B) {
	batch, err := ParseBatch(benchBatch())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		for i := range batch.Len() {
			if _, _, err := IDAndKey(batch.Raw(i)); err != nil {
				b.Fatal(err)
			}
		}
	}
	perEvent(b)
}
