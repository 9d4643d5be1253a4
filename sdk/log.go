package sdk

import (
	"io"
	"log/slog"
	"strings"
)

// levelKey names the variable in which the host says what it wants to hear.
const levelKey = "RELEVO_LOG_LEVEL"

// newLogger writes the lines that the host reads: JSON with time, level and msg, and the attributes beside them.
func newLogger(w io.Writer, level string) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: parseLevel(level)}))
}

func parseLevel(s string) slog.Level {
	switch strings.ToLower(s) {
	case "debug":
		return slog.LevelDebug
	case "warn":
		return slog.LevelWarn
	case "error":
		return slog.LevelError
	}
	return slog.LevelInfo
}
