package conformance

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// reading is one event, or rejected row, that a source sent.
type reading struct {
	id, key  string
	size     uint64
	rejected bool
	standing standing // open, acked or returned
}

// sourceLedger holds a source to the rules of a Read stream: it is told what came and what was answered. It does no I/O.
type sourceLedger struct {
	opened   *pluginv1.SourceOpened
	readings []*reading        // sequence number - 1
	openIDs  map[string]uint64 // event id to its open number
	marks    []mark            // batches with a position, and Progress, that are not acked
	window   *pluginv1.Window
	from     uint64 // numbers up to it have left the window, where the window is a distance

	openCount int
	openBytes uint64

	keys     holding // keys
	loose    holding // ids of events without a key
	idled    uint64  // how many Progress have come
	state    pluginv1.SourceState
	position []byte // last acked
}

// mark is a position and the last number that it covers.
type mark struct {
	seq      uint64
	position []byte
}

// holding is what is left out of reading, from Hold to Release.
type holding map[string]bool // true once it has been answered by Held

func (h holding) ask(what string)        { h[what] = false }
func (h holding) answer(what string)     { h[what] = true }
func (h holding) release(what string)    { delete(h, what) }
func (h holding) held(what string) bool  { return h[what] }
func (h holding) asked(what string) bool { _, ok := h[what]; return ok }

func newSourceLedger(w *pluginv1.Window) *sourceLedger {
	return &sourceLedger{openIDs: map[string]uint64{}, window: w, keys: holding{}, loose: holding{}}
}

// received applies one message and says which rule it breaks.
func (l *sourceLedger) received(m *pluginv1.ReadResponse) error {
	if m.GetMessage() == nil {
		return checkUnknown(m)
	}
	switch r := m.GetMessage().(type) {
	case *pluginv1.ReadResponse_Opened:
		if l.opened != nil {
			return openRule.broken("a second Opened came")
		}
		l.opened = r.Opened
		return nil
	case *pluginv1.ReadResponse_Status:
		l.state = r.Status.GetState()
		return nil
	case *pluginv1.ReadResponse_Fault, *pluginv1.ReadResponse_Stopped:
		return nil
	}
	if l.opened == nil {
		return openRule.broken("%s came before Opened", messageName(m.GetMessage()))
	}
	switch r := m.GetMessage().(type) {
	case *pluginv1.ReadResponse_Batch:
		return l.batch(r.Batch)
	case *pluginv1.ReadResponse_Held:
		for _, k := range r.Held.GetKeys() {
			if !l.keys.asked(string(k)) {
				return holdRule.broken("a Held names key %q, which no Hold has asked for", k)
			}
			l.keys.answer(string(k))
		}
		for _, id := range r.Held.GetIds() {
			if !l.loose.asked(id) {
				return holdRule.broken("a Held names the id %q, which no Hold has asked for", id)
			}
			l.loose.answer(id)
		}
		return nil
	case *pluginv1.ReadResponse_Progress:
		if !l.opened.GetHasPositions() || len(r.Progress.GetPosition()) == 0 {
			return positionRule.broken("a Progress came without a position, or from a source that has none")
		}
		l.idled++
		l.marks = append(l.marks, mark{seq: uint64(len(l.readings)), position: r.Progress.GetPosition()})
		return nil
	}
	return fmt.Errorf("BUG: no rule for %T", m.GetMessage())
}

func (l *sourceLedger) batch(b *pluginv1.Batch) error {
	next := uint64(len(l.readings)) + 1
	if b.GetFirstSeq() != next {
		return numbersRule.broken("a batch starts at number %d; the next one is %d (numbers are consecutive, from 1)", b.GetFirstSeq(), next)
	}
	if n := len(b.GetEvents()) + len(b.GetRejected()); n == 0 || n != int(b.GetCount()) {
		return numbersRule.broken("the batch at %d has count %d and %d events with %d rejected rows", next, b.GetCount(), len(b.GetEvents()), len(b.GetRejected()))
	}
	if n := proto.Size(b); n > maxBatch && b.GetCount() > 1 {
		return sizeRule.broken("the batch at %d has %d bytes; above 4 MiB an event goes alone", next, n)
	}
	if b.GetRedelivered() || len(b.GetDestinations()) > 0 || len(b.GetDestinationIndex()) > 0 {
		return eventRule.broken("the batch at %d sets fields that are the host's: redelivered, destinations or destination_index", next)
	}
	events, rejected := b.GetEvents(), b.GetRejected()
	for offset := range b.GetCount() {
		if len(rejected) > 0 && rejected[0].GetOffset() == offset {
			if err := checkRejected(rejected[0]); err != nil {
				return rejectRule.broken("number %d: %w", next+uint64(offset), err)
			}
			if err := l.read(rejected[0].GetId(), rejected[0].GetKey(), proto.Size(rejected[0])); err != nil {
				return err
			}
			l.readings[len(l.readings)-1].rejected = true
			rejected = rejected[1:]
			continue
		}
		if len(events) == 0 {
			return rejectRule.broken("the batch at %d has a rejected row at an offset that is out of order or beyond the end", next)
		}
		if err := checkEvent(events[0]); err != nil {
			return eventRule.broken("number %d: %w", next+uint64(offset), err)
		}
		if err := l.read(events[0].GetId(), events[0].GetKey(), proto.Size(events[0])); err != nil {
			return err
		}
		events = events[1:]
	}
	if p := b.GetPosition(); len(p) > 0 {
		if !l.opened.GetHasPositions() {
			return positionRule.broken("the batch at %d carries a position; Opened said that the source has none", next)
		}
		l.marks = append(l.marks, mark{seq: uint64(len(l.readings)), position: p})
	}
	return l.checkWindow()
}

func (l *sourceLedger) read(id string, key []byte, size int) error {
	seq := uint64(len(l.readings)) + 1
	if first, ok := l.openIDs[id]; ok {
		return numbersRule.broken("event %q came as number %d and again as %d, while the first was open", id, first, seq)
	}
	switch {
	case len(key) > 0 && l.keys.held(string(key)):
		return holdRule.broken("number %d is of key %q, which the source has answered Held for", seq, key)
	case len(key) == 0 && l.loose.held(id):
		return holdRule.broken("number %d is the event %q without a key, which the source has answered Held for", seq, id)
	}
	l.openIDs[id] = seq
	l.readings = append(l.readings, &reading{id: id, key: string(key), size: uint64(size)})
	l.openCount++
	l.openBytes += uint64(size)
	return nil
}

// checkWindow counts what is open or, where keys can't be held, everything from the oldest open number to the newest.
func (l *sourceLedger) checkWindow() error {
	events, bytes, what := uint64(l.openCount), l.openBytes, "open"
	if !l.opened.GetHoldsKeys() {
		events, bytes, what = 0, 0, "read since the oldest open one"
		for _, r := range l.readings[l.from:] {
			events++
			bytes += r.size
		}
	}
	switch {
	case events > l.window.GetEvents():
		return windowRule.broken("%d events are %s; the window is %d", events, what, l.window.GetEvents())
	case bytes > l.window.GetBytes() && events > 1:
		return windowRule.broken("%d bytes in %d events are %s; the window is %d bytes, which admits one event", bytes, events, what, l.window.GetBytes())
	}
	return nil
}

// end ends a number that is open.
func (l *sourceLedger) end(seq uint64, how standing) {
	r := l.readings[seq-1]
	r.standing = how
	l.openCount--
	l.openBytes -= r.size
	delete(l.openIDs, r.id)
}

// ack makes the ack of every open number up to seq for which one can be made; nil if there is none.
func (l *sourceLedger) ack(through uint64) *pluginv1.SourceAck {
	a := &pluginv1.SourceAck{}
	if l.opened.GetHasPositions() {
		for len(l.marks) > 0 && l.marks[0].seq <= through {
			a.ThroughSeq, a.Position = l.marks[0].seq, l.marks[0].position
			l.marks = l.marks[1:]
		}
		if len(a.GetPosition()) == 0 {
			return nil
		}
		for seq := l.from + 1; seq <= a.GetThroughSeq(); seq++ {
			if l.readings[seq-1].standing == open {
				l.end(seq, acked)
			}
		}
		l.from, l.position = a.GetThroughSeq(), a.GetPosition()
		return a
	}
	a.Ranges = l.take(acked, func(seq uint64, _ *reading) bool { return seq <= through })
	for l.from < uint64(len(l.readings)) && l.readings[l.from].standing != open {
		l.from++
	}
	if len(a.GetRanges()) == 0 {
		return nil
	}
	return a
}

// take ends the open numbers that which picks, and lists them.
func (l *sourceLedger) take(how standing, which func(seq uint64, r *reading) bool) (ranges []*pluginv1.SeqRange) {
	for i, r := range l.readings {
		seq := uint64(i) + 1
		if r.standing != open || !which(seq, r) {
			continue
		}
		l.end(seq, how)
		if n := len(ranges); n > 0 && ranges[n-1].GetLast() == seq-1 {
			ranges[n-1].Last = seq
		} else {
			ranges = append(ranges, &pluginv1.SeqRange{First: seq, Last: seq})
		}
	}
	return ranges
}

// checkRejected says what a person would miss in a rejected row.
func checkRejected(r *pluginv1.Rejected) error {
	switch {
	case r.GetId() == "":
		return errors.New("the rejected row has no id; where the row has none, a stand-in names it for a person")
	case !snakeCase.MatchString(r.GetCode()):
		return fmt.Errorf("the rejected row %q has the code %q; codes are snake_case", r.GetId(), r.GetCode())
	case r.GetMessage() == "":
		return fmt.Errorf("the rejected row %q has no message", r.GetId())
	}
	return nil
}

// checkEvent says which limit of event.proto an event breaks.
func checkEvent(e *pluginv1.Event) error {
	headerBytes := 0
	for _, h := range e.GetHeaders() {
		if h.GetName() == "" {
			return errors.New("a header has no name")
		}
		headerBytes += len(h.GetName()) + len(h.GetValue())
	}
	for _, c := range []struct {
		what       string
		is, atMost int
	}{
		{"bytes of id", len(e.GetId()), maxID},
		{"bytes of key", len(e.GetKey()), maxKey},
		{"bytes of type", len(e.GetType()), maxName},
		{"bytes of aggregate_type", len(e.GetAggregateType()), maxName},
		{"bytes of content_type", len(e.GetContentType()), maxName},
		{"headers", len(e.GetHeaders()), maxHeaders},
		{"bytes of headers", headerBytes, maxHeaderBytes},
		{"bytes in all", proto.Size(e), maxEvent},
	} {
		if c.is > c.atMost {
			return fmt.Errorf("the event has %d %s, the limit is %d; such a row is to be rejected", c.is, c.what, c.atMost)
		}
	}
	if e.GetId() == "" {
		return errors.New("the event has no id; such a row is to be rejected")
	}
	return nil
}
