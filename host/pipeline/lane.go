package pipeline

import (
	"bytes"
	"slices"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

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

// refuse shuts the lane at this sink (I4); the failure says why. Under a policy of discard, a permanent refusal is noted
// durably first: else, after a crash, a broker that has come to like the event would see it behind its successors.
func (l *Ledger) refuse(i int, b *batch, o int, f *pluginv1.Failure) {
	s := l.sinks[i]
	id, name := b.name(o)
	name.key = bytes.Clone(name.key) // it outlives the batch
	la := l.laneAt(i, l.lane(b, o))
	la.insert(b.seq(o))
	class := f.GetClass()
	if class == pluginv1.ErrorClass_ERROR_CLASS_UNSPECIFIED {
		class = pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT
	}
	n := Failing{
		Sink: i, EventID: id, Key: name.key, Class: class, Code: f.GetCode(), Message: f.GetMessage(), Hint: f.GetHint(), Since: l.now, Attempts: 1,
	}
	if la.fail != nil {
		n.Since, n.Attempts = la.fail.Since, la.fail.Attempts+1
	} else if r, ok := l.relapsing[la.id]; ok {
		n.Since, n.Attempts = r.Since, r.Attempts+1
	}
	if class == pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT && l.rules.GiveUpAfter > 0 && l.now.Sub(n.Since) > l.rules.GiveUpAfter {
		class = pluginv1.ErrorClass_ERROR_CLASS_PERMANENT
		n.Class = class
	}
	la.fail = &n
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
	l.send(Source, RetryLater{Sink: i, Lane: la.id, Failing: n})
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

// permanent is a refusal by the host itself.
func permanent(code, message string) *pluginv1.Failure {
	return &pluginv1.Failure{Class: pluginv1.ErrorClass_ERROR_CLASS_PERMANENT, Code: code, Message: message}
}
