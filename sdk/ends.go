package sdk

import (
	"fmt"
	"math/bits"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// ends keeps what a Write stream owes the host: the numbers that have arrived and not ended, and those that have ended
// and of which the host has not heard. It is one bit per number and state, so that acknowledging allocates nothing. Not
// safe for concurrent use.
//
// I6: a number ends once; a number that is not open cannot end.
type ends struct {
	told uint64 // every number up to it has ended, and the host knows
	last uint64 // the last that has arrived

	open, acked, failed, returned seqSet
	failures                      []*pluginv1.Failure
}

// arrive opens the next n numbers.
func (e *ends) arrive(n int) {
	first := e.last + 1
	e.last += uint64(n)
	for _, s := range e.sets() {
		s.reserve(e.told, first-1, e.last)
	}
	e.open.addRange(first, e.last)
}

func (e *ends) sets() [4]*seqSet { return [4]*seqSet{&e.open, &e.acked, &e.failed, &e.returned} }

// end moves an open number to a set. It reports whether the number was open.
func (e *ends) end(seq uint64, to *seqSet) bool {
	if seq <= e.told || seq > e.last || !e.open.has(seq) {
		return false
	}
	e.open.remove(seq)
	to.add(seq)
	return true
}

func (e *ends) ack(seq uint64) bool { return e.end(seq, &e.acked) }

func (e *ends) giveBack(seq uint64) bool { return e.end(seq, &e.returned) }

func (e *ends) fail(f *pluginv1.Failure) bool {
	if !e.end(f.GetSeq(), &e.failed) {
		return false
	}
	e.failures = append(e.failures, f)
	return true
}

// why says for a message what is wrong with a number that could not end.
func (e *ends) why(seq uint64) string {
	if seq == 0 || seq > e.last {
		return fmt.Sprintf("number %d was never sent; the last is %d", seq, e.last)
	}
	return fmt.Sprintf("number %d has ended already", seq)
}

// news is what the host is to hear, in this order: acks before failures, since an ack of an earlier event of the same
// key may be among them, and failures before what was returned because of them.
type news struct {
	ack      *pluginv1.SinkAck // nil: none
	failures []*pluginv1.Failure
	returned []*pluginv1.SeqRange
}

// take returns what is to be told, and takes it for told.
func (e *ends) take() news {
	var n news
	// What is failed or returned by the same take is not yet known to the host when it gets the ack: through_seq must stop
	// before it, or it would ack that too.
	through := min(e.open.next(e.told+1, e.last), e.failed.next(e.told+1, e.last), e.returned.next(e.told+1, e.last)) - 1
	var ack pluginv1.SinkAck
	if e.acked.next(e.told+1, through) <= through {
		ack.ThroughSeq = through
		e.acked.clear(e.told+1, through)
	}
	ack.Ranges = e.acked.takeRanges(through+1, e.last)
	if ack.ThroughSeq > 0 || len(ack.Ranges) > 0 {
		n.ack = &ack
	}
	n.failures, e.failures = e.failures, nil
	if len(n.failures) > 0 {
		e.failed.clear(e.told+1, e.last)
	}
	n.returned = e.returned.takeRanges(e.told+1, e.last)
	e.told = e.open.next(e.told+1, e.last) - 1
	return n
}

// seqSet is a set of numbers within a window that moves up: a ring of bits.
type seqSet struct{ words []uint64 }

func (s *seqSet) word(seq uint64) *uint64 { return &s.words[seq/64&uint64(len(s.words)-1)] }

// reserve makes room for the numbers above low, up to high. Those up to last may be in the set.
func (s *seqSet) reserve(low, last, high uint64) {
	need := high/64 - low/64 + 1
	if need <= uint64(len(s.words)) {
		return
	}
	grown := seqSet{words: make([]uint64, max(16, 1<<bits.Len64(need-1)))}
	if len(s.words) > 0 {
		for w := low / 64; w <= last/64; w++ {
			*grown.word(w * 64) = *s.word(w * 64)
		}
	}
	*s = grown
}

func (s *seqSet) has(seq uint64) bool { return *s.word(seq)>>(seq%64)&1 != 0 }
func (s *seqSet) add(seq uint64)      { *s.word(seq) |= 1 << (seq % 64) }
func (s *seqSet) remove(seq uint64)   { *s.word(seq) &^= 1 << (seq % 64) }

// mask has the bits of word w that stand for numbers from first to last.
func mask(w, first, last uint64) uint64 {
	m := ^uint64(0)
	if w == first/64 {
		m &= ^uint64(0) << (first % 64)
	}
	if w == last/64 {
		m &= ^uint64(0) >> (63 - last%64)
	}
	return m
}

func (s *seqSet) addRange(first, last uint64) {
	for w := first / 64; w <= last/64; w++ {
		*s.word(w * 64) |= mask(w, first, last)
	}
}

func (s *seqSet) clear(first, last uint64) {
	for w := first / 64; first <= last && w <= last/64; w++ {
		*s.word(w * 64) &^= mask(w, first, last)
	}
}

// next is the first number of the set from first to last; last+1: none.
func (s *seqSet) next(first, last uint64) uint64 {
	for w := first / 64; first <= last && w <= last/64; w++ {
		if b := *s.word(w * 64) & mask(w, first, last); b != 0 {
			return w*64 + uint64(bits.TrailingZeros64(b))
		}
	}
	return last + 1
}

// nextOut is the first number from first to last that is not in the set; last+1: none.
func (s *seqSet) nextOut(first, last uint64) uint64 {
	for w := first / 64; first <= last && w <= last/64; w++ {
		if b := ^*s.word(w * 64) & mask(w, first, last); b != 0 {
			return w*64 + uint64(bits.TrailingZeros64(b))
		}
	}
	return last + 1
}

// takeRanges removes the numbers from first to last and returns them as runs.
func (s *seqSet) takeRanges(first, last uint64) []*pluginv1.SeqRange {
	var r []*pluginv1.SeqRange
	for at := s.next(first, last); at <= last; {
		end := s.nextOut(at, last) - 1
		r = append(r, &pluginv1.SeqRange{First: at, Last: end})
		at = s.next(end+1, last)
	}
	s.clear(first, last)
	return r
}
