//go:build !race

package e2e

const (
	raceEnabled = false
	slowness    = 1
)
