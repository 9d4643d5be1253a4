package pipeline

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// timers are things to do later, in the loop's own goroutine.
type timers struct{ heap timerHeap }

type timer struct {
	at time.Time
	do func()
}

type timerHeap []timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timerHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *timerHeap) Push(x any)        { *h = append(*h, x.(timer)) }
func (h *timerHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = timer{}
	*h = old[:len(old)-1]
	return x
}

func (t *timers) add(at time.Time, do func()) { heap.Push(&t.heap, timer{at, do}) }

// next is when the first one is due; false: there is none.
func (t *timers) next() (time.Time, bool) {
	if len(t.heap) == 0 {
		return time.Time{}, false
	}
	return t.heap[0].at, true
}

// run does what is due, and reports whether anything was.
func (t *timers) run(now time.Time) bool {
	ran := false
	for len(t.heap) > 0 && !t.heap[0].at.After(now) {
		heap.Pop(&t.heap).(timer).do()
		ran = true
	}
	return ran
}

// backOff is the delay before attempt n+1: initial × 2^(n-1), at most limit, with a fifth of jitter either way.
func backOff(initial, limit time.Duration, n int) time.Duration {
	d := initial
	for ; n > 1 && d < limit; n-- {
		d *= 2
	}
	d = min(d, limit)
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
