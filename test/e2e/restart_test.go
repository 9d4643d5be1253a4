package e2e

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/pipeline"
	"github.com/relevo-io/relevo/internal/natstest"
	"github.com/relevo-io/relevo/internal/netproxy"
)

// A graceful restart under load repeats nothing.
func TestGracefulRestart(t *testing.T) {
	t.Parallel()
	for name, publish := range map[string]string{"batch": "batch", "key serial": "key_serial"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			takePlace(t)
			s := newSystem(t, parts{})
			s.sink()["config"].(conf)["publish"] = publish
			c, l := s.consume(), s.load(loadConfig{})
			for i := range 4 {
				h := s.start(launch{})
				c.awaitMore(500)
				if i == 3 {
					l.stop()
					s.awaitEmpty()
				}
				h.signal([]syscall.Signal{syscall.SIGTERM, syscall.SIGINT}[i%2])
				require.Zero(t, h.wait(patience), "exit code")
			}
			require.Zero(t, c.verdict().repeats)
		})
	}
}

// A second signal aborts: the exit code says that something will be repeated, and it is.
func TestSecondSignalAborts(t *testing.T) {
	t.Parallel()
	takePlace(t)
	broker := natstest.Start(t)
	proxy := netproxy.Start(t, broker.Addr())
	s := newSystem(t, parts{nats: broker.URL(), relay: "nats://" + proxy.Addr()})
	s.pipe["delivery"].(conf)["drain_timeout"] = "1m"
	c, l := s.consume(), s.load(loadConfig{})
	h := s.start(launch{})
	c.awaitMore(200)

	proxy.Stall(netproxy.Down) // published, and not confirmed: the drain has something to wait for
	h.until("events are in flight", func(s pipeline.Status) bool { return s.InFlightEvents > 0 })
	h.signal(syscall.SIGTERM)
	h.until("the pipeline drains", func(s pipeline.Status) bool { return s.State == pipeline.Draining })
	status, _, err := h.get("/readyz")
	require.NoError(t, err)
	require.Equal(t, 503, status)
	// The host takes what comes within a quarter of a second for the same signal.
	eventually(t, "the host aborts", patience, func() bool {
		_ = h.cmd.Process.Signal(syscall.SIGTERM) // it may be over
		return h.over()
	})
	require.Equal(t, 1, h.wait(patience), "exit code")

	proxy.Resume()
	proxy.Cut()
	h = s.start(launch{})
	c.awaitMore(200)
	l.stop()
	s.awaitEmpty()
	h.stop()
	require.LessOrEqual(t, c.verdict().repeats, window)
}

// Ctrl-C in a terminal signals the whole foreground group, and systemd every process of the unit. Plugins end when the
// host says so: after the drain.
func TestSignalToEverybodyDrains(t *testing.T) {
	t.Parallel()
	takePlace(t)
	s := newSystem(t, parts{})
	c, l := s.consume(), s.load(loadConfig{})
	for range 2 {
		h := s.start(launch{})
		plugins := h.running()
		c.awaitMore(300)
		require.NoError(t, syscall.Kill(-h.pid(), syscall.SIGINT)) // the group
		for _, pid := range []int{plugins.Source.PID, plugins.Sinks[0].PID} {
			require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
		}
		require.Zero(t, h.wait(patience), "exit code")
		require.NotContains(t, h.logs(), "plugin crashed")
		eventually(t, "the plugins have ended", 5*time.Second, func() bool {
			return gone(plugins.Source.PID) && gone(plugins.Sinks[0].PID)
		})
	}
	h := s.start(launch{})
	l.stop()
	s.awaitEmpty()
	h.stop()
	require.Zero(t, c.verdict().repeats)
}
