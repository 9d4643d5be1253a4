package main

import (
	"math"
	"strconv"
)

// minRun is how long a run of numbers must be to be worth a range: the server takes as long to parse one as for so many
// numbers of a list.
const minRun = 32

// orders are order numbers that a read leaves out, in text form; empty: there are none. (Left out by the query they count
// nowhere, and their payloads do not travel again. Reading them again and dropping them here would cost up to a window of
// payloads a read.)
//
// Two forms, for two shapes: an outbox that one relay reads has runs of numbers that follow each other, some hundred bytes
// of ranges for a window; where several share it every other number is somebody else's, and 5,000 ranges of one number
// each cost 18 ms a read where a list costs 1 ms.
type orders struct {
	ranges  []byte // an int8multirange, searched by halves
	singles []byte // a bigint[], hashed
}

// orders writes what is in flight or left out above floor into o, whose memory it uses.
func (f *flight) orders(o *orders, above func(int64) bool) {
	o.ranges, o.singles = append(o.ranges[:0], '{'), append(o.singles[:0], '{')
	var from, to int64
	open := false
	put := func(n int64) {
		if open && n == to+1 {
			to = n
			return
		}
		if open {
			o.add(from, to)
		}
		from, to, open = n, n, true
	}
	for s, i := range f.unended {
		if n := s.rows[i].order; above(n) {
			put(n)
		}
	}
	for n := range f.leftOut {
		if above(n) {
			put(n)
		}
	}
	if open {
		o.add(from, to)
	}
	o.ranges, o.singles = closed(o.ranges), closed(o.singles)
}

// add takes the numbers from … to. A range without an end above: the largest number has no successor.
func (o *orders) add(from, to int64) {
	if uint64(to)-uint64(from) < minRun-1 {
		for n := from; ; n++ {
			o.singles = strconv.AppendInt(separated(o.singles), n, 10)
			if n == to {
				return
			}
		}
	}
	o.ranges = strconv.AppendInt(append(separated(o.ranges), '['), from, 10)
	o.ranges = append(o.ranges, ',')
	if to < math.MaxInt64 {
		o.ranges = strconv.AppendInt(o.ranges, to+1, 10)
	}
	o.ranges = append(o.ranges, ')')
}

func separated(list []byte) []byte {
	if len(list) == 1 {
		return list
	}
	return append(list, ',')
}

func closed(list []byte) []byte {
	if len(list) == 1 {
		return list[:0]
	}
	return append(list, '}')
}
