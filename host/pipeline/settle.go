package pipeline

import (
	"time"
)

// finished is a batch every number of which is settled.
type finished struct {
	arrived time.Time
	events  int
}

// mark is a position, good once every number through seq is settled.
type mark struct {
	seq uint64
	pos []byte
}

// done: an entry is settled at every sink (I1).
func (l *Ledger) done(b *batch, o int) {
	b.pending--
	if b.pending == 0 {
		l.finished = append(l.finished, finished{b.arrived, b.n})
	}
	if l.hasPositions {
		return // it leaves with its position, so that the distance is measured from there
	}
	l.ackable.add(b.seq(o))
	l.end(b, o)
}

// settle acks to the source what may be acked.
func (l *Ledger) settle() {
	if !l.hasPositions {
		if len(l.ackable) > 0 && l.sourceOpen {
			l.send(Source, SourceAck{Ranges: l.ackable.sorted()})
		}
		l.ackable = nil
		return
	}
	if l.storing || len(l.marks) == 0 {
		return
	}
	// Only whole batches of the settled prefix leave the ledger: a crash repeats no more than a window.
	through := l.nextSeq - 1
	for _, b := range l.batches {
		if b.pending > 0 {
			through = b.first - 1
			break
		}
	}
	var m mark
	for len(l.marks) > 0 && l.marks[0].seq <= through {
		m, l.marks = l.marks[0], l.marks[1:]
	}
	if m.pos == nil {
		return
	}
	for len(l.batches) > 0 && l.batches[0].first <= m.seq {
		b := l.batches[0]
		l.events -= b.open
		l.bytes -= b.kept
		l.live -= b.live
		l.batches[0], l.hint = nil, nil
		l.batches = l.batches[1:]
	}
	l.storing = true
	l.send(Source, StorePosition{m.pos, m.seq})
}

// OnStored: the position is durable; now, and only now, the source may hear of it (I2).
func (l *Ledger) OnStored(p StorePosition) {
	l.stored, l.storing = p.Position, false
	if l.sourceOpen {
		l.send(Source, SourceAck{ThroughSeq: p.Through, Position: p.Position})
	}
	var passed []Discard
	for d, seq := range l.discarded {
		if seq != 0 && seq <= p.Through {
			passed = append(passed, d)
			delete(l.discarded, d)
		}
	}
	if passed != nil {
		l.send(Source, ForgetDiscards{passed})
	}
	l.step()
}
