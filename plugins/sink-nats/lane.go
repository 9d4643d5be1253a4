package main

import (
	"github.com/relevo-io/relevo/sdk"
)

// place is where an entry is on its way through the sink.
type place uint8

const (
	waiting  place = iota // in its lane only: an earlier event of the key is at another stream, or the stream is not known yet
	queued                // in its outlet's queue
	parked                // taken from the queue for a single publish while its key was in flight
	ready                 // was parked, and is next of its key
	inflight              // given to the broker
	ended                 // acked, failed or returned
)

// entry is one event at this sink.
type entry struct {
	*sdk.Item
	lane    *lane
	outlet  *outlet    // nil: not known yet
	verdict *sdk.Error // what preflight found; the event fails when it is first of its key
	size    int        // of its message, without a batch's headers
	place   place
	resent  bool // given to the broker before: a duplicate confirmation is no surprise
	suspect bool // of a refused batch, sent singly to find the culprit
	solo    bool // would be too large with the headers of a batch
	since   int64

	own lane // of an event that shares its lane with nobody
}

// lane is the events of one key that have not ended, in order. An event without a key has a lane of its own, and so has
// each event where the host keeps the order.
//
// I4: a lane's events are at one outlet at a time; those for another wait until it is empty. Within an outlet either a
// batch has several of them, which is accepted or refused as a whole, or one is in flight and the rest is parked.
type lane struct {
	key   string // "": not in the map
	items []*entry
	first [1]*entry // behind items while there is one
}

// add appends an entry and says whether it may go on to its outlet at once.
func (l *lane) add(en *entry) bool {
	en.lane = l
	if len(l.items) == 0 {
		l.first[0] = en
		l.items = l.first[:]
		return true
	}
	last := l.items[len(l.items)-1]
	l.items = append(l.items, en)
	return last.place != waiting && last.outlet == en.outlet && en.outlet != nil && en.verdict == nil
}

// pop removes the first entry, which must be en: order is kept by construction, and this is where a hole would show.
func (l *lane) pop(en *entry) {
	if l.items[0] != en {
		panic("BUG: an event ended before an earlier one of its key")
	}
	l.items = l.items[1:]
}

// laneOf is the lane that an arriving event belongs to.
func (e *engine) laneOf(en *entry) *lane {
	if !e.keepsOrder || len(en.Key) == 0 {
		return &en.own
	}
	l := e.lanes[string(en.Key)]
	if l == nil {
		l = &lane{key: string(en.Key)}
		e.lanes[l.key] = l
	}
	return l
}

// admit takes an event in: finds its stream, looks for what is sure to be refused, and puts it in line.
func (e *engine) admit(en *entry, limit int) {
	e.open++
	size, err := e.compose.preflight(en.Item, limit)
	en.size = size
	if err != nil {
		en.verdict = sdk.ErrorOf(err)
	} else {
		e.route(en)
	}
	if l := e.laneOf(en); l.add(en) {
		e.advance(l)
	}
}

// advance lets the events at the front of a lane go where they belong, after its front has changed.
func (e *engine) advance(l *lane) {
	if len(l.items) == 0 {
		if l.key != "" {
			delete(e.lanes, l.key)
		}
		return
	}
	head := l.items[0]
	switch {
	case head.place == parked:
		head.place = ready
		head.outlet.ready = append(head.outlet.ready, head)
	case head.place != waiting: // on its way; what is behind it and may go with it went with it
	case head.verdict != nil:
		e.fail(head, head.verdict) // nothing of the lane is left
	case head.outlet != nil:
		head.outlet.push(head)
		follow(l)
	}
}

// follow queues the entries behind the front that go to the same outlet.
func follow(l *lane) {
	to := l.items[0].outlet
	for _, en := range l.items[1:] {
		if en.place != waiting {
			continue
		}
		if en.outlet != to || en.verdict != nil {
			return
		}
		to.push(en)
	}
}

// ack ends entries that the broker has confirmed, each of which is first of its lane when its turn comes.
func (e *engine) ack(entries []*entry) {
	e.seqs = e.seqs[:0]
	for _, en := range entries {
		e.end(en)
		e.seqs = append(e.seqs, en.Seq)
		en.lane.pop(en)
	}
	// I3: these, and with them every earlier event of their keys, are confirmed.
	e.out.Ack(e.seqs...)
	for _, en := range entries {
		e.advance(en.lane)
	}
}

// fail ends an entry that was refused on its own. What is behind it in its lane has not been given to the broker, or was
// refused together with it, and goes back.
func (e *engine) fail(en *entry, err error) {
	e.end(en)
	en.lane.pop(en)
	e.counts.failures++
	e.out.Fail(en.Item, err)
	l := en.lane
	e.seqs = e.seqs[:0]
	for _, behind := range l.items {
		if behind.place == inflight {
			panic("BUG: an event failed while a later one of its key was in flight")
		}
		e.end(behind)
		e.seqs = append(e.seqs, behind.Seq)
	}
	l.items = nil
	if l.key != "" {
		delete(e.lanes, l.key)
	}
	if len(e.seqs) > 0 {
		e.out.Return(e.seqs...)
	}
}

// end marks an entry as ended. What still refers to it, a queue or a lookup, passes over it.
func (e *engine) end(en *entry) {
	e.open--
	if en.suspect {
		en.outlet.suspects--
	}
	if en.place == queued {
		en.outlet.queuedCount--
	}
	en.place = ended
}
