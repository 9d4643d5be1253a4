package main

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/natstest"
	"github.com/relevo-io/relevo/sdk"
)

func natsUser(user, password string) nats.Option { return nats.UserInfo(user, password) }

// The server is killed, and started again, three times under load.
func TestServerKilledUnderLoad(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, atomic bool) {
		c := natstest.StartChild(t)
		js := natstest.JetStream(t, c.URL())
		orders(t, js, batches(atomic))
		h := openSink(t, config(c.URL(), func(c *Config) { c.AckTimeout = sdk.Duration(2 * time.Second) }), "orders.created",
			func(h *fakeHost) { h.window = 700 })
		all := events(50, 400, "orders.created")
		h.add(all...)
		for i := range 3 {
			h.waitAcked((i + 1) * 4000)
			c.Kill()
			h.waitState(sdk.SinkDown)
			c.Start()
		}
		h.waitAcked(len(all))
		require.NoError(t, h.stop())
		require.Empty(t, h.failed())
		requireStream(t, js, "ORDERS", all)
	})
}

// redpanda connect#3257: an output that does not notice the outage drops what is published meanwhile.
func TestServerStoppedForAWhile(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, atomic bool) {
		s := natstest.Start(t)
		js := s.JetStream()
		orders(t, js, batches(atomic))
		h := openSink(t, config(s.URL()), "orders.created")
		all := events(10, 100, "orders.created")
		h.add(all[:300]...)
		h.waitAcked(300)
		s.Stop()
		h.waitState(sdk.SinkDown)
		h.add(all[300:]...)
		h.mu.Lock()
		require.Len(t, h.acked, 300, "no ack while down")
		h.mu.Unlock()
		s.Start()
		h.waitAcked(len(all))
		h.waitState(sdk.SinkOK)
		require.NoError(t, h.stop())
		require.Empty(t, h.failed())
		requireStream(t, js, "ORDERS", all)
	})
}

// proxy forwards to a server, and can swallow what the server says.
type proxy struct {
	addr  string
	mute  atomic.Bool // drop what comes from the server
	conns sync.Map
}

func startProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{addr: l.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			srv, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			p.conns.Store(client, srv)
			wg.Go(func() { _, _ = io.Copy(srv, client); srv.Close() })
			wg.Go(func() { p.answers(client, srv); client.Close() })
		}
	})
	t.Cleanup(func() { l.Close(); p.cut(); wg.Wait() })
	return p
}

func (p *proxy) answers(client, srv net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := srv.Read(buf)
		if err != nil {
			return
		}
		if p.mute.Load() {
			continue
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *proxy) cut() {
	p.conns.Range(func(c, s any) bool {
		c.(net.Conn).Close()
		s.(net.Conn).Close()
		p.conns.Delete(c)
		return true
	})
}

// Confirmations get lost (nats.go#1346: what is never answered fills the window for ever): time-out, unknown outcome, sent
// again with the same ids, acked once.
func TestLostConfirmations(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, atomic bool) {
		s := natstest.Start(t)
		js := s.JetStream()
		orders(t, js, batches(atomic))
		p := startProxy(t, s.Addr())
		h := openSink(t, config("nats://"+p.addr, func(c *Config) { c.AckTimeout = sdk.Duration(300 * time.Millisecond) }), "orders.created")
		all := events(20, 20, "orders.created")
		h.add(all[:100]...)
		h.waitAcked(100)
		p.mute.Store(true)
		h.add(all[100:]...)
		h.waitState(sdk.SinkDown)
		h.mu.Lock()
		require.Len(t, h.acked, 100, "a time-out is no ack")
		h.mu.Unlock()
		p.mute.Store(false)
		p.cut() // what was swallowed in the middle of a line cannot be mended
		h.waitAcked(len(all))
		require.NoError(t, h.stop())
		require.Empty(t, h.failed())
		require.Equal(t, len(all), requireStream(t, js, "ORDERS", all), "each once: the stream knew the ids")
		require.Zero(t, h.metric("duplicates_unexpected_total"))
	})
}

// nats.go leaves futures unresolved when the connection closes: the drain waits on its own clock, and ends.
func TestDrainEndsWithoutTheServer(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, atomic bool) {
		s := natstest.Start(t)
		js := s.JetStream()
		orders(t, js, batches(atomic))
		h := openSink(t, config(s.URL()), "orders.created")
		s.Stop()
		h.add(events(5, 5, "orders.created")...)
		h.waitState(sdk.SinkDown)
		begin := time.Now()
		require.NoError(t, h.stop())
		require.Less(t, time.Since(begin), 10*time.Second, "the host's drain time-out")
		h.mu.Lock()
		defer h.mu.Unlock()
		require.Empty(t, h.acked)
		require.NotEmpty(t, h.out, "what was not confirmed stays open")
	})
}

func TestGracefulStopUnderLoadLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, atomic bool) {
		s := natstest.Start(t)
		js := s.JetStream()
		orders(t, js, batches(atomic))
		h := openSink(t, config(s.URL()), "orders.created", func(h *fakeHost) { h.window = 500 })
		all := events(100, 100, "orders.created")
		h.add(all...)
		h.waitAcked(1000)
		require.NoError(t, h.stop())
		h.mu.Lock()
		defer h.mu.Unlock()
		require.Empty(t, h.out, "what was handed over is settled")
		require.Len(t, natstest.Messages(t, js, "ORDERS"), len(h.acked), "and nothing else was published")
	})
}

// The window of single messages in flight is kept (nats.go#1612).
func TestWindowIsKept(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	js := s.JetStream()
	orders(t, js, batches(false))
	p := startProxy(t, s.Addr())
	h := openSink(t, config("nats://"+p.addr), "orders.created")
	p.mute.Store(true)
	all := events(3000, 1, "orders.created")
	h.add(all...)
	natstest.Eventually(t, "a full window", func(ctx2 ctx) error {
		st, err := js.Stream(ctx2, "ORDERS")
		if err != nil {
			return err
		}
		if st.CachedInfo().State.Msgs < maxWindow {
			return errNone
		}
		return nil
	})
	h.wait("two reports", func() bool { return len(h.statuses) >= 3 })
	require.Len(t, natstest.Messages(t, js, "ORDERS"), maxWindow)
	p.mute.Store(false)
	p.cut()
	h.waitAcked(len(all))
	require.NoError(t, h.stop())
	require.Equal(t, len(all), requireStream(t, js, "ORDERS", all))
}

func TestClusterLeaderKilledUnderLoad(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("three servers")
	}
	c := natstest.StartCluster(t)
	js := natstest.JetStream(t, c.URL())
	orders(t, js, replicas(3))
	h := openSink(t, config(c.URLs()[0], func(cfg *Config) {
		cfg.Servers, cfg.AckTimeout = c.URLs(), sdk.Duration(2*time.Second)
	}), "orders.created", func(h *fakeHost) { h.window = 1000 })
	all := events(50, 200, "orders.created")
	h.add(all...)
	h.waitAcked(2000)
	c.Leader(js, "ORDERS").Kill()
	h.waitAcked(len(all))
	require.NoError(t, h.stop())
	require.Empty(t, h.failed())
	requireStream(t, js, "ORDERS", all)
}

// One stream never answers (nats.go#1346, telegraf: such messages filled the window): its events fail, the others flow.
func TestSilentStreamFailsItsOwnEvents(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	js := s.JetStream()
	orders(t, js)
	natstest.Stream(t, js, jetstream.StreamConfig{Name: "MUTE", Subjects: []string{"mute.>"}, NoAck: true})
	h := openSink(t, config(s.URL(), func(c *Config) { c.AckTimeout = sdk.Duration(500 * time.Millisecond) }), "",
		func(h *fakeHost) { h.window, h.mend = 50, func(*sdk.Item, *sdk.Error) bool { return false } })
	mute := event("m", 1, "mute.x")
	h.add(mute)
	all := events(4, 5000, "orders.created")
	for i := 0; ; i++ {
		h.add(all[i])
		h.wait("its end", func() bool { return len(h.acked)+len(h.failures) > i })
		if len(h.failed()) > 0 {
			break
		}
	}
	require.Equal(t, mute.ID, h.failed()[0].id)
	requireClass(t, h.failed()[0].err, sdk.ClassTransient, "ack_timeout")
	require.NoError(t, h.stop())
}

// A server that hangs without closing anything: nothing fails, everything is there when it goes on.
func TestHangingServer(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, atomic bool) {
		c := natstest.StartChild(t)
		js := natstest.JetStream(t, c.URL())
		orders(t, js, batches(atomic))
		h := openSink(t, config(c.URL(), func(c *Config) { c.AckTimeout = sdk.Duration(500 * time.Millisecond) }), "orders.created",
			func(h *fakeHost) { h.window = 500 })
		all := events(50, 100, "orders.created")
		h.add(all...)
		h.waitAcked(1000)
		c.Signal(syscall.SIGSTOP)
		h.waitState(sdk.SinkDown)
		c.Signal(syscall.SIGCONT)
		h.waitAcked(len(all))
		h.waitState(sdk.SinkOK)
		require.NoError(t, h.stop())
		require.Empty(t, h.failed())
		requireStream(t, js, "ORDERS", all)
	})
}

// The server ends the connection for good: so does the attempt.
func TestConnectionClosedByTheServer(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, natstest.With(func(o *server.Options) { o.MaxControlLine = 512 }))
	orders(t, s.JetStream())
	h := openSink(t, config(s.URL(), func(c *Config) { c.Stream = "ORDERS" }), "")
	h.add(event("k", 1, "orders."+strings.Repeat("s", 1000)))
	requireClass(t, h.ended(), sdk.ClassTransient, "connection_closed")
}
