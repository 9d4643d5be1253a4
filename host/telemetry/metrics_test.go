package telemetry

import (
	"fmt"
	"maps"
	"math"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// scrape returns the relevo_ lines of /metrics, sorted, without the buckets.
func scrape(t *testing.T, m *Metrics) []string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, w.Code, w.Body.String())
	var lines []string
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "relevo_") && !strings.Contains(line, "_bucket{") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	slices.Sort(lines)
	return lines
}

func only(lines []string, prefix string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return !strings.HasPrefix(l, prefix) })
}

func TestEveryMetric(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	p := m.Pipeline("orders")
	require.Same(t, p, m.Pipeline("orders"))
	p.Read(10, 5000)
	p.Read(1, 500)
	p.Acked(7)
	p.InFlight(4, 2000)
	p.Window(100, 1<<20)
	p.Waiting(Waiting{OldestSeconds: new(1.5), LagBytes: new(uint64(4096)), Events: new(uint64(12))})
	p.BatchEvents(10)
	p.BatchEvents(1)
	p.Settled(20*time.Millisecond, 7)
	p.State("RUNNING", []string{"STARTING", "RUNNING"})
	p.State("STARTING", []string{"STARTING", "RUNNING"})
	p.State("RUNNING", []string{"STARTING", "RUNNING"})
	p.Stalled("sink kafka")
	p.Restart("kafka", "crashed")
	p.Restart("kafka", "crashed")
	p.PluginMetrics("source", map[string]float64{"retained_wal_bytes": 1024, "lag": 2})
	s := p.Sink("kafka")
	require.Same(t, s, p.Sink("kafka"))
	s.Settled(OutcomeAcked, 6)
	s.Settled(OutcomeDiscarded, 1)
	s.Settled(OutcomeFiltered, 2)
	s.Failure("TRANSIENT", "timeout")
	s.Failure("TRANSIENT", "timeout")
	s.Failure("PERMANENT", "too_large")
	s.Retry(3)
	s.Held(2)

	require.Equal(t, []string{
		`relevo_backlog_events{pipeline="orders"} 12`,
		`relevo_batch_events_count{pipeline="orders"} 2`,
		`relevo_batch_events_sum{pipeline="orders"} 11`,
		`relevo_bytes_read_total{pipeline="orders"} 5500`,
		`relevo_events_acked_total{pipeline="orders"} 7`,
		`relevo_events_read_total{pipeline="orders"} 11`,
		`relevo_events_settled_total{outcome="acked",pipeline="orders",sink="kafka"} 6`,
		`relevo_events_settled_total{outcome="discarded",pipeline="orders",sink="kafka"} 1`,
		`relevo_events_settled_total{outcome="filtered",pipeline="orders",sink="kafka"} 2`,
		`relevo_failures_total{class="PERMANENT",code="too_large",pipeline="orders",sink="kafka"} 1`,
		`relevo_failures_total{class="TRANSIENT",code="timeout",pipeline="orders",sink="kafka"} 2`,
		`relevo_held_keys{pipeline="orders",sink="kafka"} 2`,
		`relevo_in_flight_bytes{pipeline="orders"} 2000`,
		`relevo_in_flight_events{pipeline="orders"} 4`,
		`relevo_lag_bytes{pipeline="orders"} 4096`,
		`relevo_oldest_unpublished_seconds{pipeline="orders"} 1.5`,
		`relevo_pipeline_state{pipeline="orders",state="RUNNING"} 1`,
		`relevo_pipeline_state{pipeline="orders",state="STARTING"} 0`,
		`relevo_plugin_lag{pipeline="orders",plugin_instance="source"} 2`,
		`relevo_plugin_restarts_total{pipeline="orders",plugin="kafka",reason="crashed"} 2`,
		`relevo_plugin_retained_wal_bytes{pipeline="orders",plugin_instance="source"} 1024`,
		`relevo_retries_total{pipeline="orders",sink="kafka"} 3`,
		`relevo_settle_seconds_count{pipeline="orders"} 7`,
		`relevo_settle_seconds_sum{pipeline="orders"} 0.14`,
		`relevo_stalled{culprit="sink kafka",pipeline="orders"} 1`,
		`relevo_window_bytes{pipeline="orders"} 1.048576e+06`,
		`relevo_window_events{pipeline="orders"} 100`,
	}, scrape(t, m))
}

func TestWhatIsNotKnownIsAbsent(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	p := m.Pipeline("orders")
	p.Waiting(Waiting{OldestSeconds: new(0.0), LagBytes: new(uint64), Events: new(uint64)})
	lines := scrape(t, m)
	for _, name := range []string{"oldest_unpublished_seconds", "lag_bytes", "backlog_events"} {
		require.Contains(t, lines, `relevo_`+name+`{pipeline="orders"} 0`, "nothing waits is not unknown")
	}
	p.Waiting(Waiting{LagBytes: new(uint64(7))})
	lines = scrape(t, m)
	require.Contains(t, lines, `relevo_lag_bytes{pipeline="orders"} 7`)
	require.Empty(t, only(lines, "relevo_oldest"), "each is known by itself")
	p.Waiting(Waiting{})
	p.Stalled("source")
	p.Stalled("")
	p.PluginMetrics("source", map[string]float64{"lag": 1})
	p.PluginMetrics("source", nil)
	lines = scrape(t, m)
	for _, prefix := range []string{"relevo_oldest", "relevo_lag", "relevo_backlog", "relevo_stalled", "relevo_plugin_"} {
		require.Empty(t, only(lines, prefix))
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	old := m.Pipeline("orders")
	old.Read(1, 1)
	m.Pipeline("invoices").Read(1, 1)
	old.Remove()
	old.Read(1, 1)
	for _, line := range scrape(t, m) {
		require.Contains(t, line, `pipeline="invoices"`)
	}
	again := m.Pipeline("orders")
	require.NotSame(t, old, again)
	old.Remove()
	require.Same(t, again, m.Pipeline("orders"), "only the new one's Remove removes it")
}

// I10: a plugin may put anything into a code or a metric's name; the others' metrics are still served.
func TestLabelsFromPluginsAreTamed(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	p := m.Pipeline("orders")
	s := p.Sink("kafka")
	for i := range 1000 {
		s.Failure("PERMANENT", fmt.Sprint("code-", i))
		p.Restart("kafka", fmt.Sprint("reason ", i))
	}
	s.Failure("PERMANENT", "code-3")
	lines := scrape(t, m)
	require.Len(t, only(lines, "relevo_failures_total"), maxFailureCodes+1)
	require.Contains(t, lines, `relevo_failures_total{class="PERMANENT",code="other",pipeline="orders",sink="kafka"} 950`)
	require.Contains(t, lines, `relevo_failures_total{class="PERMANENT",code="code-3",pipeline="orders",sink="kafka"} 2`)
	require.Contains(t, lines, `relevo_plugin_restarts_total{pipeline="orders",plugin="kafka",reason="other"} 950`)

	s = p.Sink("nats")
	for _, code := range []string{"", "\xff\xfe", "a\nb", strings.Repeat("x", 63) + "é", `q"\`} {
		s.Failure("PERMANENT", code)
	}
	s.Settled("else\x00", 1)
	many := map[string]float64{"": 1, "é-!": 2, "é_!": 3, "NaN": math.NaN(), "inf": math.Inf(1), strings.Repeat("y", 500): 4, "\xff": 5}
	for i := range 100 {
		many[fmt.Sprintf("z%03d", i)] = float64(i)
	}
	p.PluginMetrics("source", many)
	lines = scrape(t, m)
	require.Equal(t, []string{
		`relevo_failures_total{class="PERMANENT",code="__",pipeline="orders",sink="nats"} 1`,
		`relevo_failures_total{class="PERMANENT",code="a_b",pipeline="orders",sink="nats"} 1`,
		`relevo_failures_total{class="PERMANENT",code="q\"\\",pipeline="orders",sink="nats"} 1`,
		`relevo_failures_total{class="PERMANENT",code="unknown",pipeline="orders",sink="nats"} 1`,
		`relevo_failures_total{class="PERMANENT",code="` + strings.Repeat("x", 63) + `_",pipeline="orders",sink="nats"} 1`,
	}, slices.DeleteFunc(only(lines, "relevo_failures_total"), func(l string) bool { return strings.Contains(l, "kafka") }))
	require.Contains(t, lines, `relevo_events_settled_total{outcome="else_",pipeline="orders",sink="nats"} 1`)
	own := slices.DeleteFunc(only(lines, "relevo_plugin_"), func(l string) bool { return strings.Contains(l, "restarts") })
	require.Len(t, own, maxPluginMetrics)
	require.Contains(t, own, `relevo_plugin_nan{pipeline="orders",plugin_instance="source"} NaN`)
}

func TestHistogram(t *testing.T) {
	t.Parallel()
	h := newHistogram([]float64{1, 2, 5})
	for v, n := range map[float64]uint64{0: 1, 1: 2, 1.5: 3, 5: 4, 6: 5} {
		h.observe(v, n)
	}
	count, sum, buckets := h.read()
	require.Equal(t, uint64(15), count)
	require.InDelta(t, 0+2+4.5+20+30, sum, 1e-9)
	require.Equal(t, map[float64]uint64{1: 3, 2: 6, 5: 10}, buckets)
}

func TestScrapeWhileCounting(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			p := m.Pipeline("orders")
			for n := range 2000 {
				p.Read(1, 1)
				p.Settled(time.Millisecond, 2)
				p.Sink("kafka").Failure("TRANSIENT", "timeout")
				p.PluginMetrics(fmt.Sprint("sink", i), map[string]float64{"n": float64(n)})
				p.State("RUNNING", []string{"RUNNING"})
			}
		})
	}
	for range 20 {
		scrape(t, m)
	}
	wg.Wait()
	lines := scrape(t, m)
	require.Contains(t, lines, `relevo_events_read_total{pipeline="orders"} 8000`)
	require.Contains(t, lines, `relevo_settle_seconds_count{pipeline="orders"} 16000`)
	require.Contains(t, lines, `relevo_failures_total{class="TRANSIENT",code="timeout",pipeline="orders",sink="kafka"} 8000`)
}

func TestProcessMetricsAreThere(t *testing.T) {
	t.Parallel()
	families, err := NewMetrics().registry.Gather()
	require.NoError(t, err)
	names := map[string]bool{}
	for _, f := range families {
		names[f.GetName()] = true
	}
	for _, name := range []string{"go_goroutines", "process_start_time_seconds", "go_build_info"} {
		require.True(t, names[name], "%s not in %v", name, slices.Sorted(maps.Keys(names)))
	}
}

func BenchmarkBatch(b *testing.B) {
	p := NewMetrics().Pipeline("orders")
	s := p.Sink("kafka")
	b.ReportAllocs()
	for b.Loop() {
		p.Read(500, 250_000)
		p.BatchEvents(500)
		p.InFlight(500, 250_000)
		s.Settled(OutcomeAcked, 500)
		p.Settled(3*time.Millisecond, 500)
		p.Acked(500)
	}
}
