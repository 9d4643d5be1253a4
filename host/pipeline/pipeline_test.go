package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/config"
	"github.com/relevo-io/relevo/host/destination"
	"github.com/relevo-io/relevo/host/plugin"
	"github.com/relevo-io/relevo/host/state"
	"github.com/relevo-io/relevo/host/telemetry"
)

const patience = 30 * time.Second // for what takes milliseconds on a quiet machine

type conf map[string]any

// rig is a pipeline of null plugins, in real processes.
type rig struct {
	t       testing.TB
	dir     string
	conf    *config.Pipeline
	records []string // per sink
	db      *state.DB
	p       *Pipeline
	cancel  context.CancelFunc
	done    chan error
}

func newRig(t testing.TB, source conf, sinks ...conf) *rig {
	dir, err := os.MkdirTemp("", "rig")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &rig{t: t, dir: dir}
	to, err := destination.Parse("out")
	require.NoError(t, err)
	r.conf = &config.Pipeline{
		Name: "test", Source: r.plugin(plugin.KindSource, source),
		Delivery: config.Delivery{MaxInFlightEvents: 1000, MaxInFlightBytes: 64 << 20, DrainTimeout: 10 * time.Second, StallAfter: time.Minute},
		Errors:   config.Errors{Permanent: config.Block, RetryInitial: 20 * time.Millisecond, RetryMax: 200 * time.Millisecond},
	}
	for i, c := range sinks {
		rec := filepath.Join(dir, fmt.Sprintf("sink%d", i))
		if _, ok := c["record"]; !ok {
			c["record"] = rec
		}
		r.records = append(r.records, rec)
		r.conf.Sinks = append(r.conf.Sinks, config.Sink{Plugin: r.plugin(plugin.KindSink, c), Name: fmt.Sprintf("sink%d", i), To: to})
	}
	return r
}

func (r *rig) plugin(kind plugin.Kind, c conf) config.Plugin {
	path := filepath.Join(pluginDir, string(kind)+"-null")
	d, err := plugin.Describe(context.Background(), path)
	require.NoError(r.t, err)
	b, err := json.Marshal(c)
	require.NoError(r.t, err)
	return config.Plugin{Kind: kind, Plugin: "null", Path: path, Describe: d, Config: b, StartTimeout: patience}
}

// start runs the pipeline until stop, kill or the end of the test.
func (r *rig) start() {
	var err error
	r.db, err = state.Open(context.Background(), filepath.Join(r.dir, "relevo.db"))
	require.NoError(r.t, err)
	level := slog.LevelError + 4
	if os.Getenv("RELEVO_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.done = make(chan error, 1)
	p := New(Settings{
		Config: r.conf, State: r.db, HostID: r.db.HostID(), RuntimeDir: r.dir,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})), Metrics: telemetry.NewMetrics().Pipeline("test"),
	})
	r.p = p
	done := r.done
	go func() { done <- p.Run(ctx) }()
	r.t.Cleanup(func() { r.abort() })
}

// drain ends the pipeline in good order.
func (r *rig) drain() error {
	r.p.Drain()
	return r.wait()
}

func (r *rig) wait() error {
	r.t.Helper()
	select {
	case err := <-r.done:
		r.cancel()
		require.NoError(r.t, r.db.Close())
		r.done = nil
		return err
	case <-time.After(patience):
		r.t.Fatal("the pipeline does not end")
		return nil
	}
}

// abort ends it at once.
func (r *rig) abort() {
	if r.done != nil {
		r.cancel()
		_ = r.wait()
	}
}

func (r *rig) until(what string, ok func(Status) bool) Status {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		s := r.p.Status()
		if ok(s) {
			return s
		}
		if time.Now().After(deadline) {
			b, _ := json.MarshalIndent(s, "", "  ")
			r.t.Fatalf("never: %s\n%s", what, b)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

type line struct{ id, key string }

// got is what a sink recorded, in the order of acceptance.
func (r *rig) got(i int) (ls []line) {
	b, err := os.ReadFile(r.records[i])
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(r.t, err)
	for _, l := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		f := strings.Fields(l)
		if len(f) == 4 {
			ls = append(ls, line{f[1], f[2]})
		}
	}
	return ls
}

// checkOrder holds the promise at the consumer: every event, first deliveries in order per key. It returns the repeats.
func (r *rig) checkOrder(i, count int, but ...string) (repeats int) {
	r.t.Helper()
	seen := map[string]bool{}
	last := map[string]int{}
	for _, l := range r.got(i) {
		if seen[l.id] {
			repeats++
			continue
		}
		seen[l.id] = true
		n := 0
		_, err := fmt.Sscan(l.id, &n)
		require.NoError(r.t, err)
		require.Greater(r.t, n, last[l.key], "sink %d: key %s out of order", i, l.key)
		last[l.key] = n
	}
	missing := 0
	for n := 1; n <= count; n++ {
		if !seen[fmt.Sprint(n)] {
			missing++
		}
	}
	require.Equal(r.t, len(but), missing, "sink %d: %d of %d events are missing", i, missing, count)
	require.LessOrEqual(r.t, len(seen), count, "invented")
	return repeats
}

func allSettled(n int) func(Status) bool {
	return func(s Status) bool {
		for _, k := range s.Sinks {
			if int(k.Settled) < n {
				return false
			}
		}
		return true
	}
}

func TestPipelineMovesEverything(t *testing.T) {
	t.Parallel()
	for name, sinks := range map[string][]conf{
		"simple": {{}}, "ordered": {{"keeps_order": true}}, "fan-out": {{}, {"keeps_order": true}, {}},
	} {
		for _, source := range []conf{{"holds_keys": true}, {"positions": true}} {
			t.Run(fmt.Sprint(name, source), func(t *testing.T) {
				t.Parallel()
				c := conf{"count": 20000, "keys": 300, "batch": 100}
				for k, v := range source {
					c[k] = v
				}
				var ks []conf
				for _, k := range sinks {
					x := conf{}
					for a, b := range k {
						x[a] = b
					}
					ks = append(ks, x)
				}
				r := newRig(t, c, ks...)
				r.start()
				r.until("all settled", allSettled(20000))
				require.NoError(t, r.drain())
				for i := range ks {
					require.Zero(t, r.checkOrder(i, 20000), "a graceful stop repeats nothing")
				}
			})
		}
	}
}

func TestGracefulRestartRepeatsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, conf{"count": 30000, "keys": 200, "batch": 50, "rate": 20000, "positions": true}, conf{}, conf{"keeps_order": true})
	for range 4 {
		r.start()
		r.until("some settled", func(s Status) bool { return s.Sinks[0].Settled > 1000 })
		require.NoError(t, r.drain())
	}
	r.start()
	r.until("position at the end", func(s Status) bool { return s.Source.Position == "30000" })
	require.NoError(t, r.drain())
	for i := range 2 {
		require.Zero(t, r.checkOrder(i, 30000))
	}
}

// A sink killed: its events come again, in order, and the source process goes on undisturbed.
func TestSinkKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t, conf{"count": 60000, "keys": 100, "batch": 100, "rate": 20000, "positions": true}, conf{"keeps_order": true}, conf{})
	r.start()
	s := r.until("both run", func(s Status) bool { return s.Sinks[0].Settled > 2000 && s.Sinks[1].Settled > 2000 })
	source := s.Source.PID
	for i := range 2 {
		victim := r.p.Status().Sinks[i].PID
		require.NotZero(t, victim)
		require.NoError(t, syscall.Kill(victim, syscall.SIGKILL))
		r.until("another process", func(s Status) bool { return s.Sinks[i].PID != victim && s.Sinks[i].PID != 0 && s.State == Running })
	}
	r.until("the end", func(s Status) bool { return s.Source.Position == "60000" })
	require.Equal(t, source, r.p.Status().Source.PID, "the source is not disturbed")
	require.NoError(t, r.drain())
	for i := range 2 {
		require.LessOrEqual(t, r.checkOrder(i, 60000), 1000, "at most a window is repeated")
	}
}

func TestSourceKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t, conf{"count": 40000, "keys": 100, "batch": 100, "rate": 20000, "positions": true}, conf{"keeps_order": true}, conf{})
	r.start()
	for range 3 {
		at := r.p.Status().Sinks[0].Settled
		s := r.until("progress", func(s Status) bool { return s.Sinks[0].Settled > at+2000 && s.State == Running && s.Source.PID != 0 })
		require.NoError(t, syscall.Kill(s.Source.PID, syscall.SIGKILL))
		r.until("another process", func(x Status) bool { return x.Source.PID != s.Source.PID && x.Source.PID != 0 })
	}
	r.until("the end", func(s Status) bool { return s.Source.Position == "40000" })
	require.NoError(t, r.drain())
	for i := range 2 {
		require.LessOrEqual(t, r.checkOrder(i, 40000), 3000)
	}
}

// I11: a refused event holds its own key and nothing else; when the cause is mended, its key follows in order.
func TestPoisonKeyHoldsItselfOnly(t *testing.T) {
	t.Parallel()
	for name, sink := range map[string]conf{"simple": {}, "ordered": {"keeps_order": true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sink["fail_keys"], sink["fail_class"] = []string{"key-7"}, "transient"
			r := newRig(t, conf{"count": 30000, "keys": 20, "batch": 100, "holds_keys": true}, sink)
			sink["fail_until"] = filepath.Join(r.dir, "mended")
			r.conf.Sinks[0].Plugin = r.plugin(plugin.KindSink, sink)
			r.start()
			r.until("the others are through", allSettled(30000-1500))
			s := r.until("the key is held", func(s Status) bool { return s.HeldKeys == 1 })
			require.Equal(t, Running, s.State)
			require.Len(t, s.Held, 1)
			require.Equal(t, "key-7", s.Held[0].Key)
			require.Equal(t, "7", s.Held[0].EventID)
			require.True(t, s.Held[0].Held)
			require.LessOrEqual(t, s.InFlightEvents, 1)
			require.NoError(t, os.WriteFile(filepath.Join(r.dir, "mended"), nil, 0o600))
			r.until("its rows follow", allSettled(30000))
			require.NoError(t, r.drain())
			require.Zero(t, r.checkOrder(0, 30000))
		})
	}
}

// A source that cannot hold keys stands one window behind its poison event, visibly, and a restart repeats no more.
func TestPoisonKeyOfALog(t *testing.T) {
	t.Parallel()
	sink := conf{"fail_keys": []string{"key-7"}, "fail_class": "transient"}
	r := newRig(t, conf{"count": 30000, "keys": 20, "batch": 100, "positions": true}, sink)
	sink["fail_until"] = filepath.Join(r.dir, "mended")
	r.conf.Sinks[0].Plugin = r.plugin(plugin.KindSink, sink)
	for range 2 {
		r.start()
		s := r.until("blocked", func(s Status) bool { return s.State == Blocked })
		require.Contains(t, s.Reason, "hold the source at its window")
		require.NoError(t, r.drain())
	}
	require.LessOrEqual(t, len(r.got(0)), 2*1000)
	r.start()
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "mended"), nil, 0o600))
	r.until("the end", func(s Status) bool { return s.Source.Position == "30000" })
	require.NoError(t, r.drain())
	require.LessOrEqual(t, r.checkOrder(0, 30000), 2*1000)
}

// A discard is remembered: the event does not come back after a restart, although its broker would take it then.
func TestDiscardIsRemembered(t *testing.T) {
	t.Parallel()
	sink := conf{"fail_ids": []string{"7"}, "fail_class": "permanent"}
	r := newRig(t, conf{"count": 200, "keys": 20, "batch": 10, "holds_keys": true}, sink)
	r.conf.Errors.Permanent = config.Discard
	r.start()
	r.until("the rest", allSettled(199))
	require.NoError(t, r.drain())
	r.checkOrder(0, 200, "7")
	delete(sink, "fail_ids")
	r.conf.Sinks[0].Plugin = r.plugin(plugin.KindSink, sink)
	r.start() // this source has no positions: it starts from event 1
	r.until("the rest again", allSettled(199))
	require.NoError(t, r.drain())
	require.Equal(t, 199, r.checkOrder(0, 200, "7"))
}

func TestRejectedRow(t *testing.T) {
	t.Parallel()
	r := newRig(t, conf{"count": 2000, "keys": 50, "batch": 100, "holds_keys": true, "reject_every": 1500}, conf{})
	r.start()
	s := r.until("the row is shown", func(s Status) bool { return len(s.Held) == 1 && int(s.Sinks[0].Settled) >= 2000-40 })
	require.Equal(t, "permanent", s.Held[0].Class)
	require.NoError(t, r.drain())
}

func TestEventThatKillsTheSink(t *testing.T) {
	t.Parallel()
	r := newRig(t, conf{"count": 2000, "keys": 50, "batch": 100, "holds_keys": true}, conf{"crash_on_id": "77"})
	r.start()
	s := r.until("it is found", func(s Status) bool { return len(s.Held) > 0 && s.Held[0].Code == "crashes_sink" })
	require.Equal(t, "77", s.Held[0].EventID)
	r.until("the others go on", func(s Status) bool { return int(s.Sinks[0].Settled) >= 2000-40 })
	r.abort()
}

func TestFaultsAtOpen(t *testing.T) {
	t.Parallel()
	for class, want := range map[string]State{"config": Misconfigured, "transient": Retrying, "permanent": Failed} {
		t.Run("sink "+class, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, conf{"count": 10}, conf{"open_fault": class})
			r.start()
			s := r.until("the state", func(s Status) bool { return s.State == want })
			require.Contains(t, s.Reason, "sink0")
			require.NoError(t, r.drain())
		})
		t.Run("source "+class, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, conf{"count": 10, "open_fault": class}, conf{})
			r.start()
			s := r.until("the state", func(s Status) bool { return s.State == want })
			require.Contains(t, s.Reason, "source")
			require.NoError(t, r.drain())
		})
	}
}

func TestBrokerDownAndBack(t *testing.T) {
	t.Parallel()
	sink := conf{"keeps_order": true}
	r := newRig(t, conf{"count": 5000, "keys": 50, "holds_keys": true}, sink, conf{})
	sink["down_until"] = filepath.Join(r.dir, "up")
	r.conf.Sinks[0].Plugin = r.plugin(plugin.KindSink, sink)
	r.start()
	r.until("retrying", func(s Status) bool { return s.State == Retrying })
	s := r.until("the healthy sink goes on up to the window", func(s Status) bool { return s.Sinks[1].Settled == 1000 })
	require.Equal(t, uint64(0), s.Sinks[0].Settled)
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "up"), nil, 0o600))
	r.until("the end", allSettled(5000))
	require.NoError(t, r.drain())
	for i := range 2 {
		require.Zero(t, r.checkOrder(i, 5000))
	}
}

// Each kind of stall: the watchdog names the culprit.
func TestWatchdogNamesTheCulprit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		source, sink conf
		stop         string // whose process is stopped
		want         string
	}{
		"sink does not answer":           {conf{"count": 5000}, conf{"hang_after": 100}, "", "sink sink0 has not answered for event"},
		"sink that keeps order does not": {conf{"count": 5000}, conf{"hang_after": 100, "keeps_order": true}, "", "sink sink0 has not answered for event"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.source, c.sink)
			r.conf.Delivery.StallAfter = time.Second
			r.start()
			s := r.until("stalled", func(s Status) bool { return s.State == Stalled })
			require.Contains(t, s.Reason, c.want)
			r.abort()
		})
	}
}

// A hung drain ends at its time-out, and says so.
func TestHungDrain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string][2]conf{
		"sink":   {conf{"count": 100}, conf{"hang_on_stop": true}},
		"source": {conf{"count": 100, "hang_on_stop": true}, conf{}},
		"events": {conf{"count": 100}, conf{"hang_after": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c[0], c[1])
			r.conf.Delivery.DrainTimeout = time.Second
			r.start()
			r.until("something is read", func(s Status) bool { return s.Source.EventsRead > 0 })
			start := time.Now()
			require.ErrorIs(t, r.drain(), ErrDrainTimeout)
			require.Less(t, time.Since(start), 1*time.Second+closeTimeout+5*time.Second)
		})
	}
}

// A source that dies before it has answered Stop is not waited for: the drain ends at once, and says that it is not whole.
func TestSourceDiesInTheDrain(t *testing.T) {
	t.Parallel()
	r := newRig(t, conf{"count": 100, "hang_on_stop": true}, conf{})
	r.conf.Delivery.DrainTimeout = time.Hour
	r.start()
	s := r.until("all settled", allSettled(100))
	r.p.Drain()
	r.until("draining", func(s Status) bool { return s.State == Draining })
	require.NoError(t, syscall.Kill(s.Source.PID, syscall.SIGKILL))
	require.ErrorIs(t, r.wait(), ErrDrainBroken)
}

func TestAbortIsFast(t *testing.T) {
	t.Parallel()
	r := newRig(t, conf{}, conf{"record": ""})
	r.start()
	r.until("under load", allSettled(5000))
	start := time.Now()
	r.cancel()
	require.ErrorIs(t, r.wait(), context.Canceled)
	require.Less(t, time.Since(start), 10*time.Second)
}
