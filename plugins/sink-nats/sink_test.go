package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/natstest"
	"github.com/relevo-io/relevo/sdk"
)

// modes runs a test with atomic batches and without.
func modes(t *testing.T, test func(t *testing.T, atomic bool)) {
	for _, atomic := range []bool{true, false} {
		t.Run(fmt.Sprintf("atomic=%v", atomic), func(t *testing.T) {
			t.Parallel()
			test(t, atomic)
		})
	}
}

func TestPublishesInOrder(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, atomic bool) {
		s := natstest.Start(t)
		js := s.JetStream()
		orders(t, js, batches(atomic))
		h := openSink(t, config(s.URL()), "orders.created")
		require.Equal(t, atomic, h.keeps)
		all := events(20, 100, "orders.created")
		h.add(all...)
		h.waitAcked(len(all))
		require.NoError(t, h.stop())
		require.Empty(t, h.failed())
		require.Equal(t, len(all), requireStream(t, js, "ORDERS", all))
	})
}

func TestMessageHasHeadersAndId(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, atomic bool) {
		s := natstest.Start(t)
		js := s.JetStream()
		orders(t, js, batches(atomic))
		h := openSink(t, config(s.URL()), "orders.created")
		e1 := event("k", 1, "orders.created")
		e1.SetTime(time.Date(2026, 1, 2, 3, 4, 5, 123456000, time.UTC))
		e1.Headers = []sdk.Header{
			{Name: "trace", Value: []byte("a b")},
			{Name: "trace", Value: []byte("c")},
			{Name: "empty", Value: []byte{}},
			{Name: "null"},
			{Name: "type", Value: []byte("its own")},
		}
		e2 := event("k", 2, "orders.created")
		e2.Payload = nil
		e3 := event("k", 3, "orders.created")
		e3.Payload, e3.Type, e3.AggregateType, e3.ContentType = []byte{}, "", "", ""
		h.add(e1, e2, e3)
		h.waitAcked(3)
		require.NoError(t, h.stop())

		msgs := natstest.Messages(t, js, "ORDERS")
		require.Len(t, msgs, 3)
		one := msgs[0].Header
		require.Equal(t, "orders/nats/k-1", one.Get("Nats-Msg-Id"))
		require.Equal(t, "k-1", one.Get("id"))
		require.Equal(t, []string{"OrderPlaced", "its own"}, one["type"], "ours first, the event's own behind it")
		require.Equal(t, "order", one.Get("aggregate_type"))
		require.Equal(t, "application/json", one.Get("content_type"))
		require.Equal(t, "2026-01-02T03:04:05.123456Z", one.Get("time"))
		require.Equal(t, []string{"a b", "c"}, one["trace"])
		require.Equal(t, []string{""}, one["empty"])
		require.NotContains(t, one, "null")
		require.NotContains(t, one, "tombstone")
		require.Equal(t, `{"key":"k","n":1}`, string(msgs[0].Data))
		require.Equal(t, "true", msgs[1].Header.Get("tombstone"))
		require.Empty(t, msgs[1].Data)
		require.NotContains(t, msgs[2].Header, "tombstone")
		require.NotContains(t, msgs[2].Header, "type")
	})
}

func TestSizeIsWhatIsSent(t *testing.T) {
	t.Parallel()
	c := newComposer(sdk.Instance{Pipeline: "p", Name: "s"}, "STREAM")
	e := event("k", 1, "a.b")
	e.SetTime(time.Now())
	e.Headers = []sdk.Header{{Name: "x", Value: []byte("y")}, {Name: "id", Value: []byte("z")}, {Name: "n"}, {Name: "e", Value: []byte{}}}
	for _, payload := range [][]byte{nil, {}, []byte("abc")} {
		e.Payload = payload
		m := c.message(&e, "r")
		_, total := c.size(&e)
		require.Equal(t, m.Size()-len(m.Subject)-len(m.Reply), total)
	}
}

// What a batch cannot take (an id in the duplicate window) goes singly, in order, and batches come back.
func TestDuplicateInBatchFallsBackInOrder(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	js := s.JetStream()
	orders(t, js)
	first := events(2, 20, "orders.created")
	h := openSink(t, config(s.URL()), "orders.created")
	h.add(first...)
	h.waitAcked(len(first))
	require.NoError(t, h.stop())

	// The acks got lost: the second half comes again, before what is new.
	all := events(2, 1000, "orders.created")
	h = openSink(t, config(s.URL()), "orders.created")
	again := all[20:]
	for i := range again[:20] {
		again[i].Redelivered = true
	}
	h.add(again...)
	h.waitAcked(len(again))
	require.NoError(t, h.stop())
	require.Empty(t, h.failed())
	require.Equal(t, len(all), requireStream(t, js, "ORDERS", all), "each once")
	require.Positive(t, h.metric("batch_fallbacks_total"))
	require.Less(t, h.metric("batch_fallbacks_total"), 10.0, "batches came back")
	require.Positive(t, h.metric("duplicates_total"))
	require.Zero(t, h.metric("duplicates_unexpected_total"))
}

func TestUnexpectedDuplicateIsCounted(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, atomic bool) {
		s := natstest.Start(t)
		js := s.JetStream()
		orders(t, js, batches(atomic))
		h := openSink(t, config(s.URL()), "orders.created")
		a, b := event("k", 1, "orders.created"), event("k", 2, "orders.created")
		b.ID = a.ID // two events with one id
		h.add(a, b)
		h.waitAcked(2)
		h.wait("the count", func() bool {
			for _, m := range h.statusLocked().Metrics {
				if m.Name == "duplicates_unexpected_total" {
					return m.Value == 1
				}
			}
			return false
		})
		require.Len(t, natstest.Messages(t, js, "ORDERS"), 1)
	})
}

// The window in which repeats are dropped is the stream's: two sinks with the same ids in one stream must not meet in it.
func TestIdsOfTwoSinksDoNotCollide(t *testing.T) {
	t.Parallel()
	a := newComposer(sdk.Instance{Pipeline: "p", Name: "a"}, "")
	b := newComposer(sdk.Instance{Pipeline: "p", Name: "b"}, "")
	it := event("k", 1, "orders.created")
	idA := a.message(&it, "").Header.Get(headerMsgID)
	require.NotEqual(t, idA, b.message(&it, "").Header.Get(headerMsgID))
}

func TestEachSubjectsStreamIsFound(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	js := s.JetStream()
	orders(t, js)
	natstest.Stream(t, js, jetstream.StreamConfig{Name: "BILLS", Subjects: []string{"bills.*"}}) // takes no batches
	h := openSink(t, config(s.URL()), "")
	require.True(t, h.keeps)
	var all, bills, sales []sdk.Item
	for i := range 300 {
		for k := range 5 {
			to := fmt.Sprintf("orders.%d", i%7)
			if i%3 == 0 {
				to = fmt.Sprintf("bills.%d", i%7)
			}
			it := event(fmt.Sprintf("k%d", k), i, to)
			all = append(all, it)
			if i%3 == 0 {
				bills = append(bills, it)
			} else {
				sales = append(sales, it)
			}
		}
	}
	h.add(all...)
	h.waitAcked(len(all))
	require.NoError(t, h.stop())
	require.Equal(t, len(sales), requireStream(t, js, "ORDERS", sales))
	require.Equal(t, len(bills), requireStream(t, js, "BILLS", bills))
}

func TestBatchesAndSinglesGiveTheSameStream(t *testing.T) {
	t.Parallel()
	all := events(7, 150, "orders.created")
	content := func(publish string) (ids, data []string) {
		s := natstest.Start(t)
		js := s.JetStream()
		orders(t, js)
		h := openSink(t, config(s.URL(), func(c *Config) { c.Publish = publish }), "orders.created")
		h.add(all...)
		h.waitAcked(len(all))
		require.NoError(t, h.stop())
		require.Equal(t, len(all), requireStream(t, js, "ORDERS", all))
		for _, m := range natstest.Messages(t, js, "ORDERS") {
			for _, h := range []string{headerBatchID, headerBatchSeq, headerBatchCommit} {
				m.Header.Del(h)
			}
			data = append(data, fmt.Sprint(m.Subject, m.Header, string(m.Data)))
		}
		return ids, data
	}
	_, one := content(publishBatch)
	_, two := content(publishKeySerial)
	require.ElementsMatch(t, one, two)
}
