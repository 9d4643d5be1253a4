package main

import (
	"fmt"
	"strconv"
	"time"
)

// grouped writes a number so that its size is seen: 1,204,000.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(s) - 3; i > first; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// size writes bytes.
func size(n int64) string {
	for _, u := range []struct {
		name  string
		shift uint
	}{{"GB", 30}, {"MB", 20}, {"kB", 10}} {
		if n >= 1<<u.shift {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(int64(1)<<u.shift), u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// lasting writes how long something lasts, as precisely as anybody cares.
func lasting(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	case d >= time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return max(0, d).Round(time.Second).String()
}
