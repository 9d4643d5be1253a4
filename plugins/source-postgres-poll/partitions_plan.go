package main

import (
	"strings"
	"time"

	"github.com/relevo-io/relevo/internal/outbox"
)

// span is what a new partition is to hold: from is in it, to is not.
type span struct{ from, to time.Time }

// period is how long a partition is: retention.every. All of it is reckoned in UTC, which has no summer time.
type period string

const (
	hourly  period = "hour"
	daily   period = "day"
	weekly  period = "week"
	monthly period = "month"
)

// start of the period that t is in. Weeks begin on Monday.
func (p period) start(t time.Time) time.Time {
	t = t.UTC()
	switch p {
	case hourly:
		return t.Truncate(time.Hour)
	case weekly:
		t = t.AddDate(0, 0, -(int(t.Weekday())+6)%7)
	case monthly:
		t = t.AddDate(0, 0, 1-t.Day())
	}
	return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC)
}

// add moves a start of a period by n periods.
func (p period) add(t time.Time, n int) time.Time {
	switch p {
	case hourly:
		return t.Add(time.Duration(n) * time.Hour)
	case weekly:
		return t.AddDate(0, 0, 7*n)
	case monthly:
		return t.AddDate(0, n, 0)
	}
	return t.AddDate(0, 0, n)
}

// end of a partition that begins at from: the end of a period. Where partitions began at odd times so far, in another
// zone perhaps, the first one of ours is shorter or longer by up to half a period.
func (p period) end(from time.Time) time.Time {
	start := p.start(from)
	end := p.add(start, 1)
	if 2*end.Sub(from) < end.Sub(start) {
		return p.add(start, 2)
	}
	return end
}

// missing are the partitions that are to be made, so that there is a place for every row from now on and ahead whole
// periods further. They begin where others end, and end where others begin.
func missing(list []outbox.Partition, now time.Time, every period, ahead int) []span {
	horizon := every.add(every.start(now), ahead+1)
	var spans []span
	for t := now; t.Before(horizon); {
		below, above := every.start(t), outbox.MaxTime // the free room around t
		covered := false
		for _, p := range list {
			switch {
			case p.Upper.After(t) && !p.Lower.After(t):
				t, covered = p.Upper, true
			case !p.Upper.After(t) && p.Upper.After(below):
				below = p.Upper
			case p.Lower.After(t) && p.Lower.Before(above):
				above = p.Lower
			}
		}
		if covered {
			continue
		}
		if n := len(spans); n > 0 && spans[n-1].to.After(below) {
			below = spans[n-1].to
		}
		s := span{from: below, to: every.end(below)}
		if above.Before(s.to) {
			s.to = above
		}
		spans = append(spans, s)
		t = s.to
	}
	return spans
}

// nameForms are ways to write a time at the end of a partition's name, the most exact first: one that only looks like
// another must not be taken for it.
var nameForms = []string{"2006010215", "2006_01_02_15", "20060102_15", "20060102", "2006_01_02", "2006-01-02", "200601", "2006_01", "2006-01"}

// ownForms are those that partitions are named by where no pattern is found.
var ownForms = map[period]string{hourly: "2006010215", daily: "20060102", weekly: "20060102", monthly: "200601"}

// maxName is the length of a name in PostgreSQL, in bytes.
const maxName = 63

// names are those that a partition may get, the best first: the last partition's with another time in it, then ones of our
// own. The last of them no other partition can have.
func names(table string, last *outbox.Partition, every period, s span) []string {
	var found []string
	if last != nil {
		for _, form := range nameForms {
			if prefix, ok := strings.CutSuffix(last.Name.Table, last.Lower.Format(form)); ok {
				found = append(found, prefix+s.from.Format(form))
				break
			}
		}
	}
	for _, form := range []string{ownForms[every], "20060102150405"} {
		suffix := "_p" + s.from.Format(form)
		found = append(found, strings.ToValidUTF8(table[:min(len(table), maxName-len(suffix))], "")+suffix)
	}
	return found
}

// coverage is how far the partitions reach from now without a gap.
func coverage(list []outbox.Partition, now time.Time) time.Time {
	t := now
	for again := true; again; {
		again = false
		for _, p := range list {
			if p.Upper.After(t) && !p.Lower.After(t) {
				t, again = p.Upper, true
			}
		}
	}
	return t
}
