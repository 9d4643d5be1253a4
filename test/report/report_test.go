package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// events is a run of go test with one test of each fate.
const events = `
{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestGood"}
{"Action":"output","Package":"p","Test":"TestGood","Output":"noise\n"}
{"Action":"pass","Package":"p","Test":"TestGood","Elapsed":0}
{"Action":"run","Package":"p","Test":"TestSkipped"}
{"Action":"output","Package":"p","Test":"TestSkipped","Output":"=== RUN   TestSkipped\n"}
{"Action":"output","Package":"p","Test":"TestSkipped","Output":"    a_test.go:12: needs a server\n"}
{"Action":"output","Package":"p","Test":"TestSkipped","Output":"--- SKIP: TestSkipped (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestSkipped","Elapsed":0}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.01s\n"}
{"Action":"pass","Package":"p","Elapsed":0.01}
`

func judge(t *testing.T, r *report, in string) (string, bool) {
	t.Helper()
	var out strings.Builder
	r.out = &out
	require.NoError(t, r.read(strings.NewReader(in)))
	good := r.summary()
	return out.String(), good
}

func TestSkips(t *testing.T) {
	t.Parallel()
	out, good := judge(t, &report{strict: true}, events)
	require.False(t, good)
	require.Contains(t, out, "SKIPPED for a reason that is not in test/report/skips.txt: needs a server\n    p.TestSkipped\n")
	require.Contains(t, out, "ok  \tp\t0.01s\n")
	require.NotContains(t, out, "noise")
	require.Contains(t, out, "FAIL: 1 packages, 1 tests passed, 0 failed, 1 skipped")

	_, good = judge(t, &report{}, events)
	require.True(t, good, "without the promise of servers a skip is no fault")

	out, good = judge(t, &report{strict: true, known: []string{"a server"}}, events)
	require.True(t, good)
	require.Contains(t, out, "skipped 1: needs a server\n")
}

// A test that crashes its package, or hangs until somebody kills it, has no line of its own; what it said is shown.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	out, good := judge(t, &report{}, events+`
{"Action":"run","Package":"q","Test":"TestHangs"}
{"Action":"output","Package":"q","Test":"TestHangs","Output":"SIGQUIT: quit\n"}
{"Action":"output","Package":"q","Output":"FAIL\tq\t0.1s\n"}
{"Action":"fail","Package":"q","Elapsed":0.1}`)
	require.False(t, good)
	require.Contains(t, out, "SIGQUIT: quit\n")
	require.Contains(t, out, "failed: q.TestHangs (did not end)")
}

func TestFailures(t *testing.T) {
	t.Parallel()
	out, good := judge(t, &report{}, events+`
{"Action":"output","Package":"q","Test":"TestBad","Output":"why\n"}
{"Action":"fail","Package":"q","Test":"TestBad","Elapsed":0}
{"Action":"output","Package":"q","Output":"FAIL\tq\t0.1s\n"}
{"Action":"fail","Package":"q","Elapsed":0.1}`)
	require.False(t, good)
	require.Contains(t, out, "why\n")
	require.Contains(t, out, "failed: q.TestBad\n")

	out, good = judge(t, &report{}, `
{"ImportPath":"q","Action":"build-output","Output":"q.go:1: syntax error\n"}
{"ImportPath":"q","Action":"build-fail"}`)
	require.False(t, good)
	require.Contains(t, out, "syntax error")

	// A panic ends the package without an end of its test.
	out, good = judge(t, &report{}, `
{"Action":"output","Package":"q","Test":"TestBad","Output":"panic: x\n"}
{"Action":"fail","Package":"q","Test":"TestBad","Elapsed":0}
{"Action":"fail","Package":"q","Elapsed":0.1}`)
	require.False(t, good)
	require.Contains(t, out, "panic: x")
}

func TestParseSkips(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"a b", "c"}, parseSkips("# x\n\n a b \nc\n"))
	require.NotEmpty(t, parseSkips(skips))
}

func TestTruncatedStreamIsAFault(t *testing.T) {
	t.Parallel()
	require.Error(t, (&report{}).read(strings.NewReader(`{"Action":"pa`)))
}
