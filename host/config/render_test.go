package config

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSnippet(t *testing.T) {
	t.Parallel()
	line, caret := snippet("\ta: é b", 6)
	require.Equal(t, "\ta: é b", line)
	require.Equal(t, "\t    ^", caret, "a tab stays a tab")
	line, caret = snippet("a\x1b[31mb", 2)
	require.Equal(t, "a\ufffd[31mb", line)
	require.Equal(t, " ^", caret)
	_, caret = snippet("a", 9)
	require.Empty(t, caret)
	long := strings.Repeat("x", 500) + "HERE" + strings.Repeat("y", 500)
	line, caret = snippet(long, 501)
	require.True(t, strings.HasPrefix(line, "…"))
	at := strings.Index(caret, "^")
	require.Equal(t, "HERE", string([]rune(line)[at:at+4]))
}

func TestPrintColor(t *testing.T) {
	t.Parallel()
	ds := Diagnostics{{File: "a.yaml", Line: 1, Column: 1, Code: CodeUnknownKey, Message: "m", Hint: "h", source: "x: 1"}}
	var plain, color bytes.Buffer
	require.NoError(t, ds.Print(&plain, false))
	require.NoError(t, ds.Print(&color, true))
	require.Equal(t, "a.yaml:1:1: error: m [unknown_key]\n   1 | x: 1\n     | ^\n     = h\n", plain.String())
	for _, c := range []string{ansiBold, ansiRed, ansiCyan, ansiDim, ansiReset} {
		color = *bytes.NewBufferString(strings.ReplaceAll(color.String(), c, ""))
	}
	require.Equal(t, plain.String(), color.String())
}

func TestDiagnosticJSON(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(Diagnostic{File: "a.yaml", Line: 1, Column: 2, Code: CodeUnknownKey, Message: "m", Hint: "h", source: "secret"})
	require.NoError(t, err)
	require.JSONEq(t, `{"file":"a.yaml","line":1,"column":2,"code":"unknown_key","message":"m","hint":"h"}`, string(b))
}

func TestClosest(t *testing.T) {
	t.Parallel()
	names := []string{"table", "password", "max_in_flight", "dsn", "to"}
	for got, want := range map[string]string{
		"tabel": "table", "Password": "password", "passwort": "password", "maxInFlight": "max_in_flight", "dns": "dsn", "too": "to",
		"xyz": "", "plugin": "", "": "", "t": "to",
	} {
		require.Equal(t, want, closest(got, names), got)
	}
}
