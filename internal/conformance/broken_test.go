package conformance_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/conformance"
	"github.com/relevo-io/relevo/sdk/sdktest"
)

const brokenPackage = "github.com/relevo-io/relevo/test/plugins/broken"

// bug is how one is found.
type bug struct{ check, says string }

// requireFound runs, for each bug, the check that should find it, and demands that it does and says why.
func requireFound(t *testing.T, bugs map[string]bug, spec func(name string) conformance.Spec) {
	t.Helper()
	exe := sdktest.Build(t, brokenPackage)
	subjects := map[string]subject{}
	for name, b := range bugs {
		subjects[name] = subject{exe, spec(name), but{b.check: conformance.Fail}}
	}
	results := runAll(t, subjects, func(s subject) conformance.Target {
		// A bug that is a hang shows only when time is up.
		target := conformance.Target{Path: s.exe, Spec: &s.spec, CheckTimeout: 8 * time.Second, DrainTimeout: 3 * time.Second}
		for check := range s.but {
			target.Only = []string{check}
		}
		return target
	})
	for name, b := range bugs {
		t.Run(name, func(t *testing.T) {
			for _, r := range results[name] {
				if r.Name != b.check {
					continue // one that the bug breaks too
				}
				require.Equal(t, conformance.Fail, r.Outcome)
				require.Contains(t, r.Text(), b.says)
				require.NotEmpty(t, r.Tried)
				for _, part := range slices.Concat(r.Tried, r.Seen, []string{r.Rule, r.Page}) {
					require.Contains(t, strings.Join(strings.Fields(r.Text()), " "), strings.Join(strings.Fields(part), " "))
				}
				return
			}
			require.Fail(t, "the check was not made", "%v", results[name])
		})
	}
}

// brokenSink is a sink with a target that can be taken away and looked at.
func brokenSink(t *testing.T, bug string) conformance.Spec {
	t.Helper()
	target, down := filepath.Join(t.TempDir(), "target"), filepath.Join(t.TempDir(), "down")
	require.NoError(t, os.WriteFile(target, []byte("somebody else's\n"), 0o600))
	s := simpleBrokenSink(bug)
	s.Config, s.Observe, s.Unreachable = map[string]any{"target": target}, []string{"cat", target}, map[string]any{"target": "/dev/null/none"}
	s.Env["BROKEN_DOWN"], s.Break, s.Mend = down, []string{"touch", down}, []string{"rm", down}
	return s
}

func simpleBrokenSink(bug string) conformance.Spec {
	return conformance.Spec{Env: map[string]string{"BROKEN": "sink:" + bug}, Refused: &conformance.EventSpec{ID: "refused"}}
}

// brokenSource is a source that has a table of its own.
func brokenSource(t *testing.T, exe, bug string) conformance.Spec {
	t.Helper()
	file := filepath.Join(t.TempDir(), "events")
	return conformance.Spec{
		Env:         map[string]string{"BROKEN": "source:" + bug},
		Config:      map[string]any{"file": file},
		Unreachable: map[string]any{"file": "/dev/null/none"},
		Put:         []string{exe, "put", file, "{events}", "{keys}"},
		PutKeyless:  []string{exe, "put", file, "{events}", "0"},
		PutRejected: []string{exe, "put-rejected", file, "{events}", "{keys}"},
	}
}

// brokenLog is a source with positions.
func brokenLog(t *testing.T, exe, bug string) conformance.Spec {
	t.Helper()
	s := brokenSource(t, exe, bug)
	s.Env["BROKEN"] = "log:" + bug
	s.PutOther = []string{exe, "put-other", s.Config["file"].(string), "1", "1"}
	return s
}

func TestEveryBugOfASinkIsFound(t *testing.T) {
	t.Parallel()
	bugs := map[string]bug{
		"junk-before-handshake":    {"handshake", "loading..."},
		"listens-elsewhere":        {"handshake", "PLUGIN_UNIX_SOCKET_DIR"},
		"describes-otherwise":      {"describe-command", "different things"},
		"broken-schema":            {"config-schema", "no JSON Schema"},
		"takes-unknown-keys":       {"unknown-key", "it was opened"},
		"acks-before-opened":       {"opened-first", "before Opened"},
		"talks-on-stdout":          {"quiet-stdout", "serving"},
		"needs-environment":        {"bare-environment", "HOME is not set"},
		"dies-at-sigterm":          {"signals", "terminated"},
		"drops-at-sigterm":         {"signals", "every number to end"},
		"stops-at-sigterm":         {"signals", "a Stopped came without Stop"},
		"outlives-stdin":           {"stdin-eof", "still there after 2s"},
		"outlives-connection":      {"connection-lost", "still there after 5s"},
		"waits-for-ever":           {"nobody-connects", "still there"},
		"serves-one-stream":        {"second-stream", "one stream is enough"},
		"hangs-on-stop":            {"opened-first", "drain time-out"},
		"stays-after-stopped":      {"opened-first", "end of the stream after Stopped"},
		"acks-twice":               {"each-number-ends-once", "ended twice"},
		"acks-what-was-not-sent":   {"each-number-ends-once", "never sent"},
		"loses-one":                {"event-shapes", "are open, the first of them is 7"},
		"returns-without-reason":   {"each-number-ends-once", "no earlier event of that key has failed"},
		"reorders":                 {"order-per-key", "before number"},
		"chokes-on-tombstones":     {"event-shapes", "no payload"},
		"answers-while-reading":    {"slow-host", "longer than"},
		"ends-failures-twice":      {"refused-event", "ended twice"},
		"refuses-for-now":          {"refused-event", "should be PERMANENT"},
		"forgets-returned":         {"refused-event", "are open"},
		"goes-on-behind-a-failure": {"refused-event", "had failed, and before Release"},
		"fails-what-is-behind":     {"refused-event", "it is to be returned"},
		"ignores-release":          {"refused-event", "returned after Release"},
		"takes-no-key-for-a-key":   {"refused-without-key", "no earlier event"},
		"acks-while-down":          {"broker-away", "acked while the target was away"},
		"gives-up-while-down":      {"broker-away", "failed for good"},
		"forgets-while-down":       {"broker-away", "after the target is back"},
		"stops-before-the-end":     {"drain", "had not ended"},

		"acks-before-publishing":    {"acked-is-published", "acked events are not at the target"},
		"loses-quietly":             {"acked-is-published", "acked events are not at the target"},
		"publishes-in-reverse":      {"order-at-target", "which was sent first"},
		"invents":                   {"order-at-target", "which was never sent"},
		"publishes-what-it-refuses": {"refused-at-target", "which had failed"},
		"publishes-what-it-returns": {"refused-at-target", "which had been returned"},
		"reorders-what-waited":      {"broker-away", "which was sent first"},

		"check-unimplemented":         {"check-findings", "Unimplemented"},
		"check-cries-wolf":            {"check-findings", "a stream opens with this config"},
		"check-without-severity":      {"check-findings", "has the severity"},
		"check-without-code":          {"check-findings", "snake_case"},
		"check-without-message":       {"check-findings", "has no message"},
		"check-points-nowhere":        {"check-findings", "JSON pointer"},
		"check-publishes":             {"check-changes-nothing", "before Check"},
		"check-sees-nothing":          {"check-unreachable", "no finding of severity ERROR"},
		"check-fails-with-its-target": {"check-unreachable", "no gRPC error"},
		"unreachable-is-permanent":    {"unreachable", "PERMANENT is for what only a person can decide"},
		"exits-when-unreachable":      {"unreachable", "broke"},
		"takes-the-unreachable":       {"unreachable", "was acked by a sink"},
	}
	requireFound(t, bugs, func(name string) conformance.Spec { return brokenSink(t, name) })
}

func TestEveryBugOfASourceIsFound(t *testing.T) {
	t.Parallel()
	exe := sdktest.Build(t, brokenPackage)
	bugs := map[string]bug{
		"hangs-on-stop":                     {"opened-first", "drain time-out"},
		"skips-a-number":                    {"reads-events", "the next one is 1"},
		"miscounts":                         {"reads-events", "has count"},
		"makes-long-ids":                    {"reads-events", "the limit is 255"},
		"gives-positions":                   {"reads-events", "carries a position"},
		"reads-twice":                       {"reads-events", "and again as"},
		"overruns-the-window":               {"window", "the window is 10"},
		"never-makes-room":                  {"window", "after acks had made room"},
		"overruns-the-byte-window":          {"byte-window", "admits one event"},
		"ignores-a-new-window":              {"window-grows", "after the window had grown"},
		"forgets-acks":                      {"acks-last", "came again after it"},
		"forgets-what-was-not-acked":        {"redelivery", "has not come again"},
		"never-answers-hold":                {"hold", "wait for Held"},
		"reads-what-is-held":                {"hold", "has answered Held for"},
		"keeps-what-is-returned":            {"hold", "of the released key"},
		"ignores-release":                   {"hold", "of the released key"},
		"reads-what-is-held-from-the-start": {"held-from-the-start", "has answered Held for"},
		"stops-at-sigterm":                  {"signals", "have come"},

		"answers-without-ids":                    {"hold-by-id", "wait for Held, with the id"},
		"reads-ids-that-are-held":                {"hold-by-id", "has answered Held for"},
		"ignores-release-of-ids":                 {"hold-by-id", "the released event"},
		"reads-ids-that-are-held-from-the-start": {"hold-by-id", "has answered Held for"},

		"skips-bad-rows":       {"rejected-rows", "wait for 3 rejected rows"},
		"stops-at-bad-rows":    {"rejected-rows", "wait for 3 rejected rows"},
		"miscounts-bad-rows":   {"rejected-rows", "has count"},
		"misplaces-bad-rows":   {"rejected-rows", "out of order or beyond the end"},
		"rejects-without-code": {"rejected-rows", "codes are snake_case"},
		"rejects-without-id":   {"rejected-rows", "a stand-in"},
		"forgets-bad-rows":     {"rejected-rows", "has not come again"},
		"rejects-for-ever":     {"rejected-rows", "was acked, and came again"},

		"check-takes-rows":         {"check-changes-nothing", "has not come again"},
		"check-sees-nothing":       {"check-unreachable", "no finding of severity ERROR"},
		"unreachable-is-permanent": {"unreachable", "PERMANENT is for what only a person can decide"},
	}
	requireFound(t, bugs, func(name string) conformance.Spec { return brokenSource(t, exe, name) })
}

func TestEveryBugOfASourceWithPositionsIsFound(t *testing.T) {
	t.Parallel()
	exe := sdktest.Build(t, brokenPackage)
	bugs := map[string]bug{
		"starts-over":        {"position", "and from it on"},
		"makes-no-progress":  {"progress", "wait for a Progress"},
		"progresses-nowhere": {"progress", "without a position"},
		"falls-behind":       {"progress", "was acked, and came again"},
		"runs-ahead":         {"progress", "from its position on"},
	}
	requireFound(t, bugs, func(name string) conformance.Spec { return brokenLog(t, exe, name) })
}
