package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/pgtest"
)

func TestMain(m *testing.M) {
	serveBroker()
	os.Exit(m.Run())
}

// TestFigures measures everything with sizes that say nothing, so that the programs stay alive. What it asserts is that
// each figure comes out, that its numbers can be, and that the report has them.
func TestFigures(t *testing.T) {
	pg := pgtest.Start(t, pgtest.Options{Settings: serverSettings(false)})
	b := &bench{pg: pg, progress: t.Output(), sizes: sizes{
		rounds: 1, drainRows: 2000, batchRows: 2000, serialRows: 2000, syncedRows: 200, keys: 100, payload: 500,
		rate: 200, latencyTicks: 1, memoryRows: 2000, starts: 1, small: 2000, large: 4000, watch: 200 * time.Millisecond,
	}}
	t.Cleanup(func() { require.NoError(t, b.close()) })
	require.NoError(t, b.prepare(t.Context(), options{race: raceEnabled}))

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	rep, err := b.run(ctx, figures)
	require.NoError(t, err)
	require.Len(t, rep.Results, len(figures))
	measures := map[string]*Measure{}
	for _, r := range rep.Results {
		require.NotEmpty(t, r.Measures, r.Figure)
		for _, m := range r.Measures {
			require.NotEmpty(t, m.All, "%s: %s: a goal without a number", r.Figure, m.Name)
			require.GreaterOrEqual(t, m.Min, 0.0, "%s: %s", r.Figure, m.Name)
			measures[r.Figure+": "+m.Name] = m
		}
	}
	for _, name := range []string{
		"drain: source alone / bare", "drain: pipeline to a null sink / bare", "mark: source alone / bare", "shared: 3 relays / bare", "batch: relay / bare", "batch-sync: relay / bare",
		"serial: relay / bare", "serial-sync: relay / bare", "latency: p99.9", "memory: idle: all", "memory: draining: all",
		"memory: broker down, window full: all", "start: exec to first message", "backlog: source: time, large / small",
	} {
		require.Contains(t, measures, name)
		require.Positive(t, measures[name].Median, name)
	}

	var table bytes.Buffer
	require.NoError(t, rep.print(&table))
	require.Contains(t, table.String(), "exec to first message")
	file := filepath.Join(t.TempDir(), "bench.json")
	require.NoError(t, rep.writeJSON(file))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var back Report
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, rep.Machine, back.Machine)
	require.Len(t, back.Results, len(figures))
}

func TestMeasures(t *testing.T) {
	t.Parallel()
	var r Result
	r.add("ratio", "ratio", 0.9)
	r.atLeast("ratio", 0.8)
	require.True(t, *r.Measures[0].Met)
	r.add("ratio", "ratio", 0.7, 0.6) // later rounds are judged, too
	require.Equal(t, 0.7, r.Measures[0].Median)
	require.Equal(t, 0.6, r.Measures[0].Min)
	require.Equal(t, 0.9, r.Measures[0].Max)
	require.False(t, *r.Measures[0].Met)
	r.below("ratio", 0.75)
	require.True(t, *r.Measures[0].Met)

	require.Equal(t, 1.0, quantile([]float64{1, 2, 3}, 0))
	require.Equal(t, 1.5, quantile([]float64{1, 2, 3}, 0.25))
	require.Equal(t, 3.0, quantile([]float64{1, 2, 3}, 1))
}

func TestChoose(t *testing.T) {
	t.Parallel()
	all, err := choose(nil)
	require.NoError(t, err)
	require.Len(t, all, len(figures))
	two, err := choose([]string{"start", "drain"})
	require.NoError(t, err)
	require.Equal(t, "start", two[0].name)
	require.Equal(t, "drain", two[1].name)
	_, err = choose([]string{"speed"})
	require.ErrorContains(t, err, "drain, mark")
}
