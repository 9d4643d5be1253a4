package main

import (
	"slices"
	"strings"
	"time"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// retention is what a user writes to have old rows, or old partitions, taken away.
type retention struct {
	After sdk.Duration `json:"after" jsonschema:"required" doc:"How long published rows stay: with after_publish set, from the time that they were marked at; of a partition, also from its end. At least 1h, and longer than any transaction of the service."`
	Every period       `json:"every,omitempty" jsonschema:"enum=hour,enum=day,enum=week,enum=month" doc:"For a table that is partitioned by ranges of a timestamptz, timestamp or date: partitions of this length (in UTC) are made ahead, and dropped whole when they are old and all in them is published. Defaults to none: marked rows are deleted one by one."`
	Ahead int          `json:"ahead,omitempty" jsonschema:"minimum=1,maximum=100" doc:"How many whole periods ahead of the present there are to be partitions for. Needs every. Defaults to 3."`
}

const (
	defaultAhead = 3
	maxAhead     = 100
	// minAfter is longer than transactions should be: one that began before the end of a partition may still insert into it.
	minAfter = time.Hour
)

func (r *retention) ahead() int {
	if r.Ahead == 0 {
		return defaultAhead
	}
	return r.Ahead
}

func (c config) validateRetention(fail func(path, format string, a ...any)) {
	r := c.Retention
	if r == nil {
		return
	}
	if d := r.After.Duration(); d < minAfter {
		fail("/retention/after", "%s is too short; write at least 1h, for example 7d", r.After)
	}
	if !slices.Contains([]period{"", hourly, daily, weekly, monthly}, r.Every) {
		fail("/retention/every", "%q is not hour, day, week or month", r.Every)
	}
	switch {
	case r.Ahead < 0 || r.Ahead > maxAhead:
		fail("/retention/ahead", "%d is not within 1 and %d", r.Ahead, maxAhead)
	case r.Ahead > 0 && r.Every == "":
		fail("/retention/ahead", "needs every: it counts partitions")
	}
	if r.Every != "" {
		return
	}
	switch c.after() {
	case outbox.AfterKeep:
		fail("/retention/every", "is missing: with after_publish keep nothing in a row says when it was published, so partitions go whole or not at all; "+
			"partition the table by time and write their length, for example every: day")
	case outbox.AfterSet:
		if len(c.markers()) == 0 {
			fail("/after_publish/set", "retention needs to know when a row was marked; set a timestamptz column to now(), for example published_at: now()")
		}
	default:
		fail("/retention", "has nothing to take away with after_publish %s; it is for rows that are marked ({set: …}), and with every for partitions", c.after())
	}
}

// markers are the columns that are set to the time of the marking.
func (c config) markers() []string {
	clocks := []string{"now()", "current_timestamp", "transaction_timestamp()", "statement_timestamp()", "clock_timestamp()"}
	var columns []string
	for _, column := range c.AfterPublish.Columns() {
		expression, _, _ := strings.Cut(c.AfterPublish.Set[column], "--") // a comment
		if slices.Contains(clocks, strings.ToLower(strings.TrimSpace(expression))) {
			columns = append(columns, column)
		}
	}
	return columns
}

// marker is the column that tells when a row was marked. Without it nothing may be taken away: a row that does not
// satisfy pending need not ever have been published.
func marker(t *outbox.Table, c config) (outbox.Column, *outbox.Problem) {
	for _, name := range c.markers() {
		if column := t.Column(name); column != nil && column.SQLType == "timestamp with time zone" {
			return *column, nil
		}
	}
	return outbox.Column{}, &outbox.Problem{
		Code: "retention_marker_missing", Path: "/after_publish/set",
		Message: "no column of type timestamptz is set to now()",
		Hint:    "retention needs to know when a row was marked; a row that is merely not pending may never have been published",
	}
}
