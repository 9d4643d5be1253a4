package telemetry

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of the histograms' buckets.
var (
	batchBounds  = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000}
	settleBounds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
)

// maxRestartSeries is how many pairs of plugin and reason a pipeline shows; the rest counts as reason "other".
const maxRestartSeries = 50

// Pipeline is the metrics of one pipeline. Its methods may be called from several goroutines; Read, Acked, InFlight,
// BatchEvents and Settled are meant to be called for every batch.
type Pipeline struct {
	metrics *Metrics
	name    string

	eventsRead     atomic.Uint64
	bytesRead      atomic.Uint64
	eventsAcked    atomic.Uint64
	inFlightEvents atomic.Int64
	inFlightBytes  atomic.Int64
	windowEvents   atomic.Int64
	windowBytes    atomic.Int64
	batchEvents    histogram
	settleSeconds  histogram

	mu       sync.Mutex
	waiting  Waiting
	state    string
	states   []string
	stalled  string // "": it is not
	restarts labelled
	plugins  map[string][]pluginMetric // by instance
	sinks    map[string]*Sink
}

func newPipeline(m *Metrics, name string) *Pipeline {
	return &Pipeline{
		metrics:       m,
		name:          name,
		batchEvents:   newHistogram(batchBounds),
		settleSeconds: newHistogram(settleBounds),
		restarts:      labelled{max: maxRestartSeries},
		plugins:       map[string][]pluginMetric{},
		sinks:         map[string]*Sink{},
	}
}

// Read counts events, and their bytes, received from the source.
func (p *Pipeline) Read(events, bytes int) {
	p.eventsRead.Add(uint64(events))
	p.bytesRead.Add(uint64(bytes))
}

// Acked counts events acked to the source.
func (p *Pipeline) Acked(events int) { p.eventsAcked.Add(uint64(events)) }

// InFlight sets what the window holds now.
func (p *Pipeline) InFlight(events, bytes int) {
	p.inFlightEvents.Store(int64(events))
	p.inFlightBytes.Store(int64(bytes))
}

// Window sets the limits of what the window may hold.
func (p *Pipeline) Window(events, bytes int) {
	p.windowEvents.Store(int64(events))
	p.windowBytes.Store(int64(bytes))
}

// BatchEvents observes the size of a batch from the source.
func (p *Pipeline) BatchEvents(n int) { p.batchEvents.observe(float64(n), 1) }

// Settled observes the time from the host's receipt of n events to their being settled at every sink. All n count in
// the histogram, at the cost of one.
func (p *Pipeline) Settled(d time.Duration, n int) { p.settleSeconds.observe(d.Seconds(), uint64(n)) }

// Waiting is what waits upstream, as the source reports it. Of what is nil, unknown, there is no series, rather than one
// that looks healthy.
type Waiting struct {
	OldestSeconds *float64
	LagBytes      *uint64
	Events        *uint64
}

// Waiting replaces what is known of what waits upstream. What w points at must not change any more.
func (p *Pipeline) Waiting(w Waiting) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = w
}

// State sets the pipeline's state; all lists every possible one, each of which has a series.
func (p *Pipeline) State(current string, all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.states = current, slices.Clone(all)
}

// Stalled says what holds a stall: the kind of culprit ("source", "sink kafka"), never a key. "" ends it.
func (p *Pipeline) Stalled(culprit string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = culprit
}

// Restart counts a start of a plugin after its first.
func (p *Pipeline) Restart(plugin, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.restarts.add(plugin, labelValue(reason), 1)
}

// PluginMetrics replaces the numbers of a plugin instance's own; none removes them. The first 64 by name are shown.
func (p *Pipeline) PluginMetrics(instance string, metrics map[string]float64) {
	shown := pluginMetrics(metrics)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(shown) == 0 {
		delete(p.plugins, instance)
		return
	}
	p.plugins[instance] = shown
}

// Sink returns the metrics of the sink with this name, new at the first call. Keep it: the call takes a lock.
func (p *Pipeline) Sink(name string) *Sink {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.sinks[name]
	if !ok {
		s = newSink(name)
		p.sinks[name] = s
	}
	return s
}

// Remove takes the pipeline's series away, for one that is no longer configured. Calls that still come are harmless
// and show nowhere.
func (p *Pipeline) Remove() { p.metrics.remove(p) }
