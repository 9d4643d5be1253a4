package pipeline

import (
	"fmt"
	"hash/maphash"
	"time"
)

// Lane is what order, holding and failing go by: the hash of a key, or of the id of an event that has no key and so
// counts as a key of its own. Two keys with one hash (1 in 10^11 for a full window) would merely wait for each other.
type Lane uint64

// SinkRules are what the ledger knows of one sink before it is opened.
type SinkRules struct {
	// DiscardPermanent gives up an event that the sink refuses for good (errors.permanent: discard).
	DiscardPermanent bool
	// MaxEventBytes is the largest event that fits into a message to the sink.
	MaxEventBytes int
	// Route finds an event's destination. Nil: Constant for every event.
	Route func(raw []byte) (string, *RouteError)
	// Constant is the destination of every event; "": the sink has none.
	Constant string
	// Wants filters events. Nil: all.
	Wants func(raw []byte) bool
}

// RouteError is why an event has no destination; it is a permanent failure of the event.
type RouteError struct{ Code, Message string }

// Rules are the settings of a Ledger.
type Rules struct {
	WindowEvents int
	WindowBytes  int
	// MaxHeld is how many keys may be held. Defaults to min(1000, window/2).
	MaxHeld int
	// DownAfter is how many keys in a row a sink without keeps_order must fail, none accepted between, to count as down.
	DownAfter int
	// GiveUpAfter turns transient failures that last longer into permanent ones. 0: never.
	GiveUpAfter time.Duration
	Sinks       []SinkRules
}

// Discard is an event that a sink's policy has given up.
type Discard struct {
	Sink    int
	EventID string
}

// place is where an event is, as one sink sees it.
type place uint8

const (
	waiting    place = iota // in the host, never sent to the sink
	again                   // in the host, after a failure, a return, or a crash of the sink: it may have been published
	discarding              // in the host, refused for good; the durable note of it is under way
	sent                    // at the sink
	settled                 // confirmed by the broker, filtered out, or given up by policy
)

// Ledger is the pure core of a pipeline: it knows where every event is, what each plugin may be given next, and what
// may be acked. It has no clock, does no I/O and starts nothing: each On method takes one thing that happened, Take
// returns what is to be done about it. It is not safe for concurrent use.
//
// Methods that take a plugin's word return a *ProtocolError when it cannot be true (I6); the caller ends that plugin's
// attempt, and the ledger must be told so.
type Ledger struct {
	rules Rules
	now   time.Time
	seeds [2]maphash.Seed
	out   []Out

	// The source.
	sourceOpen   bool
	hasPositions bool
	holdsKeys    bool
	settling     bool // the source has ended: what is at the sinks settles, then all is opened again
	gaveUp       bool // … or the drain time-out is over
	stopping     bool
	stopSent     bool
	nextSeq      uint64
	batches      []*batch // in source order
	hint         *batch   // found last: numbers come in runs
	events       int      // not gone
	bytes        int      // kept alive
	live         int      // of events that are not gone
	marks        []mark
	storing      bool   // a StorePosition is under way
	stored       []byte // the durable position
	ackedThrough uint64 // with positions: what the source has been told
	ackable      seqRanges
	returned     seqRanges

	held      map[Lane]*hold
	heldBytes int              // of their keys and ids
	relapsing map[Lane]Failing // released to be read again, not settled since
	sinks     []*sink
	discarded map[Discard]uint64 // durable; the number that the event came back under, 0 if it has not

	finished []finished // batches whose last number has ended, for who wants to know how long they took
}

// ProtocolError is a message that a correct plugin cannot send.
type ProtocolError struct{ Message string }

func (e *ProtocolError) Error() string { return "plugin broke the protocol: " + e.Message }

func protocolError(format string, a ...any) error {
	return &ProtocolError{Message: fmt.Sprintf(format, a...)}
}

// NewLedger starts from what is durable: nothing else survives a crash. The first Take opens the plugins.
func NewLedger(r Rules, position []byte, discarded []Discard) *Ledger {
	if r.MaxHeld == 0 {
		r.MaxHeld = max(1, min(1000, r.WindowEvents/2))
	}
	l := &Ledger{
		rules: r, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, stored: position,
		held: map[Lane]*hold{}, relapsing: map[Lane]Failing{}, discarded: map[Discard]uint64{},
	}
	for _, d := range discarded {
		l.discarded[d] = 0
	}
	for _, s := range r.Sinks {
		l.sinks = append(l.sinks, &sink{SinkRules: s})
	}
	l.openAll()
	return l
}

// openAll opens the sinks, and then the source, from the last durable position. The source is told the keys held, so
// nothing of them can be on its way: they count as answered.
func (l *Ledger) openAll() {
	l.hint = nil
	l.batches, l.marks, l.nextSeq, l.events, l.bytes, l.live = nil, nil, 1, 0, 0, 0
	for d := range l.discarded {
		l.discarded[d] = 0
	}
	l.ackable, l.returned, l.ackedThrough = nil, nil, 0
	for i, s := range l.sinks {
		s.reset()
		s.lanes, s.failing = map[Lane]*lane{}, map[Lane]struct{}{}
		l.send(i, OpenSink{})
	}
	open := OpenSource{Position: l.stored}
	for _, h := range l.held {
		h.answered, h.head, h.entries, h.due = true, 0, 0, false
		if h.name.key != nil {
			open.HeldKeys = append(open.HeldKeys, h.name.key)
		} else {
			open.HeldIDs = append(open.HeldIDs, h.name.id)
		}
	}
	l.sourceOpen, l.settling, l.gaveUp = false, false, false
	l.send(Source, open)
	for _, h := range l.held {
		l.send(Source, HeldBack{h.lane, h.failing})
	}
}

func (l *Ledger) send(to int, m any) { l.out = append(l.out, Out{to, m}) }

// Clock sets the time that failures and arrivals are noted with.
func (l *Ledger) Clock(now time.Time) { l.now = now }

// Take hands out what is to be done, in order.
func (l *Ledger) Take() []Out {
	o := l.out
	l.out = nil
	return o
}

// step brings everything up to date after anything has happened.
func (l *Ledger) step() {
	for {
		before := len(l.out)
		if len(l.returned) > 0 && l.sourceOpen && !l.stopSent {
			l.send(Source, Hold{Returned: l.returned.sorted()})
		}
		l.returned = nil
		l.settle()
		l.releaseHeld()                                 // after what it has told the source of these keys' numbers
		if !l.settling && !l.stopSent && l.sourceOpen { // nothing starts that could not be acked
			for i := range l.sinks {
				l.dispatch(i)
			}
		}
		if len(l.out) == before {
			break
		}
	}
	switch {
	case l.settling && !l.storing && (l.gaveUp || l.quiet()):
		if !l.stopping {
			l.openAll() // a Write stream never mixes two attempts of the source
			return
		}
		l.settling, l.stopSent = false, true
		l.send(Source, Drained{})
	case l.stopping && !l.stopSent && !l.settling && !l.sourceOpen: // it had not begun
		l.stopSent = true
		l.send(Source, Drained{})
	case l.stopping && !l.stopSent && l.sourceOpen && !l.storing && l.drained():
		// Stop is the last word to the source: every ack went before it on the same stream.
		l.stopSent = true
		l.send(Source, Stop{})
	}
}

// quiet: no sink has anything, and no discard is under way.
func (l *Ledger) quiet() bool {
	for _, s := range l.sinks {
		if s.outstanding > 0 || s.discarding > 0 {
			return false
		}
	}
	return true
}

// drained: whatever is left is, or waits behind, a failing event.
func (l *Ledger) drained() bool {
	if !l.quiet() {
		return false
	}
	for _, b := range l.batches {
		for o := range b.n {
			if b.left[o] == gone || b.left[o] == 0 {
				continue
			}
			lane := l.lane(b, o)
			for i, s := range l.sinks {
				if b.at[i][o] < sent && l.held[lane] == nil && (s.lanes[lane] == nil || s.lanes[lane].gate == nil) && !l.down(i) {
					return false
				}
			}
		}
	}
	return true
}
