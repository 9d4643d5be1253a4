package e2e

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/pipeline"
)

// I10: sinks that crash, panic, flood, hang, talk nonsense or never come up, in one host with a healthy pipeline, which
// does not notice.
func TestHostileNeighbours(t *testing.T) {
	t.Parallel()
	takePlace(t)
	s := newSystem(t, parts{})
	files := []string{s.write("orders.yaml", s.pipe)}
	modes := []string{"crash", "panic", "stderr", "flood", "junk", "long-line", "silent", "elsewhere", "not-serving", "health-turns"}
	for _, mode := range modes {
		files = append(files, s.write(mode+".yaml", conf{
			"source": conf{"plugin": "null", "config": conf{"rate": 1000}},
			"sinks": []conf{{
				"plugin": "good", "process": conf{"start_timeout": "2s", "env": conf{"HOSTILE": mode}},
			}},
		}))
	}
	c, l := s.consume(), s.load(loadConfig{writers: 2})
	h := s.start(launch{files: files})
	healthy := h.running()
	for range 5 {
		c.awaitMore(300)
		code, _, err := h.get("/livez")
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, code)
		require.Zero(t, s.rows(fmt.Sprintf("created_at < now() - interval '%d seconds'", int(fresh.Seconds()))), "rows wait")
	}
	for _, mode := range []string{"crash", "panic", "silent", "elsewhere", "not-serving"} {
		eventually(t, "the trouble of "+mode+" is shown", patience, func() bool {
			st, err := h.pipeline(mode)
			return err == nil && (st.State == pipeline.Retrying || st.State == pipeline.Failed) && st.Reason != ""
		})
	}
	after := h.running()
	require.Equal(t, healthy.Source.PID, after.Source.PID)
	require.Equal(t, healthy.Sinks[0].PID, after.Sinks[0].PID)
	l.stop()
	s.awaitEmpty()
	require.Zero(t, c.verdict().repeats)
	h.signal(syscall.SIGTERM) // those that never drain have a time-out
	h.wait(patience)
}

// A sink that is stopped is named as the culprit, found out by its health checks, and replaced. The source's process
// stays.
func TestSinkFrozen(t *testing.T) {
	t.Parallel()
	takePlace(t)
	s := newSystem(t, parts{})
	s.pipe["delivery"].(conf)["stall_after"] = "2s"
	c, l := s.consume(), s.load(loadConfig{small: true})
	h := s.start(launch{})
	before := h.running()
	c.awaitMore(200)
	pid := before.Sinks[0].PID
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) }) // the host has, unless this fails
	st := h.until("the stall is seen", func(s pipeline.Status) bool { return s.State == pipeline.Stalled })
	require.Contains(t, st.Reason, "sink nats")
	st = h.until("the sink is replaced", func(s pipeline.Status) bool {
		return s.State == pipeline.Running && s.Sinks[0].PID != pid && s.Sinks[0].PID != 0
	})
	require.Equal(t, before.Source.PID, st.Source.PID)
	require.Contains(t, h.logs(), "process hung")
	require.Eventually(t, func() bool { return gone(pid) }, 5*time.Second, 10*time.Millisecond)
	c.awaitMore(200)
	l.stop()
	s.awaitEmpty()
	h.stop()
	require.LessOrEqual(t, c.verdict().repeats, window)
}
