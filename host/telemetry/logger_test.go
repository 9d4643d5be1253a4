package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/slogtest"
	"time"

	"github.com/stretchr/testify/require"
)

// line logs one record as text, without its time.
func line(t *testing.T, color bool, log func(*slog.Logger)) string {
	t.Helper()
	var buf bytes.Buffer
	h := newTextHandler(&buf, slog.LevelDebug)
	h.color = color
	log(slog.New(h))
	out := buf.String()
	require.Equal(t, 1, strings.Count(out, "\n"), "one line: %q", out)
	_, rest, ok := strings.Cut(out, " ")
	require.True(t, ok)
	return strings.TrimSuffix(rest, "\n")
}

type panicky struct{}

func (panicky) LogValue() slog.Value { panic("oops") }

type secret string

func (secret) LogValue() slog.Value { return slog.StringValue("***") }

func TestTextLines(t *testing.T) {
	t.Parallel()
	var nilErr *json.SyntaxError
	for want, log := range map[string]func(*slog.Logger){
		`INFO  pipeline running pipeline=orders state=RUNNING`: func(l *slog.Logger) {
			l.With("pipeline", "orders").Info("pipeline running", "state", "RUNNING")
		},
		`WARN  retrying err="dial tcp: refused" backoff=1.5s attempt=3`: func(l *slog.Logger) {
			l.Warn("retrying", "err", errors.New("dial tcp: refused"), "backoff", 1500*time.Millisecond, "attempt", 3)
		},
		`ERROR x a="" b="x=y" c="say \"hi\"" d=ü`: func(l *slog.Logger) {
			l.Error("x", "a", "", "b", "x=y", "c", `say "hi"`, "d", "ü")
		},
		`DEBUG g out.before=1 out.in.n=1 out.in.deep.m=2`: func(l *slog.Logger) {
			l.WithGroup("out").With("before", 1).Debug("g", slog.Group("in", "n", 1, slog.Group("deep", "m", 2), slog.Group("empty")))
		},
		`INFO  x\n\x1b[2Jy\xff\u202e z "q" "a b"="\x1b[31m\nfake=1" raw="\xff"`: func(l *slog.Logger) {
			l.Info("x\n\x1b[2Jy\xff\u202e z \"q\"", "a b", "\x1b[31m\nfake=1", "raw", []byte{0xff})
		},
		`INFO  x password=*** addr=127.0.0.1`: func(l *slog.Logger) {
			l.Info("x", "password", secret("hunter2"), "addr", netip.MustParseAddr("127.0.0.1"))
		},
		`INFO  x t=2026-01-02T03:04:05.000000006Z m=map[a:1] none=<nil>`: func(l *slog.Logger) {
			l.Info("x", "t", time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), "m", map[string]int{"a": 1}, "none", nil)
		},
		`INFO+2 x`: func(l *slog.Logger) { l.Log(context.Background(), slog.LevelInfo+2, "x") },
	} {
		require.Equal(t, want, line(t, false, log))
	}
	require.Contains(t, line(t, false, func(l *slog.Logger) { l.Info("x", "err", nilErr) }), `err="!PANIC: `)
	require.Contains(t, line(t, false, func(l *slog.Logger) { l.Info("x", "v", panicky{}) }), "LogValue panicked")
}

func TestTextColors(t *testing.T) {
	t.Parallel()
	out := line(t, true, func(l *slog.Logger) { l.Error("down", "err", "refused") })
	require.Equal(t, red+"ERROR"+reset+" down "+red+"err="+reset+"refused", out)
}

// textRecord parses a line of the text handler back, for slogtest.
func textRecord(t *testing.T, s string) map[string]any {
	t.Helper()
	m := map[string]any{}
	if first, rest, _ := strings.Cut(s, " "); strings.Contains(first, "T") && strings.Contains(first, ":") {
		m[slog.TimeKey], s = first, rest
	}
	level, s, _ := strings.Cut(s, " ")
	m[slog.LevelKey] = level
	s = strings.TrimLeft(s, " ")
	pairs := regexp.MustCompile(` ([^ ="]+)=("(?:[^"\\]|\\.)*"|[^ ]*)`)
	if i := pairs.FindStringIndex(s); i != nil {
		m[slog.MessageKey] = s[:i[0]]
	} else {
		m[slog.MessageKey] = s
	}
	for _, p := range pairs.FindAllStringSubmatch(s, -1) {
		value := p[2]
		if u, err := strconv.Unquote(value); err == nil {
			value = u
		}
		at, path := m, strings.Split(p[1], ".")
		for _, group := range path[:len(path)-1] {
			if at[group] == nil {
				at[group] = map[string]any{}
			}
			at = at[group].(map[string]any)
		}
		at[path[len(path)-1]] = value
	}
	return m
}

func TestTextHandlerKeepsSlogsContract(t *testing.T) {
	t.Parallel()
	var buf bytes.Buffer
	slogtest.Run(t, func(*testing.T) slog.Handler {
		buf.Reset()
		return newTextHandler(&buf, slog.LevelInfo)
	}, func(t *testing.T) map[string]any { return textRecord(t, strings.TrimSuffix(buf.String(), "\n")) })
}

func TestFormats(t *testing.T) {
	t.Parallel()
	for _, format := range []string{FormatAuto, FormatJSON, ""} {
		var buf bytes.Buffer
		NewLogger(&buf, slog.LevelInfo, format).Info("retrying", "backoff", time.Second, "err", errors.New("refused"))
		var m map[string]any
		require.NoError(t, json.Unmarshal(buf.Bytes(), &m), "%q: %s", format, buf.String())
		delete(m, "time")
		require.Equal(t, map[string]any{"level": "INFO", "msg": "retrying", "backoff": "1s", "err": "refused"}, m)
	}
	var buf bytes.Buffer
	NewLogger(&buf, slog.LevelInfo, FormatText).Info("hello")
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\S+ INFO  hello\n$`, buf.String(), "with a date, without colour")
}

func TestLevelCanChange(t *testing.T) {
	t.Parallel()
	for _, format := range []string{FormatText, FormatJSON} {
		var buf bytes.Buffer
		level := &slog.LevelVar{}
		l := NewLogger(&buf, level, format)
		l.Debug("hidden")
		require.Empty(t, buf.String())
		level.Set(slog.LevelDebug)
		l.Debug("shown")
		require.Contains(t, buf.String(), "shown")
	}
}

// lineWriter fails the test when a Write is not exactly one line.
type lineWriter struct {
	t     *testing.T
	mu    sync.Mutex
	lines int
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if bytes.Count(b, []byte("\n")) != 1 || b[len(b)-1] != '\n' {
		w.t.Errorf("not a line: %q", b)
	}
	w.lines++
	return len(b), nil
}

func TestLinesDoNotMix(t *testing.T) {
	t.Parallel()
	w := &lineWriter{t: t}
	l := NewLogger(w, slog.LevelInfo, FormatText)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			l := l.With("goroutine", i)
			for n := range 100 {
				l.Info("x", "n", n, "text", fmt.Sprint("a b\n", n))
			}
		})
	}
	wg.Wait()
	require.Equal(t, 800, w.lines)
}
