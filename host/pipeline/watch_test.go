package pipeline

import (
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/relevo-io/relevo/host/config"
	"github.com/relevo-io/relevo/host/telemetry"
	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// idle is a pipeline that has not been started, with every plugin open and well.
func idle(t *testing.T) *Pipeline {
	p := &Pipeline{set: Settings{Config: &config.Pipeline{
		Name: "test", Delivery: config.Delivery{MaxInFlightEvents: 100, MaxInFlightBytes: 1 << 20, StallAfter: time.Minute},
	}}}
	p.source = &instance{p: p, index: Source, name: "source", opened: true, state: "streaming", pid: 1, queue: newSendQueue()}
	p.sinks = []*instance{{p: p, name: "nats", opened: true, state: "ok", pid: 2, queue: newSendQueue()}}
	p.ledger = NewLedger(Rules{WindowEvents: 100, WindowBytes: 1 << 20, DownAfter: 4, Sinks: make([]SinkRules, 1)}, nil, nil)
	p.ledger.OnSinkOpened(0, true)
	p.ledger.OnSourceOpened(true, false)
	p.ledger.Take()
	p.writer = newStateWriter(p)
	p.watch.init(time.Now(), 1)
	return p
}

func (p *Pipeline) takeEvent(t *testing.T, key string) {
	var b wire.Builder
	b.Add(&wire.Event{ID: "e-" + key, Key: []byte(key)})
	require.NoError(t, p.ledger.OnBatch(parse(b.Response(p.ledger.nextSeq, nil))))
}

// Each kind of stall: the watchdog names the culprit, once it has lasted for stall_after.
func TestStallNamesTheCulprit(t *testing.T) {
	t.Parallel()
	now := time.Now()
	long := now.Add(-2 * time.Minute)
	seconds := func(f float64) *float64 { return &f }
	for name, c := range map[string]struct {
		make            func(t *testing.T, p *Pipeline)
		reason, culprit string
	}{
		"sink does not answer": {func(t *testing.T, p *Pipeline) {
			p.takeEvent(t, "k7")
			p.watch.sinkSeen[0] = sinkSeen{p.ledger.sinks[0].oldest(), long}
		}, `sink nats has not answered for event e-k7 of key "k7", for 2m0s`, "sink nats"},
		"sink does not read": {
			func(_ *testing.T, p *Pipeline) { p.sinks[0].queue.busy = long },
			"sink nats does not read its stream, for 2m0s", "sink nats",
		},
		"source does not read": {
			func(_ *testing.T, p *Pipeline) { p.source.queue.busy = long },
			"source does not read its stream, for 2m0s", "source",
		},
		"source does not answer Hold": {
			func(_ *testing.T, p *Pipeline) { p.watch.unanswered = long },
			"source has not answered Hold, for 2m0s", "source",
		},
		"source sends nothing": {
			func(_ *testing.T, p *Pipeline) { p.watch.source.oldest, p.watch.lastRead = seconds(90), long },
			"source has unpublished events, the oldest 90s old, and has sent none for 2m0s", "source",
		},
		"source says nothing": {
			func(_ *testing.T, p *Pipeline) { p.watch.source.at = long },
			"source has said nothing for 2m0s", "source",
		},
		"state database": {
			func(_ *testing.T, p *Pipeline) { p.writer.busy.Store(long.UnixNano()) },
			"the state database has not answered, for 2m0s", "state",
		},
		"sink does not open": {func(_ *testing.T, p *Pipeline) {
			p.sinks[0].opened, p.sinks[0].attempt, p.sinks[0].orderedAt = false, 1, long
		}, "nats has not opened, for 2m0s", "nats"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := idle(t)
			state, _, _ := p.judge(now)
			require.Equal(t, Running, state, "before")
			c.make(t, p)
			state, reason, culprit := p.judge(now)
			require.Equal(t, Stalled, state)
			require.Equal(t, c.reason, reason)
			require.Equal(t, c.culprit, culprit)
			state, _, _ = p.judge(now.Add(-90 * time.Second))
			require.Equal(t, Running, state, "not before stall_after")
		})
	}
}

// What explains itself is no stall.
func TestKnownTroubleIsNoStall(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		make func(p *Pipeline)
		want State
	}{
		"sink says down":     {func(p *Pipeline) { p.sinks[0].state, p.sinks[0].text = "down", "no connection" }, Retrying},
		"source connects":    {func(p *Pipeline) { p.source.state = "connecting" }, Retrying},
		"sink process gone":  {func(p *Pipeline) { p.sinks[0].opened, p.sinks[0].down = false, "process ended" }, Retrying},
		"state not writable": {func(p *Pipeline) { s := "disk full"; p.writer.err.Store(&s) }, Retrying},
		"standby": {func(p *Pipeline) {
			p.source.state, p.source.opened, p.source.attempt, p.source.orderedAt = "standby", false, 1, now.Add(-time.Hour)
			p.sinks[0].queue, p.ledger = newSendQueue(), NewLedger(p.ledger.rules, nil, nil) // nothing was ever read
		}, Standby},
		"crashed too often":   {func(p *Pipeline) { p.sinks[0].failed = true }, Failed},
		"fault of the source": {func(p *Pipeline) { p.source.fault = &pluginv1.Fault{Class: pluginv1.ErrorClass_ERROR_CLASS_PERMANENT} }, Failed},
		"misconfigured":       {func(p *Pipeline) { p.sinks[0].fault = &pluginv1.Fault{Class: pluginv1.ErrorClass_ERROR_CLASS_CONFIG} }, Misconfigured},
		"draining":            {func(p *Pipeline) { p.draining = true }, Draining},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := idle(t)
			p.takeEvent(t, "k")
			p.watch.sinkSeen[0] = sinkSeen{p.ledger.sinks[0].oldest(), now.Add(-2 * time.Minute)}
			c.make(p)
			state, _, culprit := p.judge(now)
			require.Equal(t, c.want, state)
			require.Empty(t, culprit)
		})
	}
}

// A source that lost its lock stands by: what ended its last stream is no reason any more, though it has not opened.
func TestStandbyAfterFault(t *testing.T) {
	t.Parallel()
	p := idle(t)
	p.set.Metrics, p.log = telemetry.NewMetrics().Pipeline("test"), slog.New(slog.DiscardHandler)
	n := p.source
	n.opened, n.queue, n.state, n.down = false, nil, "down", "lock lost"
	n.fault = &pluginv1.Fault{Class: pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT, Message: "lock lost"}
	now := time.Now()
	state, reason, _ := p.judge(now)
	require.Equal(t, Retrying, state)
	require.Contains(t, reason, "lock lost")
	p.sourceStatus(n, &pluginv1.SourceStatus{State: pluginv1.SourceState_SOURCE_STATE_STANDBY, Text: "another relay reads"})
	state, reason, _ = p.judge(now)
	require.Equal(t, Standby, state)
	require.Equal(t, "another relay reads", reason)
	require.Equal(t, "another relay reads", n.says())
}

// What the source says of what waits is shown until it says otherwise, or ends: its last word must not look healthy for ever.
func TestWhatWaitsIsMeasured(t *testing.T) {
	t.Parallel()
	m := telemetry.NewMetrics()
	p := idle(t)
	p.set.Metrics, p.log = m.Pipeline("test"), slog.New(slog.DiscardHandler)
	p.metricSinks = []*telemetry.Sink{p.set.Metrics.Sink("nats")}
	p.source.conf, p.source.log, p.sinks[0].conf = &config.Plugin{}, p.log, &config.Plugin{}
	waiting := func() (shown map[string]string) {
		p.observe(time.Now())
		return measured(t, m, "relevo_oldest_unpublished_seconds", "relevo_lag_bytes", "relevo_backlog_events")
	}
	require.Empty(t, waiting(), "before its first word")
	streaming := pluginv1.SourceState_SOURCE_STATE_STREAMING
	p.sourceStatus(p.source, &pluginv1.SourceStatus{
		State: streaming, OldestUnpublished: durationpb.New(1500 * time.Millisecond), LagBytes: new(uint64(4096)), Backlog: new(uint64),
	})
	require.Equal(t, map[string]string{
		"relevo_oldest_unpublished_seconds": "1.5", "relevo_lag_bytes": "4096", "relevo_backlog_events": "0",
	}, waiting())
	p.sourceStatus(p.source, &pluginv1.SourceStatus{State: streaming, LagBytes: new(uint64(8))})
	require.Equal(t, map[string]string{"relevo_lag_bytes": "8"}, waiting(), "the others are not known any more")
	own := `relevo_plugin_buckets_owned{pipeline="test",plugin_instance="source"}`
	p.sourceStatus(p.source, &pluginv1.SourceStatus{State: streaming, Metrics: []*pluginv1.Metric{{Name: "buckets_owned", Value: 32}}})
	require.Contains(t, scraped(m), own+" 32")
	p.source.streamEnded(ending{err: errors.New("killed")}, time.Second)
	require.Empty(t, waiting(), "nobody measures")
	require.NotContains(t, scraped(m), own, "it would hide that nobody has them")
	require.Nil(t, p.Status().Source.LagBytes)
}

func TestWindowIsMeasured(t *testing.T) {
	t.Parallel()
	m := telemetry.NewMetrics()
	New(Settings{Config: idle(t).set.Config, Log: slog.New(slog.DiscardHandler), Metrics: m.Pipeline("test")})
	require.Equal(t, map[string]string{"relevo_window_events": "100", "relevo_window_bytes": "1.048576e+06"},
		measured(t, m, "relevo_window_events", "relevo_window_bytes"))
}

// measured returns those of the named series of pipeline test that there are.
func measured(t *testing.T, m *telemetry.Metrics, names ...string) map[string]string {
	t.Helper()
	shown := map[string]string{}
	for line := range strings.Lines(scraped(m)) {
		for _, name := range names {
			if v, ok := strings.CutPrefix(line, name+`{pipeline="test"} `); ok {
				shown[name] = strings.TrimSpace(v)
			}
		}
	}
	return shown
}

// A sink whose process is stopped is seen as the culprit first, then as hung; it is killed, and the rest follows.
func TestStoppedSinkProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, conf{"count": 20000, "rate": 5000, "keys": 100, "batch": 50, "positions": true}, conf{"keeps_order": true})
	r.conf.Delivery.StallAfter = 2 * time.Second
	r.start()
	s := r.until("progress", func(s Status) bool { return s.Sinks[0].Settled > 1000 })
	require.NoError(t, syscall.Kill(s.Sinks[0].PID, syscall.SIGSTOP))
	stalled := r.until("stalled", func(s Status) bool { return s.State == Stalled })
	require.Contains(t, stalled.Reason, "sink sink0") // does not read its stream, or has not answered: whichever is seen first
	r.until("another process", func(x Status) bool { return x.Sinks[0].PID != s.Sinks[0].PID && x.Sinks[0].PID != 0 })
	r.until("the end", func(s Status) bool { return s.Source.Position == "20000" })
	require.NoError(t, r.drain())
	require.LessOrEqual(t, r.checkOrder(0, 20000), 1000)
}

func scraped(m *telemetry.Metrics) string {
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}
