package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/relevo-io/relevo/internal/wire"
	"github.com/relevo-io/relevo/sdk"
)

// keptLoad is what one read takes.
type keptLoad struct {
	r             *keptReader
	pair              // that the rows are of
	events, bytes int // what may be taken

	parts []keptPart
	rows  int
	size  int
	place int   // in the numbers, of the last row that was taken
	last  int64 // number of it
	twice bool  // a number came twice
	bad   bool  // an answer that is none
}

// keptPart is one batch.
type keptPart struct {
	batch *sdk.Batch
	fly   keptBatch
	last  int64 // number of its last row
}

// step is how many rows to fetch next: as many as will fit, by what rows have been like.
func (l *keptLoad) step() int {
	n := l.events - l.rows
	if l.r.average == 0 {
		return min(n, firstStep)
	}
	return min(n, max(1, int(float64(l.bytes-l.size)/l.r.average)))
}

// take decodes a row into a batch; false: it does not fit any more.
func (l *keptLoad) take(values [][]byte) bool {
	at := values[len(values)-1]
	if l.bad = len(at) != 8; l.bad {
		return false
	}
	row := &l.r.row
	l.r.l.Decode(values, row)
	if l.twice = l.rows > 0 && row.Order == l.last; l.twice {
		return false
	}
	size := row.Event.Size()
	if row.Rejected == nil && size > wire.MaxEvent {
		row.Reject(row.Event.Check())
	}
	if row.Rejected != nil {
		size = rejectedSize + min(len(row.Rejected.Key), wire.MaxKey)
	}
	l.r.average += (float64(size) - l.r.average) / 64
	if l.rows > 0 && l.size+size > l.bytes {
		l.r.average = max(l.r.average, float64(size)/2) // rows have become large: short steps at once
		return false
	}
	p := l.part(size)
	if row.Rejected != nil {
		p.batch.Reject(*row.Rejected)
	} else if err := p.batch.Add(&row.Event); err != nil {
		row.Reject(err)
		p.batch.Reject(*row.Rejected)
	}
	p.last = row.Order
	p.fly.events, p.fly.bytes = p.fly.events+1, p.fly.bytes+size
	if row.Event.HasTime {
		p.fly.oldest = min(p.fly.oldest, row.Event.TimeMicro)
	}
	l.rows, l.size, l.last, l.place = l.rows+1, l.size+size, row.Order, int(binary.BigEndian.Uint64(at))
	return l.size < l.bytes
}

// part is the batch that has room for an event.
func (l *keptLoad) part(size int) *keptPart {
	if n := len(l.parts); n > 0 && l.parts[n-1].batch.Fits(size) {
		return &l.parts[n-1]
	}
	var b *sdk.Batch
	select {
	case b = <-l.r.free:
	default:
		b = new(sdk.Batch)
	}
	l.parts = append(l.parts, keptPart{batch: b, fly: keptBatch{oldest: math.MaxInt64}})
	return &l.parts[len(l.parts)-1]
}

// queue hands the batches over, each with the position behind it.
func (l *keptLoad) queue(ctx context.Context) error {
	r := l.r
	for i := range l.parts {
		p := &l.parts[i]
		it := keptItem{batch: p.batch, first: r.f.take(p.fly)}
		at := r.where()
		if i < len(l.parts)-1 {
			at.old, at.new, at.after = l.pair.old, l.pair.new, p.last
		}
		it.position = at.encode()
		if err := r.queue(ctx, it); err != nil {
			return err
		}
	}
	r.gave()
	return nil
}

// keptItem is a batch with its position, or a position alone.
type keptItem struct {
	batch    *sdk.Batch
	first    uint64
	position []byte
}

// queue hands something to send. The host may be slow to take it.
func (r *keptReader) queue(ctx context.Context, it keptItem) error {
	t := time.NewTicker(pingInterval)
	defer t.Stop()
	for {
		select {
		case r.out <- it:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
			if err := r.s.ping(ctx); err != nil {
				return err
			}
		}
	}
}

// send is the goroutine that talks to the host, in the order of the queue.
func (r *keptReader) send(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case it, ok := <-r.out:
			if !ok {
				return nil
			}
			if it.batch == nil {
				if err := r.k.st.Progress(it.position); err != nil {
					return err
				}
				continue
			}
			first, err := r.k.st.Send(it.batch, it.position)
			if err != nil {
				return err
			}
			if first != it.first {
				return fmt.Errorf("BUG: batch was to be %d and became %d", it.first, first)
			}
			select {
			case r.free <- it.batch:
			default:
			}
		}
	}
}
