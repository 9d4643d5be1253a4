package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
)

// The metrics, as pipelines.md and the operating manual name them.
var (
	descEventsRead     = desc("events_read_total", "Events received from the source.")
	descBytesRead      = desc("bytes_read_total", "Bytes of the events received from the source.")
	descEventsSettled  = desc("events_settled_total", "Events settled at a sink, by outcome: acked, discarded, filtered.", "sink", "outcome")
	descEventsAcked    = desc("events_acked_total", "Events acked to the source: settled at every sink.")
	descInFlightEvents = desc("in_flight_events", "Events in the window: read, and neither settled and released upstream nor returned.")
	descInFlightBytes  = desc("in_flight_bytes", "Bytes of the events in the window.")
	descWindowEvents   = desc("window_events", "How many events the window may hold: delivery.max_in_flight.events.")
	descWindowBytes    = desc("window_bytes", "How many bytes the window may hold: delivery.max_in_flight.bytes.")
	descOldest         = desc("oldest_unpublished_seconds", "Age of the oldest event that is not published. Absent while unknown.")
	descLagBytes       = desc("lag_bytes", "How far the source is behind the end of the log that it reads. Absent while unknown.")
	descBacklog        = desc("backlog_events", "How many events wait upstream, as the source estimates. Absent while unknown.")
	descFailures       = desc("failures_total", "Events that a sink refused, by class and code.", "sink", "class", "code")
	descRetries        = desc("retries_total", "Events offered to a sink again.", "sink")
	descHeldKeys       = desc("held_keys", "Keys that wait behind a failed event.", "sink")
	descRestarts       = desc("plugin_restarts_total", "Starts of a plugin after its first, by reason.", "plugin", "reason")
	descBatchEvents    = desc("batch_events", "Events in a batch from the source.")
	descSettleSeconds  = desc("settle_seconds", "Time from the host's receipt of an event to its being settled at every sink.")
	descState          = desc("pipeline_state", "1 for the state that the pipeline is in, 0 for the others.", "state")
	descStalled        = desc("stalled", "1 while nothing settles though work is pending, with what holds it. Absent otherwise.", "culprit")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("relevo_"+name, help, append([]string{"pipeline"}, labels...), nil)
}

// snapshot returns the pipeline's metrics as they are now.
func (p *Pipeline) snapshot() []prometheus.Metric {
	s := series{pipeline: p.name}
	s.counter(descEventsRead, p.eventsRead.Load())
	s.counter(descBytesRead, p.bytesRead.Load())
	s.counter(descEventsAcked, p.eventsAcked.Load())
	s.gauge(descInFlightEvents, float64(p.inFlightEvents.Load()))
	s.gauge(descInFlightBytes, float64(p.inFlightBytes.Load()))
	s.gauge(descWindowEvents, float64(p.windowEvents.Load()))
	s.gauge(descWindowBytes, float64(p.windowBytes.Load()))
	s.histogram(descBatchEvents, &p.batchEvents)
	s.histogram(descSettleSeconds, &p.settleSeconds)

	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.waiting.OldestSeconds; v != nil {
		s.gauge(descOldest, *v)
	}
	if v := p.waiting.LagBytes; v != nil {
		s.gauge(descLagBytes, float64(*v))
	}
	if v := p.waiting.Events; v != nil {
		s.gauge(descBacklog, float64(*v))
	}
	for _, state := range p.states {
		s.gauge(descState, one(state == p.state), state)
	}
	if p.stalled != "" {
		s.gauge(descStalled, 1, labelValue(p.stalled))
	}
	for labels, n := range p.restarts.counts {
		s.counter(descRestarts, n, labels[0], labels[1])
	}
	for instance, metrics := range p.plugins {
		for _, m := range metrics {
			s.add(prometheus.NewConstMetric(m.desc, prometheus.UntypedValue, m.value, p.name, instance))
		}
	}
	for _, sink := range p.sinks {
		sink.snapshot(&s)
	}
	return s.metrics
}

func (s *Sink) snapshot(out *series) {
	out.counter(descEventsSettled, s.acked.Load(), s.name, OutcomeAcked)
	out.counter(descEventsSettled, s.discarded.Load(), s.name, OutcomeDiscarded)
	out.counter(descEventsSettled, s.filtered.Load(), s.name, OutcomeFiltered)
	out.counter(descRetries, s.retries.Load(), s.name)
	out.gauge(descHeldKeys, float64(s.heldKeys.Load()), s.name)

	s.mu.Lock()
	defer s.mu.Unlock()
	for labels, n := range s.outcomes.counts {
		out.counter(descEventsSettled, n, s.name, labels[1])
	}
	for labels, n := range s.failures.counts {
		out.counter(descFailures, n, s.name, labels[0], labels[1])
	}
}

// series gathers the metrics of one pipeline.
type series struct {
	pipeline string
	metrics  []prometheus.Metric
}

func (s *series) counter(d *prometheus.Desc, n uint64, labels ...string) {
	s.add(prometheus.NewConstMetric(d, prometheus.CounterValue, float64(n), s.labels(labels)...))
}

func (s *series) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.add(prometheus.NewConstMetric(d, prometheus.GaugeValue, v, s.labels(labels)...))
}

func (s *series) histogram(d *prometheus.Desc, h *histogram) {
	count, sum, buckets := h.read()
	s.add(prometheus.NewConstHistogram(d, count, sum, buckets, s.pipeline))
}

// add leaves out what Prometheus's client would not print, which is the one thing that NewConst… reports.
func (s *series) add(m prometheus.Metric, err error) {
	if err == nil {
		s.metrics = append(s.metrics, m)
	}
}

func (s *series) labels(own []string) []string {
	return append([]string{s.pipeline}, own...)
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
