package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/relevo-io/relevo/internal/outbox"
)

func at(t *testing.T, s string) time.Time {
	t.Helper()
	switch s {
	case "min":
		return outbox.MinTime
	case "max":
		return outbox.MaxTime
	}
	for _, form := range []string{time.DateOnly, "2006-01-02T15", time.RFC3339} {
		if v, err := time.Parse(form, s); err == nil {
			return v.UTC()
		}
	}
	t.Fatalf("BUG in the test: %q is not a time", s)
	return time.Time{}
}

func ranges(t *testing.T, s ...string) (list []outbox.Partition) {
	t.Helper()
	for _, r := range s {
		from, to, _ := strings.Cut(r, "..")
		list = append(list, outbox.Partition{Lower: at(t, from), Upper: at(t, to), Plain: true})
	}
	return list
}

func TestMissingPartitions(t *testing.T) {
	t.Parallel()
	const now = "2026-11-30T09" // a Monday
	for name, c := range map[string]struct {
		list  []string
		every period
		ahead int
		want  []string
	}{
		"none at all":        {nil, daily, 1, []string{"2026-11-30..2026-12-01", "2026-12-01..2026-12-02"}},
		"enough":             {[]string{"2026-11-01..2026-12-03"}, daily, 2, nil},
		"one":                {[]string{"2026-11-30..2026-12-01", "2026-12-01..2026-12-02"}, daily, 2, []string{"2026-12-02..2026-12-03"}},
		"hours":              {[]string{"2026-11-30T09..2026-11-30T10"}, hourly, 2, []string{"2026-11-30T10..2026-11-30T11", "2026-11-30T11..2026-11-30T12"}},
		"weeks":              {[]string{"2026-11-23..2026-12-07"}, weekly, 1, []string{"2026-12-07..2026-12-14"}},
		"months":             {[]string{"2026-11-01..2026-12-01"}, monthly, 2, []string{"2026-12-01..2027-01-01", "2027-01-01..2027-02-01"}},
		"from weeks to days": {[]string{"2026-11-25..2026-12-02"}, daily, 3, []string{"2026-12-02..2026-12-03", "2026-12-03..2026-12-04"}},
		"from days to months": {
			[]string{"2026-11-30..2026-12-01", "2026-12-01..2026-12-02"}, monthly, 1, []string{"2026-12-02..2027-01-01"},
		},
		"late in the month":  {[]string{"2026-11-01..2026-12-20"}, monthly, 1, []string{"2026-12-20..2027-02-01"}},
		"another zone":       {[]string{"2026-11-29T23..2026-11-30T23"}, daily, 1, []string{"2026-11-30T23..2026-12-02"}},
		"zone to the west":   {[]string{"2026-11-30T05..2026-12-01T05"}, daily, 1, []string{"2026-12-01T05..2026-12-02"}},
		"long ago":           {[]string{"2026-10-01..2026-10-02"}, daily, 0, []string{"2026-11-30..2026-12-01"}},
		"ended this morning": {[]string{"2026-11-29T08..2026-11-30T08"}, daily, 0, []string{"2026-11-30T08..2026-12-01"}},
		"a gap":              {[]string{"2026-11-30..2026-12-01", "2026-12-02T06..2026-12-05"}, daily, 2, []string{"2026-12-01..2026-12-02", "2026-12-02..2026-12-02T06"}},
		"the whole future":   {[]string{"2026-11-01..max"}, daily, 3, nil},
		"everything":         {[]string{"min..max"}, daily, 3, nil},
		"the whole past":     {[]string{"min..2026-11-30"}, daily, 0, []string{"2026-11-30..2026-12-01"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got, want []string
			for _, s := range missing(ranges(t, c.list...), at(t, now), c.every, c.ahead) {
				got = append(got, fmt.Sprint(s.from, s.to))
			}
			for _, p := range ranges(t, c.want...) {
				want = append(want, fmt.Sprint(p.Lower, p.Upper))
			}
			require.Equal(t, want, got)
		})
	}
}

// Whatever there is: what is made overlaps nothing, and afterwards there is room for everything up to the horizon.
func TestMissingPartitionsCover(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		every := rapid.SampledFrom([]period{hourly, daily, weekly, monthly}).Draw(t, "every")
		ahead := rapid.IntRange(0, 5).Draw(t, "ahead")
		base := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(rapid.IntRange(0, 365*24*60).Draw(t, "now")) * time.Minute)
		var list []outbox.Partition
		edge := base.Add(-48 * time.Hour)
		for range rapid.IntRange(0, 5).Draw(t, "partitions") {
			from := edge.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "gap")) * time.Hour)
			edge = from.Add(time.Duration(rapid.IntRange(1, 60).Draw(t, "width")) * time.Hour)
			list = append(list, outbox.Partition{Lower: from, Upper: edge})
		}
		for _, s := range missing(list, base, every, ahead) {
			if !s.from.Before(s.to) {
				t.Fatalf("empty: %v", s)
			}
			for _, p := range list {
				if s.from.Before(p.Upper) && p.Lower.Before(s.to) {
					t.Fatalf("%v overlaps %v to %v", s, p.Lower, p.Upper)
				}
			}
			list = append(list, outbox.Partition{Lower: s.from, Upper: s.to})
		}
		if horizon := every.add(every.start(base), ahead+1); coverage(list, base).Before(horizon) {
			t.Fatalf("covered to %v, not to %v", coverage(list, base), horizon)
		}
		if more := missing(list, base, every, ahead); more != nil {
			t.Fatalf("not enough: %v", more)
		}
	})
}

func TestPartitionNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		last, lower string
		every       period
		from        string
		want        string
	}{
		{"outbox_p20261130", "2026-11-30", daily, "2026-12-01", "outbox_p20261201"},
		{"outbox_2026_11_30", "2026-11-30", daily, "2026-12-01", "outbox_2026_12_01"},
		{"outbox_2026_11", "2026-11-01", monthly, "2026-12-01", "outbox_2026_12"},
		{"Events-202611", "2026-11-01", monthly, "2026-12-01", "Events-202612"},
		{"outbox_p2026113009", "2026-11-30T09", hourly, "2026-11-30T10", "outbox_p2026113010"},
		{"outbox_old", "2026-11-30", daily, "2026-12-01", "outbox_p20261201"},
		{"", "", weekly, "2026-12-07", "outbox_p20261207"},
	} {
		var last *outbox.Partition
		if c.last != "" {
			last = &outbox.Partition{Name: outbox.Name{Table: c.last}, Lower: at(t, c.lower)}
		}
		got := names("outbox", last, c.every, span{from: at(t, c.from)})
		require.Equal(t, c.want, got[0])
	}
	long := names(strings.Repeat("ü", 31), nil, daily, span{from: at(t, "2026-12-01")})
	require.Equal(t, strings.Repeat("ü", 26)+"_p20261201", long[0])
	require.LessOrEqual(t, len(long[1]), maxName)
}
