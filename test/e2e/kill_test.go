package e2e

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/pipeline"
)

// recovery is how soon after a crash events must flow again. It takes half a second on a quiet machine.
const recovery = 5 * time.Second

// moments draws points in time to kill somebody at, from a seed that the log shows.
func moments(t *testing.T) func() {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed of the kills: %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	return func() { time.Sleep(time.Duration(r.Int64N(int64(300 * time.Millisecond)))) }
}

// The host is killed at random moments: its plugins follow it, and the next host goes on at once.
func TestHostKilled(t *testing.T) {
	t.Parallel()
	takePlace(t)
	s := newSystem(t, parts{})
	c, l := s.consume(), s.load(loadConfig{})
	wait := moments(t)
	const kills = 4
	for range kills {
		h := s.start(launch{})
		plugins := h.running()
		c.awaitMore(100)
		wait()
		h.kill()
		eventually(t, "no plugin outlives its host", 2*time.Second, func() bool {
			return gone(plugins.Source.PID) && gone(plugins.Sinks[0].PID)
		})
	}
	c.catchUp() // what comes from here on is the next host's
	_, before := c.count()
	start := time.Now()
	h := s.start(launch{})
	eventually(t, "the first new event after a restart", recovery, func() bool {
		_, now := c.count()
		return now > before
	})
	t.Logf("from start to first event: %s", time.Since(start).Round(time.Millisecond))
	l.stop()
	s.awaitEmpty()
	h.stop()
	require.LessOrEqual(t, c.verdict().repeats, kills*window)
}

// A plugin is killed at random moments: the host and the other plugin are the same processes as before.
func TestPluginKilled(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"source", "sink"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			takePlace(t)
			s := newSystem(t, parts{})
			c, l := s.consume(), s.load(loadConfig{})
			victim := func(s pipeline.Status) (pid, restarts, other int) {
				if kind == "source" {
					return s.Source.PID, s.Source.Restarts, s.Sinks[0].PID
				}
				return s.Sinks[0].PID, s.Sinks[0].Restarts, s.Source.PID
			}
			wait := moments(t)
			h := s.start(launch{})
			_, _, other := victim(h.running())
			const kills = 3 // the back-off doubles with each
			for i := range kills {
				c.awaitMore(100)
				wait()
				pid, _, _ := victim(h.running())
				require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
				h.until("the plugin runs again", func(s pipeline.Status) bool {
					now, restarts, _ := victim(s)
					return restarts == i+1 && now != 0 && now != pid && s.State == pipeline.Running
				})
			}
			c.awaitMore(100)
			_, _, now := victim(h.running())
			require.Equal(t, other, now, "the other plugin's process")
			require.False(t, h.over())
			l.stop()
			s.awaitEmpty()
			h.stop()
			require.LessOrEqual(t, c.verdict().repeats, kills*window)
		})
	}
}
