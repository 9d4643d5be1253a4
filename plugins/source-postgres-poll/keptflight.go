package main

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/relevo-io/relevo/sdk"
)

// keptFlight is what was read and is not covered by an acked position. With positions a number counts against the window
// until then, settled or not: so a crash repeats no more than a window. It is written by the reader and by the goroutine
// that hears the host.
type keptFlight struct {
	wake chan struct{} // capacity 1: there may be room

	mu     sync.Mutex
	window sdk.Window
	next   uint64 // number of the next row
	acked  uint64 // the last number that an acked position covers
	heard  bool   // an ack has come
	stored []byte // the position that the host has on its disk; nil: none of this server
	sent   []keptBatch
	events int
	bytes  int

	// Figures for status, written by the reader.
	figures keptFigures
	chores  *chores // nil: nobody keeps house
}

// keptBatch is one batch in flight.
type keptBatch struct {
	last          uint64
	events, bytes int
	oldest        int64 // earliest time of its events, µs since 1970; MaxInt64: none
}

// keptFigures are what the reader tells of itself.
type keptFigures struct {
	text    string // what is wrong at the moment
	clock   int64  // the server's clock minus ours, ns
	rows    uint64
	pairs   uint64
	running int // transactions that the last pair saw running: they come with a later one
	listed  int // rows that are listed and not read
	more    bool
}

func newKeptFlight(w sdk.Window) *keptFlight {
	return &keptFlight{window: w, next: 1, wake: make(chan struct{}, 1)}
}

// room is how much may be read. A byte window always admits one event.
func (f *keptFlight) room() (events, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	events, bytes = f.window.Events-f.events, f.window.Bytes-f.bytes
	if f.events == 0 {
		bytes = max(bytes, 1)
	}
	if events <= 0 || bytes <= 0 {
		return 0, 0
	}
	return events, bytes
}

// take brings a batch into flight before it is sent: the ack may come before Send returns. It returns the number of the
// batch's first event.
func (f *keptFlight) take(b keptBatch) (first uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first = f.next
	f.next += uint64(b.events)
	b.last = f.next - 1
	f.sent = append(f.sent, b)
	f.events += b.events
	f.bytes += b.bytes
	return first
}

// ack takes out of the window what a durable position covers. I6: a number that was never sent, or half a batch, ends
// the attempt.
func (f *keptFlight) ack(through uint64, position []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if through >= f.next || through < f.acked {
		return fmt.Errorf("protocol: a position through %d was acked, after %d of %d", through, f.acked, f.next-1)
	}
	for len(f.sent) > 0 && f.sent[0].last <= through {
		f.acked = f.sent[0].last
		f.events -= f.sent[0].events
		f.bytes -= f.sent[0].bytes
		f.sent = f.sent[1:]
	}
	if f.acked != through {
		return fmt.Errorf("protocol: a position through %d was acked, which is within a batch", through)
	}
	f.heard, f.stored = true, position
	return nil
}

// begun reports whether any position was acked.
func (f *keptFlight) begun() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.heard
}

// oldest is the earliest time of what is in flight; MaxInt64: none, or none has a time. mu is held.
func (f *keptFlight) oldest() int64 {
	t := int64(math.MaxInt64)
	for _, b := range f.sent {
		t = min(t, b.oldest)
	}
	return t
}

// status is how it goes. The oldest event that is not acked is in flight, as far as there is anything in flight.
func (f *keptFlight) status(now time.Time) sdk.SourceStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := &f.figures
	st := sdk.SourceStatus{State: sdk.StateStreaming, Text: g.text, OldestUnpublished: -1, LagBytes: -1, Backlog: -1}
	oldest := f.oldest()
	switch {
	case oldest != math.MaxInt64:
		st.OldestUnpublished = max(0, now.Add(time.Duration(g.clock)).Sub(time.UnixMicro(oldest)))
	case f.events == 0:
		st.OldestUnpublished = 0
	}
	if !g.more {
		st.Backlog = int64(g.listed + f.events)
	}
	st.Metrics = []sdk.Metric{
		{Name: "rows_read_total", Value: float64(g.rows)},
		{Name: "pairs_total", Value: float64(g.pairs)},
		{Name: "open_transactions", Value: float64(g.running)},
	}
	f.chores.add(&st, now.Add(time.Duration(g.clock)))
	return st
}
