package pipeline

import (
	"slices"
	"sort"
)

// down: a sink without keeps_order that fails everything it is given. (One with keeps_order says so itself.)
func (l *Ledger) down(i int) bool {
	s := l.sinks[i]
	return l.rules.DownAfter > 0 && !s.keepsOrder && len(s.failing) >= l.rules.DownAfter
}

// dispatch sends what may go to a sink. I4: a sink without keeps_order has one event of a key at a time; nothing passes
// an earlier event of its key; nothing of a key that has failed or is held goes, but its head.
func (l *Ledger) dispatch(i int) {
	s := l.sinks[i]
	if !s.open {
		return
	}
	d := delivery{l: l, i: i, s: s}
	mark := len(l.out)
	if s.careful > 0 && s.outstanding == 0 {
		s.careful = l.stillCareful(i)
		for _, la := range s.lanes {
			s.touch(la) // each may go now, alone
		}
	}
	if l.down(i) {
		l.queueNew(&d)
		l.probe(&d)
	} else {
		l.takeReady(&d)
		l.takeNew(&d)
		l.takeReady(&d)
	}
	d.flush()
	if len(d.released) > 0 {
		// A Release stands before the events that it lets through.
		l.out = slices.Insert(l.out, mark, Out{i, Release{Keys: d.released}})
	}
	s.shorten(4*l.rules.WindowEvents + 64)
}

// stillCareful is s.careful until everything up to it is settled at this sink.
func (l *Ledger) stillCareful(i int) uint64 {
	s := l.sinks[i]
	for _, b := range l.batches {
		for o := range b.n {
			if b.seq(o) > s.careful {
				return 0
			}
			if b.left[o] != gone && b.at[i][o] != settled {
				return s.careful
			}
		}
	}
	return 0
}

// mustWait: the event may be the one that kills the sink, and goes alone.
func (s *sink) mustWait(seq uint64) bool { return seq <= s.careful && s.outstanding > 0 }

// takeNew goes on from the cursor.
func (l *Ledger) takeNew(d *delivery) { l.fromCursor(d, true) }

// queueNew puts what is new into its lanes, for a sink that is down.
func (l *Ledger) queueNew(d *delivery) { l.fromCursor(d, false) }

func (l *Ledger) fromCursor(d *delivery, direct bool) {
	s := d.s
	if s.cursor >= l.nextSeq {
		return
	}
	from := sort.Search(len(l.batches), func(k int) bool { b := l.batches[k]; return b.first+uint64(b.n) > s.cursor })
	for _, b := range l.batches[from:] {
		at := b.at[d.i]
		// The common case: a sink that keeps order, no key in trouble anywhere. No key is even looked at.
		plain := direct && s.keepsOrder && len(s.lanes) == 0 && len(l.held) == 0 && b.rejected == nil && s.careful == 0
		for o := int(max(s.cursor, b.first) - b.first); o < b.n; o++ {
			if b.left[o] == gone || at[o] == settled || at[o] == sent {
				continue
			}
			if plain && d.add(b, o) {
				plain = len(s.lanes) == 0
				continue
			}
			l.queue(d, b, o)
		}
		s.cursor = b.first + uint64(b.n)
	}
	s.cursor = l.nextSeq
}

// queue puts an event into its lane, or sends it where the lane has no trouble.
func (l *Ledger) queue(d *delivery, b *batch, o int) {
	s := d.s
	id := l.lane(b, o)
	la := s.lanes[id]
	if la == nil && s.keepsOrder && l.held[id] == nil && !b.isRejected(o) && b.at[d.i][o] != discarding &&
		!s.mustWait(b.seq(o)) && d.add(b, o) {
		return
	}
	if la == nil {
		la = l.laneAt(d.i, id)
	}
	la.insert(b.seq(o))
	s.touch(la)
}

// takeReady looks at the lanes in which something may have become possible.
func (l *Ledger) takeReady(d *delivery) {
	s := d.s
	lanes := s.ready
	s.ready = nil
	for _, la := range lanes {
		la.ready = false
		l.openGate(d, la)
		for l.sendHead(d, la) {
		}
		if s.lanes[la.id] == la && l.idle(d.i, la) {
			s.forget(la)
		}
	}
}

// probe gives a sink that is down one event, once its back-off is over: of a key that has not failed yet, if there is
// one, so that each gets its turn.
func (l *Ledger) probe(d *delivery) {
	s := d.s
	if s.outstanding > 0 {
		return
	}
	if !s.probing {
		if !s.waiting {
			s.waiting = true
			l.send(Source, ProbeLater{d.i, s.probes})
		}
		return
	}
	for _, fresh := range []bool{true, false} {
		for _, la := range s.ready {
			if _, failed := s.failing[la.id]; failed == fresh {
				continue
			}
			l.openGate(d, la)
			if l.sendHead(d, la) {
				s.probing = false
				s.probes++
				return
			}
		}
	}
}

// idle: nothing needs the lane any more.
func (l *Ledger) idle(i int, la *lane) bool {
	return la.gate == nil && la.fail == nil && la.sent == 0 && l.head(i, la) == 0
}

// openGate releases a lane whose time has come. Only when every number of it at that sink has ended: else a later
// event, sent after it, could pass one that is still on its way back (I4, I5).
func (l *Ledger) openGate(d *delivery, la *lane) {
	if la.gate == nil || !la.gate.due || la.sent > 0 {
		return
	}
	if h := l.held[la.id]; h != nil && h.head == 0 {
		return
	}
	l.openGateAt(d.s, la, &d.released)
}

func (l *Ledger) openGateAt(s *sink, la *lane, released *[][]byte) {
	if la.gate.keyed && s.open && s.keepsOrder {
		*released = append(*released, la.gate.key)
	}
	la.gate = nil
}

// sendHead sends the first event of a lane if it may go, and reports whether it did, so that the next may be looked at.
func (l *Ledger) sendHead(d *delivery, la *lane) bool {
	s := d.s
	seq := l.head(d.i, la)
	if seq == 0 || la.gate != nil {
		return false
	}
	b, o := l.find(seq)
	switch b.at[d.i][o] {
	case discarding:
		return false
	case sent:
		panic("BUG: an event that is at the sink waits in its lane")
	}
	if h := l.held[la.id]; h != nil && h.head != seq {
		return false
	}
	if la.sent > 0 && (!s.keepsOrder || b.isRejected(o)) || s.mustWait(seq) {
		return false
	}
	if b.isRejected(o) { // never offered: it fails here, at the head of its lane
		r := b.rejected[o]
		l.refuse(d.i, b, o, permanent(r.GetCode(), r.GetMessage()))
		return false
	}
	if refusal := d.prepare(b, o); refusal != nil {
		if la.sent == 0 {
			l.refuse(d.i, b, o, permanent(refusal.Code, refusal.Message))
		}
		return false
	}
	la.pop()
	la.sent++
	d.push(b, o)
	return true
}
