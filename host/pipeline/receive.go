package pipeline

import (
	"github.com/relevo-io/relevo/internal/wire"
)

// OnSourceOpened: the source is ready. With positions it is acked by position, and an event counts against the window
// until the position has passed it; without, by ranges.
func (l *Ledger) OnSourceOpened(holdsKeys, hasPositions bool) {
	l.sourceOpen, l.holdsKeys, l.hasPositions = true, holdsKeys && !hasPositions, hasPositions
	l.step()
}

// OnBatch takes a batch in.
func (l *Ledger) OnBatch(f *wire.Batch) error {
	if l.stopping || l.settling || !l.sourceOpen {
		return nil // never handed on, so the next start reads it again and nothing is repeated
	}
	if f.FirstSeq != l.nextSeq {
		return protocolError("a batch starts at number %d, after %d", f.FirstSeq, l.nextSeq-1)
	}
	b, err := l.newBatch(f)
	if err != nil {
		return err
	}
	if l.events+b.n > l.rules.WindowEvents {
		return protocolError("%d events are open, the window is %d", l.events+b.n, l.rules.WindowEvents)
	}
	// "A byte window always admits one event", so the largest one may come on top.
	if l.live > 0 && l.live+b.live > l.rules.WindowBytes+wire.MaxEvent {
		return protocolError("%d bytes are open, the window is %d", l.live+b.live, l.rules.WindowBytes)
	}
	l.nextSeq += uint64(b.n)
	l.batches = append(l.batches, b)
	l.events += b.n
	l.bytes += b.kept
	l.live += b.live
	if len(b.position) > 0 {
		l.marks = append(l.marks, mark{l.nextSeq - 1, b.position})
	}
	l.admitHeld(b)
	for o := range b.n {
		l.giveBack(b, o)
		if b.left[o] == 0 { // every sink filters it, or has given it up before
			l.done(b, o)
		}
	}
	l.step()
	return nil
}

// OnProgress: a position behind everything read so far.
func (l *Ledger) OnProgress(position []byte) error {
	if !l.hasPositions || len(position) == 0 {
		return protocolError("Progress from a source without positions, or without one")
	}
	if l.sourceOpen && !l.stopping {
		if k := len(l.marks) - 1; k >= 0 && l.marks[k].seq == l.nextSeq-1 {
			l.marks[k].pos = position // an idle log: only the newest counts
		} else {
			l.marks = append(l.marks, mark{l.nextSeq - 1, position})
		}
		l.step()
	}
	return nil
}

// OnSourceEnded: what only the host has will be read again; what sinks have may settle first.
func (l *Ledger) OnSourceEnded() {
	if l.stopSent {
		return
	}
	l.sourceOpen, l.settling = false, true
	l.step()
}

// OnDrainTimeout gives up waiting for the sinks after the source has ended.
func (l *Ledger) OnDrainTimeout() {
	l.gaveUp = true
	l.step()
}

// OnStop drains: no new batch is taken in, what is in the ledger goes on, failing keys are not waited for.
func (l *Ledger) OnStop() {
	l.stopping = true
	l.step()
}
