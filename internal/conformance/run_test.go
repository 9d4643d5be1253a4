package conformance_test

import (
	"strings"
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
	but  but
}

// but is what should not pass.
type but map[string]conformance.Outcome

// lacking are checks that can't be made.
func lacking(checks ...string) but {
	b := but{}
	for _, c := range checks {
		b[c] = conformance.NotRun
	}
	return b
}

func (b but) and(check string, o conformance.Outcome) but {
	b[check] = o
	return b
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
	subjects := map[string]subject{
		"sink that keeps order": {nullsink, sink(true), lacking("broker-away", "acked-is-published", "order-at-target", "refused-at-target", "check-unreachable", "unreachable")},
		"simple sink":           {nullsink, sink(false), lacking("broker-away", "order-per-key", "acked-is-published", "order-at-target", "refused-at-target", "check-unreachable", "unreachable")},
		"source with positions": {
			nullsource,
			conformance.Spec{Config: map[string]any{"positions": true, "keys": 6, "batch": 7}},
			lacking("hold", "held-from-the-start", "hold-by-id", "progress", "rejected-rows", "check-unreachable", "unreachable"),
		},
		"source that holds keys": {
			nullsource,
			conformance.Spec{Config: map[string]any{"holds_keys": true, "keys": 6, "batch": 7}},
			// Without a database it knows what was acked only as long as it lives. That is found.
			lacking("position", "progress", "hold-by-id", "rejected-rows", "check-unreachable", "unreachable").and("acks-last", conformance.Fail),
		},
		"source that rejects": {
			nullsource,
			conformance.Spec{Config: map[string]any{"positions": true, "keys": 6, "batch": 7, "reject_every": 7}},
			lacking("hold", "held-from-the-start", "hold-by-id", "progress", "check-unreachable", "unreachable"),
		},
		"source without keys": {
			nullsource,
			conformance.Spec{Config: map[string]any{"holds_keys": true, "keys": 0, "batch": 7}},
			lacking("position", "progress", "hold", "held-from-the-start", "rejected-rows", "check-unreachable", "unreachable").and("acks-last", conformance.Fail),
		},
		"sink without SDK":           {broken, brokenSink(t, ""), but{}},
		"sink that fails while down": {broken, brokenSink(t, "fails-while-down"), but{}},
		"source without SDK":         {broken, brokenSource(t, broken, ""), lacking("position", "progress")},
		"log without SDK":            {broken, brokenLog(t, broken, ""), lacking("hold", "held-from-the-start", "hold-by-id")},
		"nothing known": {nullsource, conformance.Spec{Config: map[string]any{"count": 1}}, lacking(
			"reads-events", "window", "byte-window", "window-grows", "slow-host", "acks-last", "nothing-forgotten", "redelivery", "position", "progress",
			"rejected-rows", "hold", "held-from-the-start", "hold-by-id", "check-changes-nothing", "check-unreachable", "unreachable",
		)},
	}
	results := runAll(t, subjects, func(s subject) conformance.Target { return conformance.Target{Path: s.exe, Spec: &s.spec} })
	for name, s := range subjects {
		t.Run(name, func(t *testing.T) {
			seen := map[string]bool{}
			for _, r := range results[name] {
				t.Logf("%-22s %-8s %v %s", r.Name, r.Outcome, r.Took, r.Text())
				require.False(t, seen[r.Name], "%s was reported twice", r.Name)
				seen[r.Name] = true
				require.NotEmpty(t, r.Rule)
				want, ok := s.but[r.Name]
				if !ok {
					want = conformance.Pass
				}
				require.Equal(t, want, r.Outcome, "%s: %s", r.Name, r.Text())
				switch want {
				case conformance.Pass:
					require.NotEmpty(t, r.Tried)
					require.NotEmpty(t, r.Seen)
					require.NotContains(t, r.Text(), "\n")
				case conformance.NotRun:
					require.NotEmpty(t, r.Missing)
					if !strings.HasPrefix(r.Missing, "does not apply: ") {
						require.NotEmpty(t, r.Needs)
					}
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
	const atOnce = 12 // they wait for most of the time
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
