package pipeline

import (
	"github.com/relevo-io/relevo/internal/wire"
)

// delivery collects what one dispatch sends to one sink, in order, as batches.
type delivery struct {
	l        *Ledger
	i        int
	s        *sink
	released [][]byte

	batch *wire.SinkBatch // nil: none begun
	again bool            // of batch: redelivered
	bytes int
	dests map[string]uint32
	route string // destination of the event last prepared

	run      *batch // the events that are not in batch.Events yet: run.frame's from ≤ e < to
	from, to int
}

// prepare finds what can be known beforehand to refuse an event, and its destination.
func (d *delivery) prepare(b *batch, o int) *RouteError {
	if d.s.MaxEventBytes > 0 && b.size(o) > d.s.MaxEventBytes {
		return &RouteError{"event_too_large", "the event does not fit into a message to the plugin (max_message_bytes)"}
	}
	if d.s.Route == nil {
		d.route = d.s.Constant
		return nil
	}
	var refusal *RouteError
	d.route, refusal = d.s.Route(b.raw(o))
	return refusal
}

// add sends an event that need not wait for others of its key. False: it must go through its lane.
func (d *delivery) add(b *batch, o int) bool {
	if d.prepare(b, o) != nil {
		return false
	}
	d.push(b, o)
	return true
}

// push gives the event, which has been prepared, the next number.
func (d *delivery) push(b *batch, o int) {
	s, seq := d.s, b.seq(o)
	// After any opening of the source, what an earlier life had in flight may come once more.
	repeated := b.at[d.i][o] == again || seq < s.repeat || seq <= uint64(d.l.rules.WindowEvents)
	size := b.size(o)
	if d.batch != nil && (d.again != repeated || d.bytes+size > d.limit()) {
		d.flush()
	}
	if d.batch == nil {
		d.batch = &wire.SinkBatch{FirstSeq: s.next(), Redelivered: repeated}
		d.again, d.bytes, d.dests = repeated, 0, nil
	}
	d.batch.Count++
	d.bytes += size
	b.at[d.i][o] = sent
	s.ring = append(s.ring, seq)
	s.outstanding++
	if e := b.event(o); d.run == b && d.to == e {
		d.to++
	} else {
		d.endRun()
		d.run, d.from, d.to = b, e, e+1
	}
	d.destination()
}

func (d *delivery) destination() {
	if d.s.Route == nil {
		if d.route != "" && len(d.batch.Destinations) == 0 {
			d.batch.Destinations = append(d.batch.Destinations, d.route)
		}
		return
	}
	k, ok := d.dests[d.route]
	if !ok {
		if d.dests == nil {
			d.dests = map[string]uint32{}
		}
		k = uint32(len(d.batch.Destinations))
		d.dests[d.route] = k
		d.batch.Destinations = append(d.batch.Destinations, d.route)
		d.bytes += len(d.route) + 4
	}
	d.bytes += 3
	d.batch.DestinationIndex = append(d.batch.DestinationIndex, k)
}

// limit of one message, in bytes of events and destinations.
func (d *delivery) limit() int {
	if d.s.MaxEventBytes > 0 {
		return min(wire.MaxBatch-(4<<10), d.s.MaxEventBytes)
	}
	return wire.MaxBatch - (4 << 10)
}

func (d *delivery) endRun() {
	if d.run != nil {
		d.batch.Events = append(d.batch.Events, d.run.frame.Framed(d.from, d.to))
		d.run = nil
	}
}

func (d *delivery) flush() {
	if d.batch == nil {
		return
	}
	d.endRun()
	if len(d.batch.Destinations) == 1 {
		d.batch.DestinationIndex = nil
	}
	d.l.send(d.i, Deliver{d.batch})
	d.batch = nil
}
