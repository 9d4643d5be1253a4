package config

import (
	"fmt"
	"slices"
	"strings"
)

// didYouMean is a hint with the closest of the names, or "" if none is close.
func didYouMean(got string, names []string) string {
	if n := closest(got, names); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	return ""
}

// closest returns the name at the smallest edit distance, if it is close enough to be meant: a third of its length.
func closest(got string, names []string) string {
	best, bestDistance := "", 1<<30
	names = slices.Clone(names)
	slices.Sort(names)
	for _, n := range names {
		d := distance(fold(got), fold(n))
		if d < bestDistance && d <= max(1, min(len(n), len(got))/3) {
			best, bestDistance = n, d
		}
	}
	return best
}

// fold makes spellings of one word equal: maxInFlight, max-in-flight, max_in_flight.
func fold(s string) string {
	return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(s))
}

// distance is the number of insertions, deletions, replacements and swaps of neighbours between a and b (optimal string
// alignment). Long words are never close.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 1 << 20
	}
	before, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, prev, row = prev, row, before
	}
	return prev[len(b)]
}
