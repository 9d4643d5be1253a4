package conformance_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relevo-io/relevo/internal/conformance"
	"github.com/relevo-io/relevo/sdk/sdktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// subject is a plugin under test and what the suite should say.
type subject struct {
	exe  string
	spec conformance.Spec
	but  map[string]conformance.Outcome // what should not pass
}

// TestRightPluginsPass runs the whole suite. One check waits 15 s, so the suites run side by side, not as parallel
// subtests, of which there are no more than processors.
func TestRightPluginsPass(t *testing.T) {
	t.Parallel()
	nullsink := sdktest.Build(t, "github.com/relevo-io/relevo/test/plugins/nullsink")
	nullsource := sdktest.Build(t, "github.com/relevo-io/relevo/test/plugins/nullsource")
	broken := sdktest.Build(t, brokenPackage)
	sink := func(keepsOrder bool) conformance.Spec {
		return conformance.Spec{
			Config:      map[string]any{"keeps_order": keepsOrder, "fail_ids": []string{"refused"}},
			Destination: "orders", Refused: &conformance.EventSpec{ID: "refused"},
		}
	}
	const notRun = conformance.NotRun
	type but = map[string]conformance.Outcome
	subjects := map[string]subject{
		"sink that keeps order": {nullsink, sink(true), but{"broker-away": notRun}},
		"simple sink":           {nullsink, sink(false), but{"broker-away": notRun, "order-per-key": notRun}},
		"source with positions": {
			nullsource,
			conformance.Spec{Config: map[string]any{"positions": true, "keys": 6, "batch": 7}},
			but{"hold": notRun, "held-from-the-start": notRun},
		},
		"source that holds keys": {
			nullsource,
			conformance.Spec{Config: map[string]any{"holds_keys": true, "keys": 6, "batch": 7}},
			// Without a database it knows what was acked only as long as it lives. That is found.
			but{"position": notRun, "acks-last": conformance.Fail},
		},
		"sink without SDK":           {broken, brokenSink(t, ""), but{}},
		"sink that fails while down": {broken, brokenSink(t, "fails-while-down"), but{}},
		"source without SDK":         {broken, brokenSource(t, broken, ""), but{"position": notRun}},
		"nothing known": {nullsource, conformance.Spec{Config: map[string]any{"count": 1}}, but{
			"reads-events": notRun, "window": notRun, "byte-window": notRun, "window-grows": notRun, "slow-host": notRun, "acks-last": notRun,
			"nothing-forgotten": notRun, "redelivery": notRun, "position": notRun, "hold": notRun, "held-from-the-start": notRun,
		}},
	}
	results := runAll(t, subjects, func(s subject) conformance.Target { return conformance.Target{Path: s.exe, Spec: &s.spec} })
	for name, s := range subjects {
		t.Run(name, func(t *testing.T) {
			seen := map[string]bool{}
			for _, r := range results[name] {
				t.Logf("%-22s %-8s %v %s", r.Name, r.Outcome, r.Took, r.Detail)
				require.False(t, seen[r.Name], "%s was reported twice", r.Name)
				seen[r.Name] = true
				require.NotEmpty(t, r.Rule)
				want, ok := s.but[r.Name]
				if !ok {
					want = conformance.Pass
				}
				require.Equal(t, want, r.Outcome, "%s: %s", r.Name, r.Detail)
				if want != conformance.Pass {
					require.NotEmpty(t, r.Detail)
				}
			}
			for check := range s.but {
				require.True(t, seen[check], "%s was not made", check)
			}
			require.Greater(t, len(seen), 20)
		})
	}
}

// runAll runs suites side by side and returns their results by name.
func runAll(t *testing.T, subjects map[string]subject, target func(subject) conformance.Target) map[string][]conformance.Result {
	t.Helper()
	const atOnce = 8
	var (
		mu      sync.Mutex
		all     = map[string][]conformance.Result{}
		running sync.WaitGroup
		slots   = make(chan struct{}, atOnce)
	)
	for name, s := range subjects {
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			var results []conformance.Result
			err := conformance.Run(t.Context(), target(s), func(r conformance.Result) { results = append(results, r) })
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			all[name] = results
		})
	}
	running.Wait()
	return all
}
