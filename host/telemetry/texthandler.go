package telemetry

import (
	"context"
	"encoding"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	clockLayout = "15:04:05.000"
	timeLayout  = "2006-01-02T15:04:05.000Z07:00"
)

// ANSI sequences.
const (
	reset  = "\x1b[0m"
	dim    = "\x1b[2m"
	red    = "\x1b[31m"
	yellow = "\x1b[33m"
	cyan   = "\x1b[36m"
)

// textHandler writes a record as a line for people. Whatever a message or an attribute contains, it stays one line and
// sends nothing to the terminal but printable characters: much of it comes from plugins and brokers (I10).
type textHandler struct {
	level      slog.Leveler
	timeLayout string
	color      bool

	attrs  []byte // of WithAttrs, written out
	prefix string // of WithGroup, with a dot at its end

	mu *sync.Mutex // shared by the handlers derived from one
	w  io.Writer
}

func newTextHandler(w io.Writer, level slog.Leveler) *textHandler {
	return &textHandler{level: level, timeLayout: timeLayout, mu: &sync.Mutex{}, w: w}
}

func (h *textHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

func (h *textHandler) WithAttrs(as []slog.Attr) slog.Handler {
	c := *h
	c.attrs = append([]byte(nil), h.attrs...)
	for _, a := range as {
		c.attrs = h.appendAttr(c.attrs, h.prefix, a)
	}
	return &c
}

func (h *textHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	c := *h
	c.prefix += name + "."
	return &c
}

func (h *textHandler) Handle(_ context.Context, r slog.Record) error {
	b := make([]byte, 0, 256)
	if !r.Time.IsZero() {
		b = h.paint(b, dim, r.Time.Format(h.timeLayout))
		b = append(b, ' ')
	}
	b = h.paint(b, levelColor(r.Level), fmt.Sprintf("%-5s", r.Level))
	b = append(b, ' ')
	b = appendPrintable(b, r.Message)
	b = append(b, h.attrs...)
	r.Attrs(func(a slog.Attr) bool {
		b = h.appendAttr(b, h.prefix, a)
		return true
	})
	b = append(b, '\n')

	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.w.Write(b)
	return err
}

func (h *textHandler) appendAttr(b []byte, prefix string, a slog.Attr) []byte {
	v := a.Value.Resolve()
	switch {
	case v.Kind() == slog.KindGroup:
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, member := range v.Group() {
			b = h.appendAttr(b, prefix, member)
		}
		return b
	case a.Key == "" && v.Equal(slog.Value{}):
		return b
	}
	b = append(b, ' ')
	if h.color {
		b = append(b, keyColor(a.Key)...)
	}
	b = appendToken(b, prefix+a.Key)
	b = append(b, '=')
	if h.color {
		b = append(b, reset...)
	}
	return appendToken(b, text(v))
}

func text(v slog.Value) (s string) {
	defer func() {
		if p := recover(); p != nil { // a method of a nil pointer; the line is written all the same
			s = fmt.Sprintf("!PANIC: %v", p)
		}
	}()
	switch v.Kind() {
	case slog.KindTime:
		return v.Time().Format(time.RFC3339Nano)
	case slog.KindAny:
		switch x := v.Any().(type) {
		case error:
			return x.Error()
		case []byte:
			return string(x)
		case encoding.TextMarshaler:
			if t, err := x.MarshalText(); err == nil {
				return string(t)
			}
		}
		return fmt.Sprintf("%+v", v.Any())
	}
	return v.String()
}

func levelColor(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return red
	case l >= slog.LevelWarn:
		return yellow
	case l >= slog.LevelInfo:
		return cyan
	}
	return dim
}

func keyColor(key string) string {
	if key == "err" {
		return red
	}
	return dim
}

func (h *textHandler) paint(b []byte, color, s string) []byte {
	if !h.color {
		return append(b, s...)
	}
	b = append(b, color...)
	b = append(b, s...)
	return append(b, reset...)
}

// appendToken writes s as it is if that cannot be mistaken for something else, else quoted.
func appendToken(b []byte, s string) []byte {
	plain := s != ""
	for _, r := range s {
		if r == ' ' || r == '"' || r == '=' || r == utf8.RuneError || !unicode.IsPrint(r) {
			plain = false
			break
		}
	}
	if plain {
		return append(b, s...)
	}
	return strconv.AppendQuote(b, s)
}

// appendPrintable writes s with what a terminal would obey escaped.
func appendPrintable(b []byte, s string) []byte {
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if unicode.IsPrint(r) && (r != utf8.RuneError || size > 1) {
			b = append(b, s[i:i+size]...)
		} else {
			q := strconv.Quote(s[i : i+size])
			b = append(b, q[1:len(q)-1]...)
		}
		i += size
	}
	return b
}
