package main

import (
	"context"
	"math"
	"time"
)

const (
	// A read without a bound finds what the bound's rule should have found. It passes everything that was deleted and is
	// not vacuumed yet, so it is done the less often the longer it takes.
	sweepInterval = time.Second
	sweepFactor   = 20
)

// readOrdered does one read by the order column: of released keys and of everything else in turn.
func (r *reader) readOrdered(ctx context.Context) (outcome, error) {
	e := r.e
	start := time.Now()

	e.mu.Lock()
	events, bytes := e.flight.room()
	if events == 0 {
		e.mu.Unlock()
		return outcome{blocked: true}, nil
	}
	l := load{r: r, events: min(events, r.c.Batch), bytes: min(bytes, readBytes), last: math.MinInt64, above: math.MinInt64}
	w := r.where()
	entries, floor := e.held.releasing()
	r.byKey = !r.byKey && len(entries) > 0 && e.keyedRoom() > 0
	sweep := false
	if r.byKey {
		l.keyed, l.events = true, min(l.events, e.keyedRoom())
		r.q.releasing(w, e.held)
	} else {
		r.q.notHeld(w, e.held)
		if floor = math.MinInt64; e.bound.set {
			if sweep = !start.Before(r.sweepAt); sweep {
				l.above = e.bound.floor
			} else {
				floor = e.bound.floor
			}
		}
	}
	if !e.useBound {
		floor = math.MinInt64
	}
	e.flight.orders(&r.inFlight, func(o int64) bool { return o > floor })
	q := r.q.ordered(w, floor, &r.inFlight, l.events)
	lowered := e.bound.lowered
	e.mu.Unlock()

	snap, done, err := r.s.read(ctx, q, l.step, l.take)
	if err != nil {
		return outcome{}, err
	}
	full := !done || l.rows >= l.events

	e.mu.Lock()
	e.reads++
	if !r.byKey && floor != math.MinInt64 {
		e.bounded++
	}
	e.clock = time.Until(snap.now)
	l.fly(e)
	switch {
	case r.byKey:
		e.bound.took(l.last)
		if !full {
			e.held.done(entries) // nothing of them is left: ordinary reads see them again
		}
	case e.useBound:
		e.bound.read(lowered, snap.xmin, l.last, l.rows > 0, full)
	}
	e.found += uint64(l.found)
	more := full || r.byKey || e.keyedWork()
	e.mu.Unlock()

	if l.found > 0 {
		r.log.Warn("a sweep found rows that the bound had passed: the service does not number rows in the order of its locks",
			"rows", l.found, "bound", l.above)
	}
	if sweep || floor == math.MinInt64 {
		r.sweepAt = time.Now().Add(max(sweepInterval, sweepFactor*time.Since(start)))
	}
	return outcome{more: more, rows: l.rows}, l.queue(ctx)
}
