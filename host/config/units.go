package config

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Patterns of what ParseDuration and ParseSize accept, for schemas.
const (
	DurationPattern = `^(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h|d))+)$`
	SizePattern     = `^[0-9]+ ?(B|kB|MB|KiB|MiB|GiB)?$`
)

var (
	errDuration = errors.New("not a duration")
	errSize     = errors.New("not a size")

	durationPart = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h|d)`)
	durationForm = regexp.MustCompile(DurationPattern)
	sizeForm     = regexp.MustCompile(SizePattern)
)

var sizeUnits = map[string]int64{"": 1, "B": 1, "kB": 1e3, "MB": 1e6, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

// ParseDuration reads a duration as Go writes it, and with d for days of 24 hours: "250ms", "1m30s", "2d". A negative
// one, and one beyond 292 years, is refused.
func ParseDuration(s string) (time.Duration, error) {
	if s == "0" {
		return 0, nil
	}
	var total time.Duration
	for rest := s; ; {
		m := durationPart.FindStringSubmatch(rest)
		if m == nil {
			return 0, errDuration
		}
		var d time.Duration
		if m[2] == "d" {
			days, err := strconv.ParseFloat(m[1], 64)
			if err != nil || days > math.MaxInt64/float64(24*time.Hour) {
				return 0, errDuration
			}
			d = time.Duration(days * float64(24*time.Hour))
		} else {
			var err error
			if d, err = time.ParseDuration(m[0]); err != nil {
				return 0, errDuration
			}
		}
		if total += d; total < 0 {
			return 0, errDuration
		}
		if rest = rest[len(m[0]):]; rest == "" {
			return total, nil
		}
	}
}

// ParseSize reads a number of bytes: "4096", "500kB", "64MiB".
func ParseSize(s string) (int64, error) {
	m := sizeForm.FindStringSubmatch(s)
	if m == nil {
		return 0, errSize
	}
	digits := strings.TrimRight(s[:len(s)-len(m[1])], " ")
	n, err := strconv.ParseInt(digits, 10, 64)
	unit := sizeUnits[m[1]]
	if err != nil || n > math.MaxInt64/unit {
		return 0, errSize
	}
	return n * unit, nil
}
