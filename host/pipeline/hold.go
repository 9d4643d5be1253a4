package pipeline

import (
	"bytes"
	"slices"
)

// hold is a key that the source leaves out (I11).
type hold struct {
	lane     Lane
	name     laneName
	failing  Failing
	answered bool   // the source has answered Held: no batch with the key can follow
	head     uint64 // the event that stays here and is tried again; 0: none, the key must be read again
	entries  int    // of the key in the ledger, the head included
	due      bool   // it may be read again, once it is answered and every number of it has ended
}

// OnFailingLong: the lane has been failing at a sink for long. It goes back to the source. attempts tells which failure
// is meant; an older one is ignored.
func (l *Ledger) OnFailingLong(i int, id Lane, attempts int) {
	if la := l.sinks[i].lanes[id]; la == nil || la.fail == nil || la.fail.Attempts != attempts {
		return
	}
	l.hold(id)
	l.step()
}

// hold tells the source to leave a key out. The head of the key stays here and is what is tried again; what stands
// behind it goes back. A rejected row goes back too: it must be read again to be seen mended.
func (l *Ledger) hold(id Lane) {
	if l.held[id] != nil || !l.holdsKeys || !l.sourceOpen || l.stopping || l.heldFull() || !l.mayHold(id) {
		return
	}
	h := &hold{lane: id}
	for _, b := range l.batches {
		for o := range b.n {
			if b.left[o] == gone || l.lane(b, o) != id {
				continue
			}
			h.entries++
			if h.entries == 1 {
				_, h.name = b.name(o)
				h.name.key = bytes.Clone(h.name.key)
				if !b.isRejected(o) {
					h.head = b.seq(o)
				}
			}
		}
	}
	if h.entries == 0 {
		return
	}
	for _, s := range l.sinks {
		if la := s.lanes[id]; la != nil && la.fail != nil && (h.failing.EventID == "" || la.fail.Since.Before(h.failing.Since)) {
			h.failing = *la.fail
		}
	}
	l.held[id] = h
	l.heldBytes += h.name.size()
	m := Hold{}
	if h.name.key != nil {
		m.Keys = [][]byte{h.name.key}
	} else {
		m.IDs = []string{h.name.id}
	}
	l.send(Source, m)
	if h.head == 0 {
		l.send(Source, HeldBack{id, h.failing})
	}
	for _, b := range slices.Clone(l.batches) {
		for o := range b.n {
			l.giveBack(b, o)
		}
	}
}

// maxHeldBytes bounds the keys and ids that are held: all of them must fit into one SourceOpen.
const maxHeldBytes = 2 << 20

func (n laneName) size() int { return len(n.key) + len(n.id) + 8 }

// heldFull: no more keys may be held.
func (l *Ledger) heldFull() bool {
	return len(l.held) >= l.rules.MaxHeld || l.heldBytes >= maxHeldBytes
}

// mayHold: a sink that counts as down holds no key, since not the key is what fails …
func (l *Ledger) mayHold(id Lane) bool {
	for i, s := range l.sinks {
		la := s.lanes[id]
		if la == nil || la.gate == nil {
			continue
		}
		// … unless all that the window has for it has failed: else a window full of poison keys would look like a broker
		// that is down, for ever (I11).
		if !l.down(i) || l.allFailed(i) {
			return true
		}
	}
	return false
}

func (l *Ledger) allFailed(i int) bool {
	s := l.sinks[i]
	for _, b := range l.batches {
		for o := range b.n {
			if b.left[o] == gone || b.at[i][o] == settled {
				continue
			}
			id := l.lane(b, o)
			if _, failed := s.failing[id]; failed {
				continue
			}
			if la := s.lanes[id]; la == nil || la.gate == nil {
				return false
			}
		}
	}
	return true
}

// giveBack returns an entry of a held key that no sink has (any more). The source forgets its number; its row stays.
func (l *Ledger) giveBack(b *batch, o int) {
	if len(l.held) == 0 || b.left[o] == gone || b.left[o] == 0 || !l.sourceOpen || l.stopSent {
		return
	}
	h := l.held[l.lane(b, o)]
	if h == nil || h.head == b.seq(o) {
		return
	}
	for i := range l.sinks {
		if at := b.at[i][o]; at == sent || at == discarding {
			return
		}
	}
	l.returned.add(b.seq(o))
	l.end(b, o)
}

// admitHeld counts what still arrives of held keys, before the source has answered.
func (l *Ledger) admitHeld(b *batch) {
	if len(l.held) == 0 {
		return
	}
	for o := range b.n {
		if h := l.held[l.lane(b, o)]; h != nil {
			h.entries++
		}
	}
}

// OnHeld: every batch that can bring events of these keys has arrived.
func (l *Ledger) OnHeld(keys [][]byte, ids []string) {
	for _, k := range keys {
		if h := l.held[l.LaneOf(k, "")]; h != nil {
			h.answered = true
		}
	}
	for _, id := range ids {
		if h := l.held[l.LaneOf(nil, id)]; h != nil {
			h.answered = true
		}
	}
	l.step()
}

// OnHeldRetryDue: a key whose head has gone back to the source is tried again by reading it again.
func (l *Ledger) OnHeldRetryDue(id Lane) {
	if h := l.held[id]; h != nil && h.head == 0 {
		h.due = true
		l.step()
	}
}

// releaseHeld lets the source read held keys again: only when it has answered Held, and every number of the key has
// ended. Else an event read before the Hold would arrive after the Release, in front of the earlier ones.
func (l *Ledger) releaseHeld() {
	if len(l.held) == 0 || !l.sourceOpen || l.stopping {
		return
	}
	var m Release
	for id, h := range l.held {
		if !h.due || !h.answered || h.entries > 0 {
			continue
		}
		delete(l.held, id)
		l.heldBytes -= h.name.size()
		if h.head == 0 {
			l.relapsing[id] = h.failing
		}
		for i, s := range l.sinks {
			la := s.lanes[id]
			if la == nil {
				continue
			}
			if la.gate != nil {
				var released [][]byte
				l.openGateAt(s, la, &released)
				if len(released) > 0 {
					l.send(i, Release{Keys: released})
				}
			}
			la.fail = nil
			s.touch(la)
		}
		if h.name.key != nil {
			m.Keys = append(m.Keys, h.name.key)
		} else {
			m.IDs = append(m.IDs, h.name.id)
		}
	}
	if len(m.Keys)+len(m.IDs) > 0 {
		l.send(Source, m)
	}
}
