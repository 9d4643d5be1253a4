package plugin

import (
	"math/rand/v2"
	"time"
)

// What a crashing plugin is given.
const (
	backoffFirst  = 200 * time.Millisecond
	backoffMost   = 30 * time.Second
	backoffFailed = 5 * time.Minute
	backoffJitter = 0.2 // ± so much of the delay

	settledAfter  = 60 * time.Second // a run this long forgets the crashes before it
	crashesFailed = 10               // so many crashes within crashWindow: failed
	crashWindow   = 10 * time.Minute
)

// Backoff says how long to wait before a plugin that crashed is started again. It has no clock: time is passed in. The
// zero value is ready. Not for concurrent use.
type Backoff struct {
	rand    func() float64 // [0, 1); nil: math/rand
	next    time.Duration
	crashes [crashesFailed]time.Time // the last ones, a ring
	n       int                      // how many there were since the last settled run
	failed  bool
}

// Next is told of a crash (or a start that did not succeed: ranFor 0) at now. The delay grows from 200 ms to 30 s, with
// 20 % of jitter. After 10 crashes in 10 minutes failed is true and the delay 5 minutes, until a run lasts 60 s: that
// resets everything.
func (b *Backoff) Next(now time.Time, ranFor time.Duration) (delay time.Duration, failed bool) {
	if ranFor >= settledAfter {
		*b = Backoff{rand: b.rand}
	}
	b.crashes[b.n%crashesFailed] = now
	b.n++
	if b.n >= crashesFailed && now.Sub(b.crashes[b.n%crashesFailed]) <= crashWindow {
		b.failed = true
	}
	if b.failed {
		return b.jitter(backoffFailed), true
	}
	if b.next == 0 {
		b.next = backoffFirst
	}
	delay = b.jitter(b.next)
	b.next = min(2*b.next, backoffMost)
	return delay, false
}

// Failed reports whether it has crashed too often.
func (b *Backoff) Failed() bool { return b.failed }

func (b *Backoff) jitter(d time.Duration) time.Duration {
	f := rand.Float64
	if b.rand != nil {
		f = b.rand
	}
	return time.Duration(float64(d) * (1 - backoffJitter + 2*backoffJitter*f()))
}
