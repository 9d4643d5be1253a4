package telemetry

import (
	"math"
	"slices"
	"sync/atomic"
)

// histogram counts observations in buckets. Unlike Prometheus's own it takes many equal observations at once: a batch
// of 500 events that settles together is 500 of them.
type histogram struct {
	bounds []float64       // upper, inclusive
	counts []atomic.Uint64 // one more than bounds: the last has no bound
	sum    atomic.Uint64   // a float64's bits
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]atomic.Uint64, len(bounds)+1)}
}

func (h *histogram) observe(v float64, n uint64) {
	i, _ := slices.BinarySearch(h.bounds, v)
	h.counts[i].Add(n)
	for {
		old := h.sum.Load()
		if h.sum.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+v*float64(n))) {
			return
		}
	}
}

// read returns the number and the sum of the observations, and how many were at most each bound.
func (h *histogram) read() (count uint64, sum float64, buckets map[float64]uint64) {
	buckets = make(map[float64]uint64, len(h.bounds))
	for i := range h.counts {
		count += h.counts[i].Load()
		if i < len(h.bounds) {
			buckets[h.bounds[i]] = count
		}
	}
	return count, math.Float64frombits(h.sum.Load()), buckets
}
