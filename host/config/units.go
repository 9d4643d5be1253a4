package config

import (
	"errors"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"time"
)

// Patterns of what ParseDuration and ParseSize accept, for schemas: the same that plugins have from the SDK.
const (
	DurationPattern = `^([0-9]+(\.[0-9]+)?d)?([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))*$|^0$`
	SizePattern     = `^[0-9]+(\.[0-9]+)?(B|kB|MB|GB|KiB|MiB|GiB)?$`
)

var (
	errDuration = errors.New("not a duration")
	errSize     = errors.New("not a size")

	durationForm = regexp.MustCompile(DurationPattern)
	durationDays = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)d`)
	sizeForm     = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(B|kB|MB|GB|KiB|MiB|GiB)?$`)
)

var sizeUnits = map[string]int64{
	"": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
}

// ParseDuration reads a duration as Go writes it, and with d for days of 24 hours in front: "250ms", "1m30s", "2d". A
// negative one, and one beyond 292 years, is refused.
func ParseDuration(s string) (time.Duration, error) {
	if s == "" || !durationForm.MatchString(s) {
		return 0, errDuration
	}
	rest, total := s, 0.0
	if m := durationDays.FindStringSubmatch(s); m != nil {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return 0, errDuration
		}
		rest, total = s[len(m[0]):], n*float64(24*time.Hour)
	}
	var d time.Duration
	if rest != "" {
		var err error
		if d, err = time.ParseDuration(rest); err != nil {
			return 0, errDuration
		}
	}
	if total+float64(d) >= math.MaxInt64 {
		return 0, errDuration
	}
	return time.Duration(total) + d, nil
}

// ParseSize reads a number of bytes: "4096", "500kB", "64MiB", "1.5GiB". It must come out whole.
func ParseSize(s string) (int64, error) {
	m := sizeForm.FindStringSubmatch(s)
	if m == nil || len(s) > 64 {
		return 0, errSize
	}
	r, ok := new(big.Rat).SetString(m[1])
	if !ok {
		return 0, errSize
	}
	if r.Mul(r, new(big.Rat).SetInt64(sizeUnits[m[2]])); !r.IsInt() || !r.Num().IsInt64() {
		return 0, errSize
	}
	return r.Num().Int64(), nil
}
