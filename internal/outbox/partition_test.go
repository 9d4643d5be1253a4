package outbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseRange(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for in, want := range map[string][2]time.Time{
		"FOR VALUES FROM ('2026-11-30 00:00:00+00') TO ('2026-12-01 00:00:00+00')":      {day, day.AddDate(0, 0, 1)},
		"FOR VALUES FROM ('2026-11-30 05:30:00+05:30') TO ('2026-11-30 02:00:00.5+02')": {day, day.Add(time.Second / 2)},
		"FOR VALUES FROM ('2026-11-30') TO ('2026-12-01')":                              {day, day.AddDate(0, 0, 1)},
		"FOR VALUES FROM ('2026-11-30 00:00:00') TO ('2026-11-30 12:30:00')":            {day, day.Add(12*time.Hour + 30*time.Minute)},
		"FOR VALUES FROM (MINVALUE) TO (MAXVALUE)":                                      {MinTime, MaxTime},
		"FOR VALUES FROM ('-infinity') TO ('infinity')":                                 {MinTime, MaxTime},
	} {
		lower, upper, err := parseRange(in)
		require.NoError(t, err, in)
		require.Equal(t, want, [2]time.Time{lower, upper}, in)
	}
	for _, in := range []string{"DEFAULT", "", "FOR VALUES IN ('a')", "FOR VALUES FROM ('0044-03-15 BC') TO ('2026-11-30')", "FOR VALUES FROM (1) TO (2)"} {
		_, _, err := parseRange(in)
		require.Error(t, err, in)
	}
}
