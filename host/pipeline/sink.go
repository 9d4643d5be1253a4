package pipeline

import (
	"bytes"
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

	acked, filtered uint64 // ever

	crashes    int    // in a row, with the same first event
	crashFirst uint64 // that event
	careful    uint64 // source numbers up to it are given one at a time: one of them kills the sink
}

// lane is one key at one sink. A sink that keeps order has lanes only for keys in trouble; any other has one for each
// key with an unsettled event, since it is given one event of a key at a time.
type lane struct {
	id    Lane
	queue []uint64 // source numbers that wait here, ascending; some may have left the ledger since
	sent  int      // numbers at the sink
	gate  *gate    // shut from a failure until the Release
	fail  *Failing // the failure that lasts: nil once an event of the lane is acked
	ready bool     // is in sink.ready
}

// gate is shut at one sink for one lane.
type gate struct {
	due   bool // it may be opened, once every number of the lane has ended
	keyed bool // the sink, if it keeps order, must hear of it
	key   []byte
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
		l.refuse(i, b, o, pluginv1.ErrorClass_ERROR_CLASS_PERMANENT, "crashes_sink",
			"the sink's process ended each time it was given this event")
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
	s.probing, s.waiting = false, false
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
	l.refuse(i, b, o, f.GetClass(), f.GetCode(), f.GetMessage())
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

// ---- lanes

// touch looks at a lane again at the next dispatch.
func (s *sink) touch(la *lane) {
	if !la.ready {
		la.ready = true
		s.ready = append(s.ready, la)
	}
}

// lane of the sink, made if need be. What of it is at the sink already is counted then.
func (l *Ledger) laneAt(i int, id Lane) *lane {
	s := l.sinks[i]
	la := s.lanes[id]
	if la == nil {
		if k := len(s.spare) - 1; k >= 0 {
			la, s.spare = s.spare[k], s.spare[:k]
			la.id = id
		} else {
			la = &lane{id: id}
		}
		if s.keepsOrder && s.outstanding > 0 {
			count := func(seq uint64) {
				if seq != 0 {
					if b, o := l.find(seq); l.lane(b, o) == id {
						la.sent++
					}
				}
			}
			for _, seq := range s.ring {
				count(seq)
			}
			for _, seq := range s.late {
				count(seq)
			}
		}
		s.lanes[id] = la
	}
	return la
}

// forget drops a lane that nothing needs any more.
func (s *sink) forget(la *lane) {
	delete(s.lanes, la.id)
	if !la.ready && len(s.spare) < 1024 && cap(la.queue) <= 64 {
		*la = lane{queue: la.queue[:0]}
		s.spare = append(s.spare, la)
	}
}

// insert puts a number back in its place.
func (la *lane) insert(seq uint64) {
	if k := len(la.queue); k == 0 || la.queue[k-1] < seq {
		la.queue = append(la.queue, seq)
		return
	}
	if k, found := slices.BinarySearch(la.queue, seq); !found {
		la.queue = slices.Insert(la.queue, k, seq)
	}
}

// pop takes the first number out; the slice keeps its memory.
func (la *lane) pop() {
	if len(la.queue) == 1 {
		la.queue = la.queue[:0]
		return
	}
	la.queue = la.queue[1:]
}

// head is the first number that waits in the lane; those that have left the ledger, or were given up by policy, are
// taken out. 0: none.
func (l *Ledger) head(i int, la *lane) uint64 {
	for len(la.queue) > 0 {
		if b, o := l.find(la.queue[0]); b != nil && b.left[o] != gone && b.at[i][o] != settled {
			return la.queue[0]
		}
		la.pop()
	}
	return 0
}

// refuse shuts the lane at this sink (I4). Under a policy of discard, a permanent refusal is noted durably first: else,
// after a crash, a broker that has come to like the event would see it behind its successors.
func (l *Ledger) refuse(i int, b *batch, o int, class pluginv1.ErrorClass, code, message string) {
	s := l.sinks[i]
	id, name := b.name(o)
	name.key = bytes.Clone(name.key) // it outlives the batch
	la := l.laneAt(i, l.lane(b, o))
	la.insert(b.seq(o))
	if class == pluginv1.ErrorClass_ERROR_CLASS_UNSPECIFIED {
		class = pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT
	}
	f := Failing{Sink: i, EventID: id, Key: name.key, Class: class, Code: code, Message: message, Since: l.now, Attempts: 1}
	if la.fail != nil {
		f.Since, f.Attempts = la.fail.Since, la.fail.Attempts+1
	} else if r, ok := l.relapsing[la.id]; ok {
		f.Since, f.Attempts = r.Since, r.Attempts+1
	}
	if class == pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT && l.rules.GiveUpAfter > 0 && l.now.Sub(f.Since) > l.rules.GiveUpAfter {
		class = pluginv1.ErrorClass_ERROR_CLASS_PERMANENT
		f.Class = class
	}
	la.fail = &f
	la.gate = &gate{keyed: name.key != nil, key: name.key}
	if class == pluginv1.ErrorClass_ERROR_CLASS_PERMANENT {
		if s.DiscardPermanent {
			b.at[i][o] = discarding
			s.discarding++
			l.send(Source, StoreDiscard{Discard{i, id}, l.newestPosition()})
			return
		}
	} else {
		s.failing[la.id] = struct{}{}
	}
	l.send(Source, RetryLater{Sink: i, Lane: la.id, Failing: f})
	if _, ok := l.relapsing[la.id]; ok { // it was held and has been read again in vain: no need to wait for long
		l.hold(la.id)
	}
}

func (l *Ledger) newestPosition() []byte {
	if len(l.marks) == 0 {
		return nil
	}
	return l.marks[len(l.marks)-1].pos
}

// OnDiscardStored: the note is durable; the event is settled by policy, and its key goes on.
func (l *Ledger) OnDiscardStored(d Discard) {
	l.discarded[d] = 0
	s := l.sinks[d.Sink]
	for _, b := range slices.Clone(l.batches) {
		for o := range b.n {
			if b.at[d.Sink][o] != discarding {
				continue
			}
			id, _ := b.name(o)
			if id != d.EventID {
				continue
			}
			s.discarding--
			b.at[d.Sink][o] = settled
			b.left[o]--
			l.discarded[d] = b.seq(o)
			if la := s.lanes[l.lane(b, o)]; la != nil {
				la.fail = nil
				if la.gate != nil {
					la.gate.due = true
				}
				s.touch(la)
			}
			if b.left[o] == 0 {
				l.done(b, o)
			} else {
				l.giveBack(b, o)
			}
		}
	}
	l.step()
}

// OnRetryDue: the back-off of a lane at a sink is over. attempts tells which one; an older one is ignored.
func (l *Ledger) OnRetryDue(i int, id Lane, attempts int) {
	s := l.sinks[i]
	la := s.lanes[id]
	if la == nil || la.gate == nil || la.fail == nil || la.fail.Attempts != attempts {
		return
	}
	la.gate.due = true
	s.touch(la)
	l.step()
}

// OnProbeDue: a sink that is down may be tried again.
func (l *Ledger) OnProbeDue(i int) {
	s := l.sinks[i]
	s.waiting, s.probing = false, true
	l.step()
}
