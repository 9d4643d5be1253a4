package cli

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/conformance"
)

func TestConformanceResultsAreReadable(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	s := newScreen(&b)
	results := []conformance.Result{
		{Name: "drain", Rule: "r", Outcome: conformance.Pass, Tried: []string{"sent 2", "stopped"}, Seen: []string{"all acked"}},
		{
			Name: "hold", Rule: "Held comes.", Page: "page#hold", Outcome: conformance.Fail, Tried: []string{"held a key", "waited"},
			Seen: []string{"no Held\nat all", "60 read"}, Said: []string{"process 1: \x1b[2Jboo"},
		},
		{Name: "position", Outcome: conformance.NotRun, Missing: "does not apply: no positions"},
		{Name: "order-at-target", Outcome: conformance.NotRun, Missing: "add …", Needs: []string{"observe"}},
		{Name: "broker-away", Outcome: conformance.NotRun, Missing: "add …", Needs: []string{"break", "mend"}},
	}
	for _, r := range results {
		printResult(s, r, false)
	}
	printResult(s, results[1], true)
	printSummary(s, results)
	require.Equal(t, `pass    drain                   sent 2, stopped: all acked
FAIL    hold
    tried  held a key
           waited
    seen   no Held
           at all
           60 read
    rule   Held comes.
    page   page#hold
    said   process 1: �[2Jboo
not run position                does not apply: no positions
not run order-at-target         needs observe
not run broker-away             needs break and mend
FAIL    hold                    as above: no Held
    at all
1 passed, 1 failed, 3 not run

To have more checked, add to conformance.yaml (docs/plugin-protocol.md#testing):
  observe: `+conformance.Help("observe")+` (order-at-target)
  break: `+conformance.Help("break")+` (broker-away)
  mend: `+conformance.Help("mend")+` (broker-away)
`, b.String())
}

func TestLongChecksAreSeenOnATerminal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		w := watch(&screen{Writer: &b, terminal: true})
		defer w.stop()
		w.starting("quick")
		time.Sleep(900 * time.Millisecond)
		w.interrupt(func() {})
		require.Empty(t, b.String())
		w.starting("slow")
		time.Sleep(2200 * time.Millisecond)
		w.interrupt(func() { w.s.printf("done\n") })
		require.Regexp(t, "… slow, 2s\r\x1b\\[Kdone\n$", b.String())
		time.Sleep(time.Minute)
		require.Regexp(t, "done\n$", b.String(), "nothing is being waited for")
	})
}
