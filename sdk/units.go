package sdk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/invopop/jsonschema"
)

// Secret is a configuration value that is never shown: it prints, logs and marshals as ***. Its schema is writeOnly.
type Secret string

const masked = "***"

// Reveal returns the value.
func (s Secret) Reveal() string { return string(s) }

func (s Secret) String() string { return masked }

// GoString masks %#v.
func (s Secret) GoString() string { return masked }

// LogValue masks it in logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(masked) }

// Format covers every verb: with %d and the like, fmt would print the string inside its complaint.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, masked) }

// MarshalText masks it in JSON and all that goes by text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(masked), nil }

// UnmarshalText takes the value.
func (s *Secret) UnmarshalText(b []byte) error {
	*s = Secret(b)
	return nil
}

// JSONSchema is a string that tools mask.
func (Secret) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", WriteOnly: true}
}

// Duration is a time span in a configuration, written as Go writes it, and with d for days: "250ms", "1m30s", "2d".
type Duration time.Duration

const (
	day             = 24 * time.Hour
	durationPattern = `^([0-9]+(\.[0-9]+)?d)?([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))*$|^0$`
)

var durationDays = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)d`)

// ParseDuration reads a duration that is not negative.
func ParseDuration(s string) (Duration, error) {
	rest, total := s, 0.0
	if m := durationDays.FindStringSubmatch(s); m != nil {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return 0, durationError(s)
		}
		rest, total = s[len(m[0]):], n*float64(day)
	}
	var d time.Duration
	if rest != "" || rest == s {
		var err error
		if d, err = time.ParseDuration(rest); err != nil || d < 0 || rest[0] == '+' || rest[0] == '-' {
			return 0, durationError(s)
		}
	}
	if total+float64(d) >= math.MaxInt64 {
		return 0, durationError(s)
	}
	return Duration(time.Duration(total) + d), nil
}

func durationError(s string) error {
	return fmt.Errorf(`%q is not a duration; write for example "250ms", "1m30s" or "2d"`, clip(s))
}

// Duration returns it as Go's own type.
func (d Duration) Duration() time.Duration { return time.Duration(d) }

// String is the shortest way to write it.
func (d Duration) String() string {
	v := time.Duration(d)
	if v < 0 {
		return v.String()
	}
	var s string
	if n := v / day; n > 0 {
		if v -= n * day; v == 0 {
			return fmt.Sprintf("%dd", n)
		}
		s = fmt.Sprintf("%dd", n)
	}
	t := v.String()
	if strings.HasSuffix(t, "m0s") {
		t = strings.TrimSuffix(t, "0s")
	}
	if strings.HasSuffix(t, "h0m") {
		t = strings.TrimSuffix(t, "0m")
	}
	return s + t
}

// MarshalText writes it as a configuration does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads it as ParseDuration does.
func (d *Duration) UnmarshalText(b []byte) (err error) {
	*d, err = ParseDuration(string(b))
	return err
}

// JSONSchema is a string with a unit.
func (Duration) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Pattern: durationPattern, MinLength: new(uint64(1)), Examples: []any{"250ms", "1m30s", "2d"}}
}

// Size is a number of bytes in a configuration: "64MiB", "500kB", "4096".
type Size int64

const sizePattern = `^[0-9]+(\.[0-9]+)?(B|kB|MB|GB|KiB|MiB|GiB)?$`

var (
	sizeForm  = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(B|kB|MB|GB|KiB|MiB|GiB)?$`)
	sizeUnits = map[string]int64{
		"": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
	}
)

// ParseSize reads a number of bytes with or without a unit.
func ParseSize(s string) (Size, error) {
	m := sizeForm.FindStringSubmatch(s)
	if m == nil || len(s) > 64 {
		return 0, sizeError(s)
	}
	r, ok := new(big.Rat).SetString(m[1])
	if !ok {
		return 0, sizeError(s)
	}
	r.Mul(r, new(big.Rat).SetInt64(sizeUnits[m[2]]))
	if !r.IsInt() || !r.Num().IsInt64() {
		return 0, sizeError(s)
	}
	return Size(r.Num().Int64()), nil
}

func sizeError(s string) error {
	return fmt.Errorf(`%q is not a size; write for example "64MiB", "500kB" or 4096`, clip(s))
}

// String is the shortest exact way to write it.
func (s Size) String() string {
	for _, u := range []string{"GiB", "MiB", "KiB", "GB", "MB", "kB"} {
		if n := sizeUnits[u]; s > 0 && int64(s)%n == 0 {
			return fmt.Sprintf("%d%s", int64(s)/n, u)
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// MarshalJSON writes it as a configuration does.
func (s Size) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// UnmarshalJSON reads a string with or without a unit, or a number.
func (s *Size) UnmarshalJSON(b []byte) (err error) {
	var text string
	switch {
	case string(b) == "null":
		return nil
	case len(b) > 0 && b[0] == '"':
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
	default:
		text = string(b)
		if _, err := strconv.ParseInt(text, 10, 64); err != nil {
			return errors.New(`is not a size; write for example "64MiB", "500kB" or 4096`)
		}
	}
	*s, err = ParseSize(text)
	return err
}

// JSONSchema is a string with or without a unit, or an integer.
func (Size) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{
		Pattern:  sizePattern,
		Minimum:  "0",
		Examples: []any{"64MiB", "500kB", 4096},
		Extras:   map[string]any{"type": []string{"string", "integer"}},
	}
}

// clip shortens what an error quotes.
func clip(s string) string {
	if len(s) > 40 {
		return cut(s, 40) + "…"
	}
	return s
}
