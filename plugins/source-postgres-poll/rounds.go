package main

import (
	"context"
	"encoding/binary"
	"math"
	"time"

	"github.com/relevo-io/relevo/internal/outbox"
)

// roundLimit is the most rows of one round.
const roundLimit = 200_000

// round is the reading of a table without an order column: what identifies the rows that one statement saw, in the order
// of their time. The next round is listed when this one has been read. So what committed after a round was listed comes
// after all of it: commit order across rounds, best effort inside.
type round struct {
	data []byte
	ends []uint32 // of each value in data
	n    int      // rows
	next int      // the next to read
	full bool     // there were more than roundLimit
}

// readRound does one read: of released keys, or of the next rows of the round.
func (r *reader) readRound(ctx context.Context) (outcome, error) {
	e := r.e
	e.mu.Lock()
	events, bytes := e.flight.room()
	entries, _ := e.held.releasing()
	r.byKey = !r.byKey && len(entries) > 0 && e.keyedRoom() > 0
	e.mu.Unlock()
	if events == 0 {
		return outcome{blocked: true}, nil
	}
	l := load{r: r, events: min(events, r.c.Batch), bytes: min(bytes, readBytes), last: math.MinInt64, above: math.MinInt64}
	var more bool
	var err error
	if r.byKey {
		more, err = r.readReleased(ctx, &l, entries)
	} else {
		more, err = r.readChunk(ctx, &l)
	}
	if err != nil {
		return outcome{}, err
	}
	return outcome{more: more, rows: l.rows}, l.queue(ctx)
}

// readReleased reads rows of released keys in order of time. Those in flight are read along and dropped here: they are a
// quarter of the window at most.
func (r *reader) readReleased(ctx context.Context, l *load, entries []*entry) (more bool, err error) {
	e := r.e
	e.mu.Lock()
	e.flight.beginRead()
	w := r.where()
	r.q.releasing(w, e.held)
	l.keyed, l.events = true, min(l.events, e.keyedRoom())
	limit := l.events + e.flight.events
	q := r.q.byTime(w, limit)
	e.mu.Unlock()

	snap, done, err := r.s.read(ctx, q, func() int { return min(l.step(), max(0, limit-l.seen)) }, func(values [][]byte) bool {
		l.seen++
		return l.skip(values) || l.take(values)
	})
	if err != nil {
		return false, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reads++
	e.clock = time.Until(snap.now)
	l.fly(e)
	if done && l.rows < l.events && l.seen < limit {
		e.held.done(entries)
	}
	return true, nil
}

// skip reports whether the row is in flight, or was when the read began.
func (l *load) skip(values [][]byte) bool {
	l.r.q.l.Decode(values, &l.r.row)
	l.r.e.mu.Lock()
	defer l.r.e.mu.Unlock()
	return l.r.e.flight.has(l.r.row.Unique)
}

// readChunk reads the next rows of the round, and lists a new one first where it is over.
func (r *reader) readChunk(ctx context.Context, l *load) (more bool, err error) {
	e, rd := r.e, &r.round
	if rd.next == rd.n {
		if err := r.list(ctx); err != nil || rd.n == 0 {
			return false, err
		}
	}
	size := min(l.events, rd.n-rd.next)
	width := len(r.q.l.Unique)
	arrays := r.q.arrays(nil)
	for i := rd.next; i < rd.next+size; i++ {
		for k := range arrays {
			arrays[k] = outbox.AppendArray(arrays[k], rd.value(i*width+k))
		}
	}
	for k := range arrays {
		arrays[k] = append(arrays[k], '}')
	}
	e.mu.Lock()
	e.flight.beginRead()
	w := r.where()
	r.q.notHeld(w, e.held)
	q := r.q.chunk(w, arrays, size)
	e.mu.Unlock()

	place := 0 // of the last row that was dealt with
	snap, done, err := r.s.read(ctx, q, l.step, func(values [][]byte) bool {
		at := values[len(values)-1]
		if len(at) != 8 {
			return false
		}
		before := l.rows
		ok := l.skip(values) || l.take(values)
		if ok || l.rows > before {
			place = int(binary.BigEndian.Uint64(at))
		}
		return ok
	})
	if err != nil {
		return false, err
	}
	if done {
		place = size // what is missing was deleted, or is held
	}
	rd.next += place

	e.mu.Lock()
	defer e.mu.Unlock()
	e.reads++
	e.clock = time.Until(snap.now)
	l.fly(e)
	return rd.next < rd.n || rd.full || rd.n >= r.c.Batch || e.keyedWork(), nil
}

func (rd *round) value(i int) []byte {
	start := uint32(0)
	if i > 0 {
		start = rd.ends[i-1]
	}
	return rd.data[start:rd.ends[i]]
}

// list makes the next round.
func (r *reader) list(ctx context.Context) error {
	e, rd := r.e, &r.round
	rd.data, rd.ends, rd.n, rd.next, rd.full = rd.data[:0], rd.ends[:0], 0, 0, false
	e.mu.Lock()
	e.flight.beginRead()
	w := r.where()
	r.q.notHeld(w, e.held)
	q := r.q.round(w, roundLimit)
	e.mu.Unlock()
	_, _, err := r.s.read(ctx, q, func() int { return roundLimit - rd.n }, func(values [][]byte) bool {
		for _, v := range values {
			rd.data = append(rd.data, v...)
			rd.ends = append(rd.ends, uint32(len(rd.data)))
		}
		rd.n++
		return true
	})
	if err != nil {
		rd.n = 0
		return err
	}
	rd.full = rd.n == roundLimit
	rd.leaveOut(len(r.q.l.Unique), e)
	return nil
}

// leaveOut drops what is in flight from a new round.
func (rd *round) leaveOut(width int, e *engine) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.flight.events+len(e.flight.gone) == 0 {
		return
	}
	old := round{data: rd.data, ends: rd.ends, n: rd.n}
	rd.data, rd.ends, rd.n = make([]byte, 0, len(old.data)), make([]uint32, 0, len(old.ends)), 0
	unique := make([][]byte, width)
	for i := range old.n {
		for k := range unique {
			unique[k] = old.value(i*width + k)
		}
		if e.flight.has(unique) {
			continue
		}
		for _, v := range unique {
			rd.data = append(rd.data, v...)
			rd.ends = append(rd.ends, uint32(len(rd.data)))
		}
		rd.n++
	}
}
