package conformance_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/conformance"
	"github.com/relevo-io/relevo/sdk/sdktest"
)

// outcomes runs the suite and returns its results by name.
func outcomes(t *testing.T, exe string, s conformance.Spec) map[string]conformance.Result {
	t.Helper()
	results := map[string]conformance.Result{}
	err := conformance.Run(t.Context(), conformance.Target{Path: exe, Spec: &s}, func(r conformance.Result) {
		t.Logf("%-22s %-8s %v %s", r.Name, r.Outcome, r.Took, r.Detail)
		require.NotContains(t, results, r.Name)
		require.NotEmpty(t, r.Rule)
		results[r.Name] = r
	})
	require.NoError(t, err)
	return results
}

// requireOutcomes demands a pass of every check but those named.
func requireOutcomes(t *testing.T, got map[string]conformance.Result, but map[string]conformance.Outcome) {
	t.Helper()
	for name, r := range got {
		want, ok := but[name]
		if !ok {
			want = conformance.Pass
		}
		require.Equal(t, want, r.Outcome, "%s: %s", name, r.Detail)
	}
	for name := range but {
		require.Contains(t, got, name)
	}
}

var nullSink = conformance.Spec{Destination: "orders", Refused: &conformance.EventSpec{ID: "refused"}}

func TestNullSinkKeepsTheRules(t *testing.T) {
	t.Parallel()
	exe := sdktest.Build(t, "github.com/relevo-io/relevo/test/plugins/nullsink")
	for _, keepsOrder := range []bool{false, true} {
		t.Run(fmt.Sprint("keeps_order=", keepsOrder), func(t *testing.T) {
			t.Parallel()
			s := nullSink
			s.Config = map[string]any{"keeps_order": keepsOrder, "fail_ids": []string{"refused"}}
			not := map[string]conformance.Outcome{"broker-away": conformance.NotRun}
			if !keepsOrder {
				not["order-per-key"] = conformance.NotRun
			}
			requireOutcomes(t, outcomes(t, exe, s), not)
		})
	}
}

func TestNullSourceKeepsTheRules(t *testing.T) {
	t.Parallel()
	exe := sdktest.Build(t, "github.com/relevo-io/relevo/test/plugins/nullsource")
	for name, c := range map[string]struct {
		config map[string]any
		but    map[string]conformance.Outcome
	}{
		"positions": {
			map[string]any{"positions": true, "keys": 6, "batch": 7},
			map[string]conformance.Outcome{"hold": conformance.NotRun, "held-from-the-start": conformance.NotRun},
		},
		// Without a database it knows what was acked only as long as it lives, and that is found.
		"holds keys": {
			map[string]any{"holds_keys": true, "keys": 6, "batch": 7},
			map[string]conformance.Outcome{"position": conformance.NotRun, "acks-last": conformance.Fail},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireOutcomes(t, outcomes(t, exe, conformance.Spec{Config: c.config}), c.but)
		})
	}
}
