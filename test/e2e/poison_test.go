package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/pipeline"
)

const (
	// small is the most that the stream takes, large a payload that it refuses.
	small, large = 4096, 8192
	// growth is what a process may take more with keys held, and under load. The race detector has a shadow of all of it.
	growth = 64 << 20 * slowness
	// retried is how soon the head of a key that is refused for good is tried again, which is every minute, and all that
	// is behind it is published.
	retried = 60*time.Second + 40*time.Second*slowness
	// fresh is how old the row of a healthy key may get. On a quiet machine it is some milliseconds.
	fresh = 5 * time.Second
)

// The first event of one key is refused for good, and 100,000 rows of it follow: the other keys flow as if there were
// none of them, memory stays as it was, the key and its reason are shown, and its rows follow when the cause is mended.
func TestPoisonKey(t *testing.T) {
	t.Parallel()
	takePlace(t)
	const key, behind = 5000, 100_000
	s := newSystem(t, parts{})
	s.limit(small)
	c, l := s.consume(), s.load(loadConfig{keys: 1000, small: true})
	h := s.start(launch{})
	pids := h.running()
	c.awaitMore(500)
	before := memory(t, h.pid(), pids.Source.PID, pids.Sinks[0].PID)

	poison := s.emitSizes(key, large)[0]
	s.emitMany(key, behind)
	st := h.until("the key is held", func(s pipeline.Status) bool { return s.HeldKeys == 1 })
	require.Equal(t, pipeline.Running, st.State, "held keys alone are no trouble")
	require.Len(t, st.Held, 1)
	require.Equal(t, "5000", st.Held[0].Key)
	require.Equal(t, poison, st.Held[0].EventID)
	require.Equal(t, "message_too_large", st.Held[0].Code)
	require.Equal(t, "permanent", st.Held[0].Class)
	require.True(t, st.Held[0].Held)
	_, metrics, err := h.get("/metrics")
	require.NoError(t, err)
	require.Contains(t, metrics, `relevo_held_keys{pipeline="orders",sink="nats"} 1`)

	s.othersFlow(l, key)
	after := memory(t, h.pid(), pids.Source.PID, pids.Sinks[0].PID)
	for i, name := range []string{"host", "source", "sink"} {
		t.Logf("memory of the %s: %d MiB before, %d MiB with the key held", name, before[i]>>20, after[i]>>20)
		require.Less(t, after[i]-before[i], growth, "the %s grows", name)
	}
	require.Equal(t, behind+1, s.rows("aggregate_id = 5000"), "nothing of the key has left the outbox")

	s.limit(-1)
	eventually(t, "the rows of the key follow", retried, func() bool { return s.rows("aggregate_id = 5000") == 0 })
	l.stop()
	s.awaitEmpty()
	h.running()
	h.stop()
	require.LessOrEqual(t, c.verdict().repeats, 0)
}

// othersFlow watches the rows of all keys but the poisoned ones for a while: none gets old.
func (s *system) othersFlow(l *load, poisoned int64) {
	s.t.Helper()
	old := fmt.Sprintf("coalesce(aggregate_id, 0) < %d and created_at < now() - interval '%d seconds'", poisoned, int(fresh.Seconds()))
	for range 5 {
		l.awaitCommitted(400)
		require.Zero(s.t, s.rows(old), "rows of healthy keys wait")
	}
}

// Nine keys of ten are refused for good. The tenth flows.
func TestMostKeysPoisoned(t *testing.T) {
	t.Parallel()
	takePlace(t)
	const first, poisoned, behind = 10_000, 900, 5
	s := newSystem(t, parts{})
	s.pipe["delivery"].(conf)["max_in_flight"] = conf{"events": 2000} // at most 1000 keys are held
	s.limit(small)
	c, l := s.consume(), s.load(loadConfig{keys: 100, small: true})
	h := s.start(launch{})
	pids := h.running()
	before := memory(t, h.pid(), pids.Source.PID, pids.Sinks[0].PID)
	s.poison(first, poisoned, large, behind)
	st := h.until("the keys are held", func(s pipeline.Status) bool { return s.HeldKeys == poisoned })
	require.Equal(t, pipeline.Running, st.State)
	require.Len(t, st.Held, 100, "the API lists some")
	s.othersFlow(l, first)
	after := memory(t, h.pid(), pids.Source.PID, pids.Sinks[0].PID)
	for i, name := range []string{"host", "source", "sink"} {
		require.Less(t, after[i]-before[i], growth, "the %s grows", name)
	}
	require.Equal(t, poisoned*(behind+1), s.rows(fmt.Sprint("aggregate_id >= ", first)))

	s.limit(-1)
	eventually(t, "the rows of the keys follow", retried, func() bool { return s.rows(fmt.Sprint("aggregate_id >= ", first)) == 0 })
	l.stop()
	s.awaitEmpty()
	h.stop()
	c.verdict()
}

// memory is what each process has in RAM, in bytes.
func memory(t *testing.T, pids ...int) (all []int) {
	t.Helper()
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if os.IsNotExist(err) {
			t.Skip("no /proc on this system")
		}
		require.NoError(t, err)
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
				kib, err := strconv.Atoi(f[1])
				require.NoError(t, err)
				all = append(all, kib<<10)
			}
		}
	}
	require.Len(t, all, len(pids))
	return all
}
