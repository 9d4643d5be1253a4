package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
)

// Report is everything that one run measured.
type Report struct {
	Machine Machine   `json:"machine"`
	Results []*Result `json:"results"`
}

// Machine is where it was measured.
type Machine struct {
	OS, Arch   string
	CPUs       int
	CPU        string // model
	Go         string
	PostgreSQL string
	NATS       string
	FSync      string // of PostgreSQL
	Load       string // average before the run: what else the machine was doing
}

// Result is one figure.
type Result struct {
	Figure   string     `json:"figure"`
	About    string     `json:"about"`
	Seconds  float64    `json:"seconds"`
	Measures []*Measure `json:"measures"`
}

// Measure is one number, measured once or several times.
type Measure struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	All    []float64 `json:"all"`
	Goal   string    `json:"goal,omitempty"` // what the median is to be
	Met    *bool     `json:"met,omitempty"`

	met func(median float64) bool
}

// measure finds or makes a measure by its name.
func (r *Result) measure(name, unit string) *Measure {
	for _, m := range r.Measures {
		if m.Name == name {
			return m
		}
	}
	m := &Measure{Name: name, Unit: unit}
	r.Measures = append(r.Measures, m)
	return m
}

// add adds values to a measure.
func (r *Result) add(name, unit string, values ...float64) {
	m := r.measure(name, unit)
	m.All = append(m.All, values...)
	sorted := slices.Sorted(slices.Values(m.All))
	m.Min, m.Max, m.Median = sorted[0], sorted[len(sorted)-1], quantile(sorted, 0.5)
	m.judge()
}

func (r *Result) atLeast(name string, goal float64) {
	r.goal(name, fmt.Sprintf("≥ %g", goal), func(v float64) bool { return v >= goal })
}

func (r *Result) atMost(name string, goal float64) {
	r.goal(name, fmt.Sprintf("≤ %g", goal), func(v float64) bool { return v <= goal })
}

func (r *Result) below(name string, goal float64) {
	r.goal(name, fmt.Sprintf("< %g", goal), func(v float64) bool { return v < goal })
}

func (r *Result) goal(name, text string, met func(float64) bool) {
	m := r.measure(name, "")
	m.Goal, m.met = text, met
	m.judge()
}

func (m *Measure) judge() {
	if m.met != nil {
		met := m.met(m.Median)
		m.Met = &met
	}
}

// quantile of sorted values: between two of them it is interpolated.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// print writes the table.
func (p *Report) print(w io.Writer) error {
	m := p.Machine
	fmt.Fprintf(w, "%s/%s, %d CPUs (%s), %s, PostgreSQL %s (fsync %s), nats-server %s; load before: %s\n",
		m.OS, m.Arch, m.CPUs, m.CPU, m.Go, m.PostgreSQL, m.FSync, m.NATS, m.Load)
	for _, r := range p.Results {
		fmt.Fprintf(w, "\n%s: %s\n", r.Figure, r.About)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, m := range r.Measures {
			span, verdict := "", ""
			if len(m.All) > 1 {
				span = fmt.Sprintf("%s – %s  (n=%d)", short(m.Min), short(m.Max), len(m.All))
			}
			if m.Met != nil {
				verdict = "goal " + m.Goal + ": missed"
				if *m.Met {
					verdict = "goal " + m.Goal + ": met"
				}
			}
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", m.Name, short(m.Median), m.Unit, span, verdict)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// short writes a number with as many digits as it is worth.
func short(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func (p *Report) writeJSON(path string) error {
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
