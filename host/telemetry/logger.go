package telemetry

import (
	"io"
	"log/slog"
	"os"

	"github.com/mattn/go-isatty"
)

// Log formats, as the host setting log.format names them.
const (
	FormatAuto = "auto" // text on a terminal, else JSON
	FormatText = "text" // a line for people: time level message key=value
	FormatJSON = "json" // slog's JSON: time, level, msg, then the attributes
)

// NewLogger returns a logger that writes records of at least the level to w, each with a single Write. An unknown
// format is taken for auto. Text is coloured on a terminal only, and not when NO_COLOR is set or TERM is dumb.
func NewLogger(w io.Writer, level slog.Leveler, format string) *slog.Logger {
	terminal := isTerminal(w)
	if format == FormatJSON || format != FormatText && !terminal {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: readableDuration}))
	}
	h := newTextHandler(w, level)
	if terminal {
		h.timeLayout = clockLayout // the day is the one on the person's wall
		h.color = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	}
	return slog.New(h)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(interface{ Fd() uintptr })
	return ok && isatty.IsTerminal(f.Fd())
}

// readableDuration writes a duration as text does ("1.5s"), where slog's JSON has a bare number of nanoseconds.
func readableDuration(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}
