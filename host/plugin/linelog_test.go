package plugin

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestParseLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		line string
		want string // String of the record
		lvl  slog.Level
	}{
		{`hello`, `hello`, slog.LevelInfo},
		{`{"level":"DEBUG","msg":"m","b":1,"a":"x"}`, `DEBUG m b=1 a=x`, slog.LevelDebug},
		{`{"level":"WARN+2","msg":"m"}`, `WARN+2 m`, slog.LevelWarn + 2},
		{`{"level":"warning","message":"m"}`, `WARN m`, slog.LevelWarn},
		{`{"level":"fatal","msg":"m"}`, `ERROR m`, slog.LevelError},
		{`{"level":50,"msg":"m"}`, `ERROR m`, slog.LevelError},
		{`{"@level":"trace","@message":"m"}`, `DEBUG-4 m`, levelTrace},
		{`{"level":"shout","msg":"m"}`, `m`, slog.LevelInfo},
		{`{"@message":1}`, `{"@message":1}`, slog.LevelInfo},
		{`{"msg":"m"} x`, `{"msg":"m"} x`, slog.LevelInfo},
		{`{"a":1}`, `{"a":1}`, slog.LevelInfo},
		{`[ERROR] bad`, `ERROR bad`, slog.LevelError},
		{`panic: x`, `ERROR panic: x`, slog.LevelError},
		{`{"msg":"m","n":1e3,"big":18446744073709551616}`, `INFO m n=1000 big=1.8446744073709552e+19`, slog.LevelInfo},
	} {
		r := parseLine([]byte(c.line))
		require.Equal(t, c.want, r.String())
		require.Equal(t, c.lvl, r.level, c.line)
	}
}

func FuzzParseLine(f *testing.F) {
	for _, s := range []string{
		`{"@message":1}`, `{"msg":"a","level":"INFO","x":{"y":[1,null]}}`, `{"level":30,"msg":"m"}`, "\x00\xff", `{`, `{}`, "panic: x",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := parseLine(b)
		require.True(t, utf8.ValidString(r.message))
		require.NotContains(t, r.message, "\x1b")
		_ = r.String()
	})
}

func newTestLog() (*lineLog, *logs, *time.Time) {
	l := &logs{}
	now := time.Unix(1e9, 0)
	ll := newLineLog(slog.New(l))
	ll.now = func() time.Time { return now }
	return ll, l, &now
}

func TestSplitterFindsLinesAcrossWrites(t *testing.T) {
	t.Parallel()
	ll, l, _ := newTestLog()
	s := ll.splitter("stderr")
	for _, part := range []string{"a", "b\r\nc", "\n\n", "  \n", "last"} {
		n, err := s.Write([]byte(part))
		require.NoError(t, err)
		require.Equal(t, len(part), n)
	}
	s.flush()
	s.flush()
	require.Equal(t, []string{"ab", "c", "last"}, ll.last())
	require.Len(t, l.all(), 3)
}

func TestRateOfLines(t *testing.T) {
	t.Parallel()
	ll, l, now := newTestLog()
	burst := func(n int) {
		for i := range n {
			ll.write("stderr", fmt.Appendf(nil, "line %d", i), 0)
		}
	}
	dropped := func() string {
		r, ok := l.find("plugin logs too much")
		if !ok {
			return ""
		}
		return r.Attrs["dropped"]
	}
	ll.write("stderr", []byte("first"), 0)
	burst(lineBurst + 99)
	require.Len(t, l.all(), lineBurst)
	ll.tick(*now)
	require.Equal(t, "100", dropped())

	l.recs = nil
	*now = now.Add(time.Second)
	burst(linesPerSecond + 7)
	require.Len(t, l.all(), linesPerSecond)
	ll.tick(*now)
	require.Empty(t, dropped(), "said at most every five seconds")
	*now = now.Add(reportDropped)
	ll.tick(*now)
	require.Equal(t, "7", dropped())

	l.recs = nil
	burst(lineBurst + 3)
	ll.close(*now)
	require.Equal(t, "3", dropped(), "said at the end")
	before := len(l.all())
	ll.write("stdout", []byte("late"), 0)
	require.Len(t, l.all(), before, "nothing is logged after the end")
}

func TestLastLines(t *testing.T) {
	t.Parallel()
	ll, _, _ := newTestLog()
	ll.write("stderr", []byte("panic: why"), 0)
	for i := range 20 {
		ll.write("stderr", fmt.Appendf(nil, "stack %d", i), 0)
	}
	ll.write("stderr", []byte(strings.Repeat("é", maxTailLine)), 0)
	last := ll.last()
	require.Len(t, last, tailLines)
	require.Equal(t, "ERROR panic: why", last[0])
	require.Equal(t, "stack 12", last[1])
	require.LessOrEqual(t, len(last[9]), maxTailLine+len("…"))
	require.True(t, utf8.ValidString(last[9]))
}
