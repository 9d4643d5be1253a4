package pipeline

import (
	"slices"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// sink is what the ledger knows of one sink.
type sink struct {
	SinkRules
	open       bool
	keepsOrder bool

	// The numbers on its stream. ring[k] is the source number sent as base+k, 0 once it has ended; late has those that
	// have not ended long after their neighbours, so that the ring stays short.
	base        uint64
	ring        []uint64
	late        map[uint64]uint64
	outstanding int // numbers that have not ended
	discarding  int

	cursor uint64         // source number from which on nothing has been looked at
	lanes  map[Lane]*lane // see lane
	ready  []*lane        // lanes in which something may have become possible
	repeat uint64         // source numbers below it may have been given to an earlier process

	spare []*lane // to be used again

	failing map[Lane]struct{} // lanes that failed since the last ack, permanent failures not counted
	probing bool              // a sink that is down may be given one event now
	waiting bool              // … once its back-off is over
	probes  int               // given to it so since the last ack

	acked, filtered uint64 // ever

	crashes    int    // in a row, with the same first event
	crashFirst uint64 // that event
	careful    uint64 // source numbers up to it are given one at a time: one of them kills the sink
}

func (s *sink) reset() {
	s.open, s.base, s.ring, s.late, s.outstanding, s.discarding = false, 1, nil, nil, 0, 0
	s.cursor, s.ready, s.probing, s.waiting, s.repeat = 1, nil, false, false, 0
	s.crashes, s.careful = 0, 0
}

// next is the number of the next event on the stream.
func (s *sink) next() uint64 { return s.base + uint64(len(s.ring)) }

// seqOf returns the source number sent as n, or 0.
func (s *sink) seqOf(n uint64) uint64 {
	if n < s.base {
		return s.late[n]
	}
	if n >= s.next() {
		return 0
	}
	return s.ring[n-s.base]
}

// ended marks a number as ended and shortens the ring.
func (s *sink) ended(n uint64) {
	s.outstanding--
	if n < s.base {
		delete(s.late, n)
		return
	}
	s.ring[n-s.base] = 0
	if n == s.base {
		k := 0
		for k < len(s.ring) && s.ring[k] == 0 {
			k++
		}
		s.ring = s.ring[k:]
		s.base += uint64(k)
	}
}

// shorten moves the numbers that hold the ring open to late.
func (s *sink) shorten(limit int) {
	for len(s.ring) > limit {
		if s.ring[0] != 0 {
			if s.late == nil {
				s.late = map[uint64]uint64{}
			}
			s.late[s.base] = s.ring[0]
		}
		s.ring = s.ring[1:]
		s.base++
	}
}

// ---- its stream

// OnSinkOpened: the sink is ready for events.
func (l *Ledger) OnSinkOpened(i int, keepsOrder bool) {
	s := l.sinks[i]
	s.open, s.keepsOrder = true, keepsOrder
	l.step()
}

// OnSinkEnded: its unsettled events are given to the next process, in order; the source hears nothing. Which keys are
// failing, and their back-off, stay here: the new process knows of none, and is told none. crashed: it did not end the
// stream itself with a reason.
func (l *Ledger) OnSinkEnded(i int, crashed bool) {
	s := l.sinks[i]
	wasOpen := s.open
	first, n, last := uint64(0), 0, uint64(0)
	for _, b := range l.batches {
		for o := range b.n {
			if b.left[o] == gone || b.at[i][o] != sent {
				continue
			}
			b.at[i][o] = again
			if first == 0 {
				first = b.seq(o)
			}
			last = b.seq(o)
			n++
		}
	}
	discarding := s.discarding
	crashes, crashFirst, careful := s.crashes, s.crashFirst, s.careful
	repeat := max(s.cursor, s.repeat)
	s.reset()
	s.discarding, s.repeat = discarding, repeat
	if wasOpen && crashed && first != 0 {
		if first == crashFirst {
			crashes++
		} else {
			crashes = 1
		}
		s.crashes, s.crashFirst, s.careful = crashes, first, careful
		if crashes >= 3 {
			s.careful = max(s.careful, last)
		}
	}
	for id, la := range s.lanes {
		la.queue, la.sent, la.ready = la.queue[:0], 0, false
		if la.gate == nil && la.fail == nil {
			delete(s.lanes, id)
		}
	}
	if wasOpen && crashed && n == 1 && careful >= first { // it had this event alone, and died of it
		b, o := l.find(first)
		l.refuse(i, b, o, permanent("crashes_sink", "the sink's process ended each time it was given this event"))
		s.crashes, s.crashFirst = 0, 0
	}
	if len(l.held) > 0 {
		for _, b := range slices.Clone(l.batches) {
			for o := range b.n {
				l.giveBack(b, o)
			}
		}
	}
	if !l.settling {
		l.send(i, OpenSink{})
	}
	l.step()
}

// OnAck: numbers that the broker has confirmed. through acks all up to it that have not ended.
func (l *Ledger) OnAck(i int, through uint64, ranges []*pluginv1.SeqRange) error {
	s := l.sinks[i]
	if through >= s.next() {
		return protocolError("ack through %d, the last number sent is %d", through, s.next()-1)
	}
	if err := s.checkRanges("ack", ranges); err != nil {
		return err
	}
	prefix := len(ranges) == 0
	if !prefix && s.keepsOrder {
		if err := l.checkOrder(i, through, ranges); err != nil {
			return err
		}
	}
	clear(s.failing)
	s.probing, s.waiting, s.probes = false, false, 0
	if through >= s.base || len(s.late) > 0 {
		for n := range s.late {
			if n <= through {
				if err := l.ack(i, n); err != nil {
					return err
				}
			}
		}
		for n := s.base; n <= through; n++ {
			if n >= s.base && s.seqOf(n) != 0 {
				if err := l.ack(i, n); err != nil {
					return err
				}
			}
		}
	}
	for _, r := range ranges {
		for n := r.GetFirst(); n <= r.GetLast(); n++ {
			if err := l.ack(i, n); err != nil {
				return err
			}
		}
	}
	l.step()
	return nil
}

// checkRanges refuses numbers that are not out (I6), before anything is changed.
func (s *sink) checkRanges(what string, ranges []*pluginv1.SeqRange) error {
	last := uint64(0)
	for _, r := range ranges {
		if r.GetFirst() <= last || r.GetLast() < r.GetFirst() || r.GetLast() >= s.next() {
			return protocolError("%s of %d to %d after %d; the last number sent is %d", what, r.GetFirst(), r.GetLast(), last, s.next()-1)
		}
		last = r.GetLast()
		for n := r.GetFirst(); n <= last; n++ {
			if s.seqOf(n) == 0 {
				return protocolError("%s of number %d, which has ended already", what, n)
			}
		}
	}
	return nil
}

// checkOrder (I3): no number is acked while an earlier one of its key is neither acked before nor by the same message.
func (l *Ledger) checkOrder(i int, through uint64, ranges []*pluginv1.SeqRange) error {
	s := l.sinks[i]
	last := ranges[len(ranges)-1].GetLast()
	passed := map[Lane]uint64{} // lanes with an earlier number that stays open
	look := func(n, seq uint64, acked bool) error {
		b, o := l.find(seq)
		lane := l.lane(b, o)
		if !acked {
			passed[lane] = n
		} else if m, ok := passed[lane]; ok {
			return protocolError("ack of number %d before number %d of the same key", n, m)
		}
		return nil
	}
	late := make([]uint64, 0, len(s.late))
	for n := range s.late {
		late = append(late, n)
	}
	slices.Sort(late)
	k := 0
	in := func(n uint64) bool {
		for k < len(ranges) && ranges[k].GetLast() < n {
			k++
		}
		return n <= through || k < len(ranges) && n >= ranges[k].GetFirst()
	}
	for _, n := range late {
		if n <= last {
			if err := look(n, s.late[n], in(n)); err != nil {
				return err
			}
		}
	}
	for n := s.base; n <= last; n++ {
		if seq := s.seqOf(n); seq != 0 {
			if err := look(n, seq, in(n)); err != nil {
				return err
			}
		}
	}
	return nil
}

// ack settles one number.
func (l *Ledger) ack(i int, n uint64) error {
	s := l.sinks[i]
	seq := s.seqOf(n)
	b, o := l.find(seq)
	if b == nil || b.at[i][o] != sent {
		return protocolError("ack of number %d, which has ended already", n)
	}
	if len(s.lanes) > 0 {
		if la := s.lanes[l.lane(b, o)]; la != nil {
			// I3: an earlier one of its key has failed or was returned, so this one cannot be in.
			if head := l.head(i, la); head != 0 && head < seq {
				return protocolError("ack of number %d, while an earlier event of its key has failed", n)
			}
			la.sent--
			if la.gate == nil { // else it is an event before the one that failed
				la.fail = nil
			}
			s.touch(la)
		}
	}
	if len(l.relapsing) > 0 {
		delete(l.relapsing, l.lane(b, o))
	}
	s.ended(n)
	s.acked++
	b.at[i][o] = settled
	b.left[o]--
	if b.left[o] == 0 {
		l.done(b, o)
	} else {
		l.giveBack(b, o)
	}
	return nil
}

// OnFailure: the broker refused one event on its own.
func (l *Ledger) OnFailure(i int, f *pluginv1.Failure) error {
	s := l.sinks[i]
	seq := s.seqOf(f.GetSeq())
	if seq == 0 {
		return protocolError("failure of number %d, which it does not have", f.GetSeq())
	}
	b, o := l.find(seq)
	s.ended(f.GetSeq())
	if la := s.lanes[l.lane(b, o)]; la != nil {
		la.sent--
	}
	b.at[i][o] = again
	l.refuse(i, b, o, f)
	l.giveBack(b, o)
	l.step()
	return nil
}

// OnReturned: numbers that were not tried, behind a failure of their key.
func (l *Ledger) OnReturned(i int, ranges []*pluginv1.SeqRange) error {
	s := l.sinks[i]
	if err := s.checkRanges("return", ranges); err != nil {
		return err
	}
	for _, r := range ranges {
		for n := r.GetFirst(); n <= r.GetLast(); n++ {
			b, o := l.find(s.seqOf(n))
			la := s.lanes[l.lane(b, o)]
			if la == nil || la.gate == nil { // it would never be released, and so never sent again
				return protocolError("return of number %d, whose key has not failed", n)
			}
			s.ended(n)
			b.at[i][o] = again
			la.sent--
			la.insert(b.seq(o))
			s.touch(la)
			l.giveBack(b, o)
		}
	}
	l.step()
	return nil
}
