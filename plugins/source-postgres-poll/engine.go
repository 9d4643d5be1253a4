package main

import (
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// engine is what the goroutines of an attempt share. requests writes what the host says into it, reader and remover
// work on it. It has no I/O of its own, and mu is never held across any.
type engine struct {
	window sdk.Window

	stop       func()          // called when the host has said stop
	stopping   <-chan struct{} // closed by stop: reading ends
	ended      chan struct{}   // closed when the attempt is over
	wakeRead   chan struct{}   // capacity 1: there may be something to do
	wakeRemove chan struct{}   // capacity 1
	wakeStatus chan struct{}   // capacity 1: something has changed that the host should hear of at once

	mu     sync.Mutex
	flight *flight
	held   *held
	bound  bound
	unheld []heldAnswer // Holds that wait for their answer

	division division // of the outbox among relays
	chores   *chores  // of housekeeping; nil: there is none

	useBound bool // the order column's numbers are the database's own

	// Figures for status.
	clock   time.Duration // the server's clock minus ours
	text    string        // what is wrong at the moment
	found   uint64        // rows that only a sweep found
	removal string        // what the metric of removed is called
	removed uint64
	missing uint64 // rows that were gone when they were to be removed
	reads   uint64
	bounded uint64 // reads that began above a bound
}

var errEarly = errors.New("protocol: numbers were ended before any was sent")

// heldAnswer is owed to the host.
type heldAnswer struct {
	keys [][]byte
	ids  []string
}

func newEngine(o sdk.SourceOpen[config], stopping <-chan struct{}, stop func()) *engine {
	e := &engine{
		window:     o.Window,
		stop:       stop,
		stopping:   stopping,
		ended:      make(chan struct{}),
		wakeRead:   make(chan struct{}, 1),
		wakeRemove: make(chan struct{}, 1),
		wakeStatus: make(chan struct{}, 1),
		held:       newHeld(),
		removal:    "rows_deleted_total",
		division:   division{on: o.Config.Sharing == sharingBuckets},
	}
	if o.Config.after() == outbox.AfterSet {
		e.removal = "rows_marked_total"
	}
	// Held from the start: they count as answered.
	for _, k := range o.HeldKeys {
		e.held.hold(e.held.keys, string(k), math.MinInt64)
	}
	for _, id := range o.HeldIDs {
		e.held.hold(e.held.ids, id, math.MinInt64)
	}
	return e
}

// bind is called once the table is known, before anything is read.
func (e *engine) bind(l *outbox.Layout) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.flight = newFlight(e.window, len(l.Unique), l.Order == nil)
	e.flight.byOrder = l.HandleIsOrder()
	e.useBound = l.Order != nil && l.Kind() == outbox.OrderPerKey
}

// end tells that the attempt is over.
func (e *engine) end() { close(e.ended) }

// requests obeys the host until it says stop (nil), the stream ends (errGone), or the attempt ends.
func (e *engine) requests(in <-chan sdk.Request) error {
	for {
		var r sdk.Request
		var open bool
		select {
		case r, open = <-in:
		case <-e.ended:
			return nil
		}
		if !open {
			return errGone
		}
		if _, ok := r.(sdk.Stop); ok {
			e.stop()
			wake(e.wakeRemove)
			return nil
		}
		if err := e.obey(r); err != nil {
			return err
		}
	}
}

func (e *engine) obey(r sdk.Request) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch r := r.(type) {
	case sdk.Ack:
		if e.flight == nil {
			return errEarly
		}
		if err := e.flight.ack(r.Ranges); err != nil {
			return err
		}
		wake(e.wakeRemove)
	case sdk.Hold:
		return e.hold(r)
	case sdk.Release:
		for _, k := range r.Keys {
			e.held.release(e.held.keys, string(k))
		}
		for _, id := range r.IDs {
			e.held.release(e.held.ids, id)
		}
		wake(e.wakeRead)
	case sdk.Window:
		e.window = r
		if e.flight != nil {
			e.flight.window = r
		}
		wake(e.wakeRead)
	}
	return nil
}

// hold stops the reading of keys, and takes numbers back: their rows stay, and are read again after the release.
func (e *engine) hold(r sdk.Hold) error {
	floor := int64(math.MinInt64)
	if e.bound.set {
		floor = e.bound.floor
	}
	for _, k := range r.Keys {
		e.held.hold(e.held.keys, string(k), floor)
	}
	for _, id := range r.IDs {
		e.held.hold(e.held.ids, id, floor)
	}
	if len(r.Keys) > 0 || len(r.IDs) > 0 {
		e.unheld = append(e.unheld, heldAnswer{r.Keys, r.IDs})
		wake(e.wakeRead)
		e.placeHeld()
	}
	if len(r.Returned) == 0 {
		return nil
	}
	if e.flight == nil {
		return errEarly
	}
	defer wake(e.wakeRead)
	return e.flight.giveBack(r.Returned, func(s *sent, i int) {
		order := s.rows[i].order
		if entry := e.heldBy(s, i); entry != nil {
			entry.back(order, s.oldest)
			return
		}
		e.bound.lower(order)
	})
}

// heldBy is the entry that a row in flight is held by; nil: none.
func (e *engine) heldBy(s *sent, i int) *entry {
	switch {
	case !s.rows[i].noKey:
		return e.held.keys[string(e.flight.key(s, i))]
	case s.rows[i].noID:
		return nil // its stand-in is not kept; lowering the bound is right for every row
	}
	return e.held.ids[string(e.flight.value(s, i, 0))]
}

// placeHeld notes in which bucket held keys are. Their heads are in flight.
func (e *engine) placeHeld() {
	if !e.division.on || e.flight == nil {
		return
	}
	for s, i := range e.flight.unended {
		if entry := e.heldBy(s, i); entry != nil {
			entry.bucket = int(s.rows[i].bucket)
		}
	}
}

// status is how it goes. The age of the oldest row comes with the reads: what is in flight or held is the oldest there
// is, and when nothing is, the last read found nothing.
func (e *engine) status(now time.Time) sdk.SourceStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := sdk.SourceStatus{State: sdk.StateStreaming, Text: e.text, OldestUnpublished: -1, LagBytes: -1, Backlog: -1}
	d := &e.division
	if d.on && st.Text == "" {
		st.Text = d.text()
	}
	if d.on && d.owned == 0 {
		st.State = sdk.StateStandby
	}
	oldest := min(e.flight.oldest(), e.held.oldest())
	switch {
	case oldest != math.MaxInt64:
		st.OldestUnpublished = max(0, now.Add(e.clock).Sub(time.UnixMicro(oldest)))
	case e.flight.events == 0 && len(e.held.keys)+len(e.held.ids) == 0 && d.reads() != 0:
		st.OldestUnpublished = 0
	}
	st.Metrics = []sdk.Metric{
		{Name: e.removal, Value: float64(e.removed)},
		{Name: "rows_missing_total", Value: float64(e.missing)},
		{Name: "rows_found_by_sweep_total", Value: float64(e.found)},
		{Name: "reads_total", Value: float64(e.reads)},
		{Name: "reads_bounded_total", Value: float64(e.bounded)},
	}
	if d.on {
		st.Metrics = append(st.Metrics,
			sdk.Metric{Name: "buckets_owned", Value: float64(d.owned.count())},
			sdk.Metric{Name: "relays", Value: float64(d.relays)})
	}
	e.chores.add(&st, now.Add(e.clock))
	return st
}

// trouble says for the status what is wrong at the moment; "": nothing.
func (e *engine) trouble(text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.text = text
}

// takeUnheld hands over the answers that are owed.
func (e *engine) takeUnheld() []heldAnswer {
	e.mu.Lock()
	defer e.mu.Unlock()
	owed := slices.Clone(e.unheld)
	e.unheld = e.unheld[:0]
	return owed
}

// wake tells a goroutine to look again. One token is enough: it looks at everything.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
