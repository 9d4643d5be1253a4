package config

import (
	"encoding/json"
	"math"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/relevo-io/relevo/sdk"
)

func TestParseDuration(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "250ms": 250 * time.Millisecond, "1m30s": 90 * time.Second, "2d": 48 * time.Hour, "1d12h": 36 * time.Hour,
		"1.5h": 90 * time.Minute, "0.5d": 12 * time.Hour, "100000d": 100000 * 24 * time.Hour, "10µs": 10 * time.Microsecond,
	} {
		got, err := ParseDuration(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
	for _, s := range []string{"", "1", "-1s", "s", "1x", "1s ", "1 s", "1s2", "106752d", "1s2d", "99999999999999999999s", "100000d100000d", ".5s", "+1s", "1e3s"} {
		_, err := ParseDuration(s)
		require.Error(t, err, s)
	}
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]int64{
		"0": 0, "4096": 4096, "1B": 1, "500kB": 500_000, "2MB": 2_000_000, "1KiB": 1024, "64MiB": 64 << 20, "1GiB": 1 << 30, "2GB": 2e9, "1.5KiB": 1536, "1.50kB": 1500,
	} {
		got, err := ParseSize(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
	for _, s := range []string{"", "MiB", "-1", "1.5", "1.0001KiB", "1mb", "1KB", "1GIB", "1 GiB", "9223372036854775808", "9007199254740992GiB"} {
		_, err := ParseSize(s)
		require.Error(t, err, s)
	}
	got, err := ParseSize("9223372036854775807")
	require.NoError(t, err)
	require.Equal(t, int64(math.MaxInt64), got)
}

// What Go prints as a duration is read back as the same; and all that is read has the form that schemas check.
func TestDurationRoundTrip(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(DurationPattern)
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "ns")).Truncate(time.Microsecond)
		got, err := ParseDuration(d.String())
		require.NoError(t, err)
		require.Equal(t, d, got)
		s := rapid.StringMatching(`[0-9.]{0,4}[a-zµ]{0,3}[0-9]{0,2}[a-z]{0,2}`).Draw(t, "text")
		if _, err := ParseDuration(s); err == nil {
			require.Regexp(t, form, s)
		}
	})
}

// A plugin reads what the host reads, as the same.
func TestUnitsAgreeWithSDK(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(
			rapid.StringMatching(`([0-9]{1,6}(\.[0-9]{1,3})?d)?([0-9]{1,4}(\.[0-9]{1,3})?(ns|us|µs|ms|s|m|h)){0,3}`),
			rapid.StringMatching(`[0-9]{0,20}(\.[0-9]{0,4})?(B|kB|MB|GB|KiB|MiB|GiB|x)?`),
			rapid.String(),
		).Draw(t, "text")
		d, err := ParseDuration(s)
		sd, serr := sdk.ParseDuration(s)
		require.Equal(t, serr == nil, err == nil, "duration %q: %v, %v", s, err, serr)
		require.Equal(t, time.Duration(sd), d, s)
		n, err := ParseSize(s)
		sn, serr := sdk.ParseSize(s)
		require.Equal(t, serr == nil, err == nil, "size %q: %v, %v", s, err, serr)
		require.Equal(t, int64(sn), n, s)
	})
}

// The patterns of the pipeline's schema are those of the parsers.
func TestSchemaPatterns(t *testing.T) {
	t.Parallel()
	var s struct {
		Defs map[string]struct{ Pattern string } `json:"$defs"`
	}
	require.NoError(t, json.Unmarshal([]byte(pipelineSchemaText), &s))
	require.Equal(t, DurationPattern, s.Defs["duration"].Pattern)
	require.Equal(t, SizePattern, s.Defs["size"].Pattern)
}
