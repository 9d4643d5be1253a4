package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/natstest"
	"github.com/relevo-io/relevo/sdk"
)

// nats.go#1462: its own retry of each message on "no responders" published 4 5 6 1 2 3, all confirmed.
func TestNoStreamYetKeepsOrder(t *testing.T) {
	t.Parallel()
	for _, publish := range []string{publishAuto, publishKeySerial} {
		t.Run(publish, func(t *testing.T) {
			t.Parallel()
			s := natstest.Start(t)
			js := s.JetStream()
			h := openSink(t, config(s.URL(), func(c *Config) { c.Publish = publish }), "")
			all := []sdk.Item{}
			for i := range 6 {
				all = append(all, event("k", i, "orders.created"))
			}
			h.add(all[:3]...)
			h.wait("a refusal", func() bool { return len(h.failures) > 0 })
			orders(t, js)
			h.add(all[3:]...)
			h.waitAcked(6)
			require.NoError(t, h.stop())
			require.Equal(t, 6, requireStream(t, js, "ORDERS", all))
			for _, f := range h.failed() {
				require.Equal(t, "k-0", f.id, "the key stops at the first")
				requireClass(t, f.err, sdk.ClassTransient, "no_stream")
			}
		})
	}
}

// The one stream goes away in the middle and comes back: the sink keeps what it has, fails nothing, and goes on in order.
func TestStreamAwayForAWhileKeepsOrder(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, atomic bool) {
		s := natstest.Start(t)
		js := s.JetStream()
		orders(t, js, batches(atomic))
		// The stream's subjects move away, so that nobody answers, which looks like a cluster without a leader.
		h := openSink(t, config(s.URL()), "orders.created")
		update := func(subject string) {
			_, err := js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{subject}, AllowAtomicPublish: atomic})
			require.NoError(t, err)
		}
		all := events(10, 50, "orders.created")
		h.add(all[:200]...)
		h.waitAcked(200)
		update("elsewhere")
		h.add(all[200:]...)
		h.waitState(sdk.SinkDown)
		require.Contains(t, h.lastStatus().Text, "no stream answers")
		update("orders.>")
		h.waitAcked(len(all))
		require.NoError(t, h.stop())
		require.Empty(t, h.failed())
		require.Equal(t, len(all), requireStream(t, js, "ORDERS", all))
	})
}

func TestDeletedStreamEndsTheAttempt(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	js := s.JetStream()
	orders(t, js)
	h := openSink(t, config(s.URL()), "orders.created")
	require.NoError(t, js.DeleteStream(t.Context(), "ORDERS"))
	h.add(event("k", 1, "orders.created"))
	requireClass(t, h.ended(), sdk.ClassConfig, "stream_missing")
	require.Empty(t, h.failed())
}

// An event that is refused for good, in the middle of a key: nothing behind it passes until it is settled; all else does.
func TestOversizeInTheMiddleHoldsItsKeyOnly(t *testing.T) {
	t.Parallel()
	limits := map[string]struct {
		server natstest.Option
		stream func(*jetstream.StreamConfig)
	}{
		"max_payload":  {natstest.With(func(o *server.Options) { o.MaxPayload = 2000 }), func(*jetstream.StreamConfig) {}},
		"max_msg_size": {natstest.With(func(*server.Options) {}), func(c *jetstream.StreamConfig) { c.MaxMsgSize = 2000 }},
	}
	for name, limit := range limits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			modes(t, func(t *testing.T, atomic bool) {
				s := natstest.Start(t, limit.server)
				js := s.JetStream()
				orders(t, js, batches(atomic), limit.stream)
				h := openSink(t, config(s.URL()), "orders.created", func(h *fakeHost) { h.backoff = 0 })
				all := events(3, 30, "orders.created")
				big := &all[3*10] // the tenth of k0
				small := big.Payload
				big.Payload = []byte(strings.Repeat("x", 3000))
				bigID := big.ID
				h.add(all...)
				h.waitAcked(60 + 10)
				require.Len(t, h.failed(), 1)
				require.Equal(t, bigID, h.failed()[0].id)
				requireClass(t, h.failed()[0].err, sdk.ClassPermanent, "message_too_large")
				for _, m := range natstest.Messages(t, js, "ORDERS") {
					id := m.Header.Get("id")
					if n := 0; strings.HasPrefix(id, "k0-") {
						_, err := fmt.Sscanf(id, "k0-%d", &n)
						require.NoError(t, err)
						require.Less(t, n, 10, "nothing of the key passes the failed event")
					}
				}
				// Mended and released.
				h.mu.Lock()
				h.backoff = time.Millisecond
				require.Equal(t, bigID, h.pending["k0"][0].ID)
				h.pending["k0"][0].Payload = small
				h.changedLocked()
				h.mu.Unlock()
				h.waitAcked(len(all))
				require.NoError(t, h.stop())
				require.Equal(t, len(all), requireStream(t, js, "ORDERS", all))
			})
		})
	}
}

// What is too large only with a batch's headers goes singly.
func TestTooLargeForABatchAlone(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	js := s.JetStream()
	orders(t, js, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 2000 })
	h := openSink(t, config(s.URL()), "orders.created")
	all := events(1, 9, "orders.created")
	it := &all[4]
	_, total := newComposer(sdk.Instance{Pipeline: "orders", Name: "nats"}, "").size(it)
	it.Payload = append(it.Payload, strings.Repeat("x", 2000-total)...)
	h.add(all...)
	h.waitAcked(len(all))
	require.NoError(t, h.stop())
	require.Empty(t, h.failed())
	require.Equal(t, len(all), requireStream(t, js, "ORDERS", all))
}

// The server drops a message of a batch: the batch is refused, its messages are sent singly, one of them gets the blame.
func TestCulpritOfARefusedBatchIsFound(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, natstest.Users(&server.User{
		Username: "u", Password: "p",
		Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Deny: []string{"orders.secret"}},
			Subscribe: &server.SubjectPermission{Allow: []string{">"}},
		},
	}))
	login := func(c *Config) { c.Auth = &Auth{User: "u", Password: "p"} }
	js := s.JetStream(natsUser("u", "p"))
	orders(t, js)
	h := openSink(t, config(s.URL(), login, func(c *Config) { c.Stream = "ORDERS" }), "",
		func(h *fakeHost) { h.mend = func(*sdk.Item, *sdk.Error) bool { return false } })
	all := events(4, 50, "orders.created")
	all[100].Destination = "orders.secret" // k0-25
	bad := all[100].ID
	h.add(all...)
	h.wait("the end of all", func() bool { return len(h.acked)+len(h.failures) >= len(all) })
	require.NoError(t, h.stop())
	require.Len(t, h.failed(), 1)
	require.Equal(t, bad, h.failed()[0].id)
	requireClass(t, h.failed()[0].err, sdk.ClassConfig, "publish_denied")
	rest := append(append([]sdk.Item{}, all[:100]...), all[101:]...)
	require.Equal(t, len(rest), requireStream(t, js, "ORDERS", rest))
}

// nats-server#6410: too many messages in the stream's queue are refused with 10167 while later ones pass.
func TestThrottledStreamKeepsOrder(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, atomic bool) {
		s := natstest.Start(t, natstest.With(func(o *server.Options) { o.StreamMaxBufferedMsgs = 50 }))
		js := s.JetStream()
		orders(t, js, batches(atomic))
		h := openSink(t, config(s.URL()), "orders.created")
		all := events(1000, 4, "orders.created")
		h.add(all...)
		h.waitAcked(len(all))
		require.NoError(t, h.stop())
		require.Empty(t, h.failed())
		requireStream(t, js, "ORDERS", all)
	})
}

// A stream that is full and refuses new messages: everything waits, nothing fails, nothing overtakes.
func TestFullStreamHoldsEverything(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, atomic bool) {
		s := natstest.Start(t)
		js := s.JetStream()
		orders(t, js, batches(atomic), func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 100, jetstream.DiscardNew })
		h := openSink(t, config(s.URL()), "orders.created")
		all := events(10, 30, "orders.created")
		h.add(all...)
		h.waitState(sdk.SinkSlow)
		require.Contains(t, h.lastStatus().Text, "maximum messages exceeded")
		require.LessOrEqual(t, len(natstest.Messages(t, js, "ORDERS")), 100)
		_, err := js.UpdateStream(t.Context(), jetstream.StreamConfig{
			Name: "ORDERS", Subjects: []string{"orders.>"}, AllowAtomicPublish: atomic, MaxMsgs: 1000, Discard: jetstream.DiscardNew,
		})
		require.NoError(t, err)
		h.waitAcked(len(all))
		require.NoError(t, h.stop())
		require.Empty(t, h.failed())
		require.Equal(t, len(all), requireStream(t, js, "ORDERS", all))
	})
}

// The server's limits of batches are lower than ours.
func TestSmallBatchLimitIsLearned(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, natstest.With(func(o *server.Options) { o.JetStreamLimits.MaxBatchSize = 10 }))
	js := s.JetStream()
	orders(t, js)
	h := openSink(t, config(s.URL()), "orders.created")
	all := events(10, 100, "orders.created")
	h.add(all...)
	h.waitAcked(len(all))
	require.NoError(t, h.stop())
	require.Empty(t, h.failed())
	require.Equal(t, len(all), requireStream(t, js, "ORDERS", all))
	require.Positive(t, h.metric("batches_total"))
}

// Batches are switched off at the stream while the sink runs.
func TestBatchesSwitchedOff(t *testing.T) {
	t.Parallel()
	for _, publish := range []string{publishAuto, publishBatch} {
		t.Run(publish, func(t *testing.T) {
			t.Parallel()
			s := natstest.Start(t)
			js := s.JetStream()
			orders(t, js)
			h := openSink(t, config(s.URL(), func(c *Config) { c.Publish = publish }), "orders.created")
			_, err := js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
			require.NoError(t, err)
			all := events(3, 30, "orders.created")
			h.add(all...)
			if publish == publishBatch {
				requireClass(t, h.ended(), sdk.ClassConfig, "batches_disabled")
				return
			}
			h.waitAcked(len(all))
			require.NoError(t, h.stop())
			require.Equal(t, len(all), requireStream(t, js, "ORDERS", all))
		})
	}
}

// nats-server#3272: the server forgets ids over a purge and restart. Only at-least-once may be relied on.
func TestOrderDoesNotDependOnTheServersMemory(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	js := s.JetStream()
	orders(t, js, func(c *jetstream.StreamConfig) { c.Duplicates = 100 * time.Millisecond })
	all := events(2, 20, "orders.created")
	h := openSink(t, config(s.URL()), "orders.created")
	h.add(all[:20]...)
	h.waitAcked(20)
	require.NoError(t, h.stop())
	natstest.Eventually(t, "the server forgets an id", func(ctx context.Context) error {
		a, err := js.Publish(ctx, "orders.created", nil, jetstream.WithMsgID("probe"))
		if err == nil && a.Sequence > 22 {
			return nil
		}
		return errNone
	})
	h = openSink(t, config(s.URL()), "orders.created")
	for i := range all {
		all[i].Redelivered = i < 20
	}
	h.add(all...)
	h.waitAcked(len(all))
	require.NoError(t, h.stop())
	var own []string
	for _, m := range natstest.Messages(t, js, "ORDERS") {
		if id := m.Header.Get("id"); id != "" {
			own = append(own, id)
		}
	}
	require.GreaterOrEqual(t, len(own), len(all))
}

// The limit that refuses an event is raised: the next try knows, although the sink has been open all the time.
func TestRaisedLimitIsSeen(t *testing.T) {
	t.Parallel()
	for name, stream := range map[string]string{"stream named": "ORDERS", "stream looked up": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			modes(t, func(t *testing.T, atomic bool) {
				s := natstest.Start(t)
				js := s.JetStream()
				limit := func(n int32) func(*jetstream.StreamConfig) {
					return func(c *jetstream.StreamConfig) { c.MaxMsgSize = n }
				}
				orders(t, js, batches(atomic), limit(2000))
				h := openSink(t, config(s.URL(), func(c *Config) { c.Stream = stream }), "", func(h *fakeHost) { h.backoff = 50 * time.Millisecond })
				all := events(3, 30, "orders.created")
				all[3*10].Payload = []byte(strings.Repeat("x", 3000)) // the tenth of k0
				h.add(all...)
				h.waitAcked(60 + 10)
				h.wait("the event is refused", func() bool { return len(h.failures) > 0 })
				requireClass(t, h.failed()[0].err, sdk.ClassPermanent, "message_too_large")

				stored, err := js.Stream(t.Context(), "ORDERS")
				require.NoError(t, err)
				c := stored.CachedInfo().Config
				limit(-1)(&c)
				_, err = js.UpdateStream(t.Context(), c)
				require.NoError(t, err)
				h.waitAcked(len(all))
				require.NoError(t, h.stop())
				require.Equal(t, len(all), requireStream(t, js, "ORDERS", all))
			})
		})
	}
}
