package main

import (
	"fmt"
	"strconv"
)

// columns are the select list of a row. Where relays share the outbox its bucket is behind those of the layout.
func (q *queries) columns() (list string, formats []int16) {
	list, formats = q.l.Select(), q.l.Formats()
	if q.bucket != "" {
		list, formats = list+", "+q.bucket, append(formats, 1)
	}
	return list, formats
}

// bucketOf is the bucket of a row that was selected by columns. It is a bigint, below 256.
func (q *queries) bucketOf(values [][]byte) uint8 {
	if q.bucket == "" {
		return 0
	}
	return values[q.width][7]
}

// in takes only rows of some buckets.
func (q *queries) in(w *where, s buckets) {
	if q.bucket == "" || s == allBuckets {
		return
	}
	n := w.param(strconv.AppendInt(nil, int64(s), 10))
	// Not = 1: the planner would expect that one row in 200 passes, and plan for a long way to the limit.
	w.add(fmt.Sprintf("$%d::bigint >> %s::int & 1 <> 0", n, q.bucket))
}
