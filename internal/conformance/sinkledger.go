package conformance

import (
	"fmt"
	"slices"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// How a number stands.
type standing int

const (
	open standing = iota
	acked
	failed
	returned
)

func (s standing) String() string { return [...]string{"open", "acked", "failed", "returned"}[s] }

// number is one event on a stream.
type number struct {
	event    *pluginv1.Event
	standing standing
	failure  *pluginv1.Failure
}

// sinkLedger holds a sink to the rules of a Write stream: it is told what was sent and what came back. It does no I/O.
type sinkLedger struct {
	opened     *pluginv1.SinkOpened
	numbers    []*number           // sequence number - 1
	openOf     map[string][]uint64 // by key: the open numbers, ascending
	failedAt   map[string]uint64   // by key: the number of its first Failure, until Release
	again      map[string]bool     // keys that were released
	openCount  int
	through    uint64 // every number up to it has ended
	stopping   bool
	state      pluginv1.SinkState
	stateText  string
	ackedCount int
}

func newSinkLedger() *sinkLedger {
	return &sinkLedger{openOf: map[string][]uint64{}, failedAt: map[string]uint64{}, again: map[string]bool{}}
}

// next is the number that the next event gets.
func (l *sinkLedger) next() uint64 { return uint64(len(l.numbers)) + 1 }

func (l *sinkLedger) sent(e *pluginv1.Event) uint64 {
	seq := l.next()
	l.numbers = append(l.numbers, &number{event: e})
	l.openCount++
	if k := string(e.GetKey()); k != "" {
		l.openOf[k] = append(l.openOf[k], seq)
	}
	return seq
}

func (l *sinkLedger) released(key string) {
	delete(l.failedAt, key)
	l.again[key] = true
}

// at is the number seq, which must have been sent.
func (l *sinkLedger) at(seq uint64) (*number, error) {
	if seq < 1 || seq > uint64(len(l.numbers)) {
		return nil, numbersRule.broken("number %d was never sent; the last one was %d", seq, len(l.numbers))
	}
	return l.numbers[seq-1], nil
}

// end ends a number.
func (l *sinkLedger) end(seq uint64, how standing) (*number, error) {
	n, err := l.at(seq)
	if err != nil {
		return nil, err
	}
	if n.standing != open {
		return nil, numbersRule.broken("number %d ended twice: first %v, now %v", seq, n.standing, how)
	}
	n.standing = how
	l.openCount--
	if how == acked {
		l.ackedCount++
	}
	if k := string(n.event.GetKey()); k != "" {
		i, _ := slices.BinarySearch(l.openOf[k], seq)
		l.openOf[k] = slices.Delete(l.openOf[k], i, i+1)
	}
	for l.through < uint64(len(l.numbers)) && l.numbers[l.through].standing != open {
		l.through++
	}
	return n, nil
}

// received applies one message and says which rule it breaks.
func (l *sinkLedger) received(m *pluginv1.WriteResponse) error {
	if m.GetMessage() == nil {
		return checkUnknown(m)
	}
	switch r := m.GetMessage().(type) {
	case *pluginv1.WriteResponse_Opened:
		if l.opened != nil {
			return openRule.broken("a second Opened came")
		}
		l.opened = r.Opened
		return nil
	case *pluginv1.WriteResponse_Status:
		l.state, l.stateText = r.Status.GetState(), r.Status.GetText()
		return nil
	case *pluginv1.WriteResponse_Fault:
		return nil
	case *pluginv1.WriteResponse_Stopped:
		switch {
		case !l.stopping:
			return stopRule.broken("a Stopped came without Stop")
		case l.openCount > 0:
			return stopRule.broken("a Stopped came while %d numbers had not ended, the first of them %d", l.openCount, l.through+1)
		}
		return nil
	}
	if l.opened == nil {
		return openRule.broken("%s came before Opened", messageName(m.GetMessage()))
	}
	switch r := m.GetMessage().(type) {
	case *pluginv1.WriteResponse_Ack:
		return l.ack(r.Ack)
	case *pluginv1.WriteResponse_Failure:
		return l.fail(r.Failure)
	case *pluginv1.WriteResponse_Returned:
		return l.giveBack(r.Returned)
	}
	return fmt.Errorf("BUG: no rule for %T", m.GetMessage())
}

func (l *sinkLedger) ack(a *pluginv1.SinkAck) error {
	var seqs []uint64
	if t := a.GetThroughSeq(); t > 0 {
		if _, err := l.at(t); err != nil {
			return fmt.Errorf("ack through %d: %w", t, err)
		}
		for seq := l.through + 1; seq <= t; seq++ {
			if l.numbers[seq-1].standing == open {
				seqs = append(seqs, seq)
			}
		}
	}
	ranges, err := l.expand(a.GetRanges())
	if err != nil {
		return fmt.Errorf("ack: %w", err)
	}
	seqs = append(seqs, ranges...)
	slices.Sort(seqs) // one ack is one moment: within it there is no order
	for _, seq := range seqs {
		n, err := l.at(seq)
		if err != nil {
			return fmt.Errorf("ack: %w", err)
		}
		if k := string(n.event.GetKey()); k != "" && n.standing == open {
			// I3: not before every earlier event of the key is acked.
			if first := l.openOf[k][0]; first != seq {
				return orderRule.broken("number %d of key %q was acked before number %d of the same key", seq, k, first)
			}
			if f, ok := l.failedAt[k]; ok && seq > f {
				return behindRule.broken("number %d of key %q was acked after number %d of that key had failed, and before Release", seq, k, f)
			}
		}
		if _, err := l.end(seq, acked); err != nil {
			return fmt.Errorf("ack: %w", err)
		}
	}
	return nil
}

func (l *sinkLedger) fail(f *pluginv1.Failure) error {
	n, err := l.end(f.GetSeq(), failed)
	if err != nil {
		return fmt.Errorf("failure: %w", err)
	}
	n.failure = f
	if f.GetClass() == pluginv1.ErrorClass_ERROR_CLASS_UNSPECIFIED {
		return failureRule.broken("the failure of number %d has no class", f.GetSeq())
	}
	if f.GetCode() == "" || f.GetMessage() == "" {
		return failureRule.broken("the failure of number %d says neither code nor message, or only one of them", f.GetSeq())
	}
	k := string(n.event.GetKey())
	if k == "" {
		return nil
	}
	if at, ok := l.failedAt[k]; ok && f.GetSeq() > at {
		return behindRule.broken("number %d of key %q failed behind number %d of that key, which had failed: it is to be returned", f.GetSeq(), k, at)
	}
	l.failedAt[k] = f.GetSeq()
	return nil
}

func (l *sinkLedger) giveBack(r *pluginv1.Returned) error {
	seqs, err := l.expand(r.GetRanges())
	if err != nil {
		return fmt.Errorf("returned: %w", err)
	}
	for _, seq := range seqs {
		n, err := l.end(seq, returned)
		if err != nil {
			return fmt.Errorf("returned: %w", err)
		}
		if k := string(n.event.GetKey()); l.again[k] && l.failedAt[k] == 0 && !l.stopping {
			return behindRule.broken("number %d of key %q was returned after Release of that key", seq, k)
		}
		// From Stop on what was not tried may go back as it is: the host offers nothing more on this stream.
		k := string(n.event.GetKey())
		if at, ok := l.failedAt[k]; (k == "" || !ok || seq < at) && !l.stopping {
			return behindRule.broken("number %d of key %q was returned, and no earlier event of that key has failed", seq, k)
		}
	}
	return nil
}

// expand lists the numbers of ranges, which must ascend.
func (l *sinkLedger) expand(ranges []*pluginv1.SeqRange) ([]uint64, error) {
	var seqs []uint64
	last := uint64(0)
	for _, r := range ranges {
		if r.GetFirst() <= last || r.GetLast() < r.GetFirst() {
			return nil, numbersRule.broken("range %d to %d behind %d: ranges ascend and do not overlap", r.GetFirst(), r.GetLast(), last)
		}
		if _, err := l.at(r.GetLast()); err != nil {
			return nil, err
		}
		for seq := r.GetFirst(); seq <= r.GetLast(); seq++ {
			seqs = append(seqs, seq)
		}
		last = r.GetLast()
	}
	return seqs, nil
}
