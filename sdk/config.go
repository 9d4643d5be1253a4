package sdk

import (
	"log/slog"
	"time"
)

// Secret is a configuration value that is never shown: it prints, logs and marshals as ***. Its schema is writeOnly.
type Secret string

// Reveal returns the value.
func (s Secret) Reveal() string { return string(s) }

func (s Secret) String() string       { return "***" }
func (s Secret) GoString() string     { return "***" }
func (s Secret) LogValue() slog.Value { return slog.StringValue("***") }

// Duration is a time span in a configuration, written as Go writes it, and with d for days: "250ms", "1m30s", "2d".
type Duration time.Duration

// Size is a number of bytes in a configuration: "64MiB", "500kB", "4096".
type Size int64
