package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"unicode"
)

// levelTrace is hclog's TRACE, below slog's own levels.
const levelTrace = slog.LevelDebug - 4

// record is one line of a plugin, understood as far as possible.
type record struct {
	level   slog.Level
	message string
	attrs   []slog.Attr
	panic   bool // the first line of a Go panic
}

// String is the line as a person reads it in an error.
func (r record) String() string {
	var b strings.Builder
	if len(r.attrs) > 0 || r.level != slog.LevelInfo {
		b.WriteString(r.level.String())
		b.WriteByte(' ')
	}
	b.WriteString(r.message)
	for _, a := range r.attrs {
		b.WriteByte(' ')
		b.WriteString(a.String())
	}
	return b.String()
}

// parseLine reads a line in one of the forms that plugins write: slog's JSON (and its relatives: zap, pino), hclog's
// JSON, plain text.
func parseLine(text []byte) record {
	if t := bytes.TrimSpace(text); len(t) > 0 && t[0] == '{' {
		if r, err := parseJSON(t); err == nil {
			return r
		}
	}
	return parseText(string(text))
}

var errNotALog = errors.New("no log record")

// parseJSON reads one object. Its order is kept: encoding/json's maps would lose it.
func parseJSON(text []byte) (record, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if _, err := d.Token(); err != nil { // the brace
		return record{}, err
	}
	r := record{level: slog.LevelInfo}
	spoke := false
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return record{}, err
		}
		key, ok := t.(string)
		if !ok {
			return record{}, errNotALog
		}
		var v any
		if err := d.Decode(&v); err != nil {
			return record{}, err
		}
		switch key {
		case "msg", "message", "@message":
			if r.message, ok = v.(string); !ok {
				return record{}, errNotALog
			}
			r.message, spoke = clean(r.message), true
		case "level", "@level":
			r.level = parseLevel(v)
		case "time", "@timestamp": // when it arrived is ours to say
		default:
			r.attrs = append(r.attrs, attr(strings.TrimPrefix(key, "@"), v))
		}
	}
	if _, err := d.Token(); err != nil { // the other brace
		return record{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) || !spoke {
		return record{}, errNotALog
	}
	return r, nil
}

// parseLevel reads "INFO", "WARN+2" (slog), "warn", "trace" (hclog, zap), 40 (pino). Unknown: Info.
func parseLevel(v any) slog.Level {
	switch v := v.(type) {
	case string:
		var l slog.Level
		switch {
		case l.UnmarshalText([]byte(v)) == nil:
			return l
		case strings.EqualFold(v, "trace"):
			return levelTrace
		case strings.EqualFold(v, "warning"):
			return slog.LevelWarn
		case slices.Contains([]string{"fatal", "panic", "dpanic", "critical"}, strings.ToLower(v)):
			return slog.LevelError
		}
	case json.Number:
		switch n, err := v.Int64(); {
		case err != nil:
		case n >= 50:
			return slog.LevelError
		case n >= 40:
			return slog.LevelWarn
		case n >= 30:
			return slog.LevelInfo
		case n >= 20:
			return slog.LevelDebug
		case n >= 10:
			return levelTrace
		}
	}
	return slog.LevelInfo
}

func attr(key string, v any) slog.Attr {
	key = clean(key)
	switch v := v.(type) {
	case string:
		return slog.String(key, clean(v))
	case bool:
		return slog.Bool(key, v)
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return slog.Int64(key, n)
		}
		if f, err := v.Float64(); err == nil {
			return slog.Float64(key, f)
		}
		return slog.String(key, v.String())
	case map[string]any:
		group := make([]slog.Attr, 0, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			group = append(group, attr(k, v[k]))
		}
		return slog.GroupAttrs(key, group...)
	default: // null, a list
		b, err := json.Marshal(v)
		if err != nil {
			return slog.String(key, "")
		}
		return slog.String(key, clean(string(b)))
	}
}

// parseText reads the prefixes that the log packages of Go and others write, and the beginning of a crash.
func parseText(text string) record {
	r := record{level: slog.LevelInfo, message: clean(strings.TrimRightFunc(text, unicode.IsSpace))}
	for prefix, level := range map[string]slog.Level{
		"[TRACE]": levelTrace, "[DEBUG]": slog.LevelDebug, "[INFO]": slog.LevelInfo, "[WARN]": slog.LevelWarn,
		"[ERROR]": slog.LevelError, "[ERR]": slog.LevelError,
	} {
		if rest, ok := strings.CutPrefix(r.message, prefix); ok {
			r.level, r.message = level, strings.TrimSpace(rest)
			return r
		}
	}
	if strings.HasPrefix(text, "panic: ") || strings.HasPrefix(text, "fatal error: ") {
		r.level, r.panic = slog.LevelError, true
	}
	return r
}

// clean keeps a plugin's bytes from doing more than being read: no escape sequences for a terminal, no broken UTF-8.
func clean(s string) string {
	return strings.Map(func(c rune) rune {
		if c != '\t' && c != '\n' && unicode.IsControl(c) {
			return unicode.ReplacementChar
		}
		return c
	}, strings.ToValidUTF8(s, "\uFFFD"))
}
