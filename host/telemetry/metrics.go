// Package telemetry makes the host's logger and its metrics; nothing else creates either.
//
// The figures are kept by the pipelines themselves, in atomics that cost a few nanoseconds a batch, and put into
// Prometheus's form when somebody scrapes. Label values that come from plugins are cleaned and limited in number (I10),
// and a key never is one.
package telemetry

import (
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// maxScrapes is how many scrapes are answered at once: a few Prometheus servers and a person.
const maxScrapes = 8

// Metrics holds the metrics of a host, in a registry of its own. Its methods may be called from several goroutines.
type Metrics struct {
	registry *prometheus.Registry

	mu        sync.Mutex
	pipelines map[string]*Pipeline
}

// NewMetrics returns the metrics of the process and the Go runtime, to which the pipelines add theirs.
func NewMetrics() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), pipelines: map[string]*Pipeline{}}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
		collector{m},
	)
	return m
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		// Were one series unfit to print, the others are still wanted.
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes,
	})
}

// Pipeline returns the metrics of the pipeline with this name, new at the first call. A pipeline that is started again
// goes on counting where it was.
func (m *Metrics) Pipeline(name string) *Pipeline {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.pipelines[name]
	if !ok {
		p = newPipeline(m, name)
		m.pipelines[name] = p
	}
	return p
}

func (m *Metrics) remove(p *Pipeline) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pipelines[p.name] == p {
		delete(m.pipelines, p.name)
	}
}

func (m *Metrics) all() []*Pipeline {
	m.mu.Lock()
	defer m.mu.Unlock()
	ps := make([]*Pipeline, 0, len(m.pipelines))
	for _, p := range m.pipelines {
		ps = append(ps, p)
	}
	return ps
}

// collector shows the pipelines to Prometheus. It describes nothing beforehand, since the names of the plugins' own
// metrics are not known then.
type collector struct{ m *Metrics }

func (c collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, p := range c.m.all() {
		for _, s := range p.snapshot() {
			ch <- s
		}
	}
}
