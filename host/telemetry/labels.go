package telemetry

import (
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// other stands for the values beyond a limit.
	other = "other"
	// unknown stands for an empty value.
	unknown = "unknown"
	// maxLabelBytes is how long a label value may get that a plugin has chosen.
	maxLabelBytes = 64
	// maxPluginMetrics is how many metrics of its own a plugin instance may show.
	maxPluginMetrics = 64
	// maxMetricName is how long the name of one may get.
	maxMetricName = 128
)

// labelled counts by two label values: a, of which there are few because the host or its configuration chooses it, and
// b, which may be anything and is limited. Whoever has it guards it.
type labelled struct {
	max    int
	counts map[[2]string]uint64
}

// add counts n for the pair, or for (a, "other") when the limit is reached.
func (l *labelled) add(a, b string, n uint64) {
	if l.counts == nil {
		l.counts = map[[2]string]uint64{}
	}
	a = labelValue(a)
	if _, ok := l.counts[[2]string{a, b}]; !ok && len(l.counts) >= l.max {
		b = other
	}
	l.counts[[2]string{a, b}] += n
}

// labelValue makes a label value of text that a plugin has chosen: valid UTF-8, without control characters, short.
func labelValue(s string) string {
	if s == "" {
		return unknown
	}
	if len(s) > maxLabelBytes {
		s = s[:maxLabelBytes]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '�' {
			return '_'
		}
		return r
	}, s)
}

// pluginMetric is one number of a plugin's own.
type pluginMetric struct {
	desc  *prometheus.Desc
	value float64
}

// pluginMetrics names the numbers as Prometheus wants it. Of two that get the same name the first stays, since a
// series that is there twice would spoil the whole scrape. The label is not called instance, which is Prometheus's own for
// what it scrapes.
func pluginMetrics(metrics map[string]float64) []pluginMetric {
	var shown []pluginMetric
	names := map[string]bool{}
	for _, raw := range slices.Sorted(maps.Keys(metrics)) {
		name := metricName(raw)
		if names[name] {
			continue
		}
		if len(shown) == maxPluginMetrics {
			break
		}
		names[name] = true
		shown = append(shown, pluginMetric{
			desc:  desc("plugin_"+name, "A number of the plugin's own; its documentation explains it.", "plugin_instance"),
			value: metrics[raw],
		})
	}
	return shown
}

// metricName keeps letters, digits and underscores.
func metricName(s string) string {
	if s == "" {
		return unknown
	}
	if len(s) > maxMetricName {
		s = s[:maxMetricName]
	}
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '_':
			return r
		case 'A' <= r && r <= 'Z':
			return r + ('a' - 'A')
		}
		return '_'
	}, s)
}
