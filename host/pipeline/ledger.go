package pipeline

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"slices"
	"sort"
	"time"
	"unicode/utf8"

	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
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

// gone stands in batch.left for an event that has left the ledger.
const gone = 255

// batch is one batch from the source, until every number of it has ended.
type batch struct {
	first    uint64
	n        int
	frame    *wire.Batch
	rejected map[int]*pluginv1.Rejected // by offset; nil: none
	index    []int32                    // offset → event of the frame; nil: the same
	at       [][]place                  // sink, offset
	left     []uint8                    // offset → sinks at which it is not settled, or gone
	open     int                        // offsets that are not gone
	pending  int                        // offsets that are neither gone nor settled at every sink
	lanes    []Lane                     // nil until a key is asked for
	kept     int                        // bytes of frame that are kept alive
	live     int                        // bytes of events that are not gone
	position []byte
	arrived  time.Time
}

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

// ---- entries

// find returns the batch that holds a source number, and its offset there. Nil: it has left the ledger.
func (l *Ledger) find(seq uint64) (*batch, int) {
	if b := l.hint; b != nil && seq >= b.first && seq < b.first+uint64(b.n) && b.open > 0 {
		return b, int(seq - b.first)
	}
	k := sort.Search(len(l.batches), func(k int) bool { b := l.batches[k]; return b.first+uint64(b.n) > seq })
	if k == len(l.batches) || l.batches[k].first > seq {
		return nil, 0
	}
	l.hint = l.batches[k]
	return l.hint, int(seq - l.hint.first)
}

func (b *batch) seq(o int) uint64 { return b.first + uint64(o) }

// event returns the index in the frame of the event at offset o; it is none where the row was rejected.
func (b *batch) event(o int) int {
	if b.index == nil {
		return o
	}
	return int(b.index[o])
}

func (b *batch) raw(o int) []byte { return b.frame.Raw(b.event(o)) }

func (b *batch) isRejected(o int) bool { return b.rejected != nil && b.rejected[o] != nil }

// size is what an event counts against the byte window.
func (b *batch) size(o int) int {
	if b.isRejected(o) {
		return 0
	}
	return b.frame.Size(b.event(o))
}

// laneName is what a lane is called outside: a key, or the id of an event without one.
type laneName struct {
	key []byte
	id  string
}

// name reads the id and the key of an entry. An event whose bytes cannot be read was refused when it arrived.
func (b *batch) name(o int) (id string, n laneName) {
	var key []byte
	if b.isRejected(o) {
		id, key = b.rejected[o].GetId(), b.rejected[o].GetKey()
	} else {
		raw, k, err := wire.IDAndKey(b.raw(o))
		if err != nil {
			panic("BUG: an event that was checked on arrival: " + err.Error())
		}
		id, key = string(raw), k
	}
	if len(key) == 0 {
		return id, laneName{id: id}
	}
	return id, laneName{key: key}
}

// lane of an entry; the whole batch is hashed at the first question.
func (l *Ledger) lane(b *batch, o int) Lane {
	if b.lanes == nil {
		b.lanes = make([]Lane, b.n)
		for o := range b.n {
			if b.left[o] == gone {
				continue
			}
			if _, n := b.name(o); n.key != nil {
				b.lanes[o] = Lane(maphash.Bytes(l.seeds[0], n.key))
			} else {
				b.lanes[o] = Lane(maphash.String(l.seeds[1], n.id))
			}
		}
	}
	return b.lanes[o]
}

// LaneOf hashes a key, or an id where key is empty.
func (l *Ledger) LaneOf(key []byte, id string) Lane {
	if len(key) > 0 {
		return Lane(maphash.Bytes(l.seeds[0], key))
	}
	return Lane(maphash.String(l.seeds[1], id))
}

// end takes an entry out of the ledger; the caller has told the source, or will.
func (l *Ledger) end(b *batch, o int) {
	if len(l.held) > 0 {
		if h := l.held[l.lane(b, o)]; h != nil {
			h.entries--
			if b.seq(o) == h.head {
				h.due = true // it is settled: the key goes on at once
			}
		}
	}
	if b.left[o] != 0 { // given back; what is settled was counted by done
		b.pending--
	}
	size := b.size(o)
	b.left[o] = gone
	b.open--
	b.live -= size
	l.live -= size
	l.events--
	if b.open == 0 {
		l.drop(b)
		return
	}
	// I7: a batch's memory is counted as long as it is kept. Few survivors are copied out of it.
	if b.kept > 64<<10 && b.live < b.kept/4 {
		if b.lanes == nil {
			l.lane(b, o) // names of the gone can't be read afterwards
		}
		b.frame = b.frame.Compact(func(e int) bool { return b.left[b.offset(e)] != gone })
		l.bytes -= b.kept - b.live
		b.kept = b.live
	}
}

// offset is the inverse of event.
func (b *batch) offset(e int) int {
	if b.index == nil {
		return e
	}
	return sort.Search(b.n, func(o int) bool { return int(b.index[o]) >= e && !b.isRejected(o) })
}

func (l *Ledger) drop(b *batch) {
	l.bytes -= b.kept
	l.hint = nil
	k := sort.Search(len(l.batches), func(k int) bool { return l.batches[k].first >= b.first })
	l.batches = slices.Delete(l.batches, k, k+1)
}

// ---- from the source

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

func (l *Ledger) newBatch(f *wire.Batch) (*batch, error) {
	b := &batch{
		first: f.FirstSeq, n: f.Count, frame: f, open: f.Count, pending: f.Count, left: make([]uint8, f.Count), at: make([][]place, len(l.sinks)),
		kept: f.Bytes(), live: f.Bytes(), position: bytes.Clone(f.Position), arrived: l.now,
	}
	if len(f.Rejected) > 0 {
		b.rejected = make(map[int]*pluginv1.Rejected, len(f.Rejected))
		b.index = make([]int32, b.n)
		for _, r := range f.Rejected {
			b.rejected[int(r.GetOffset())] = r
		}
		k := int32(0)
		for o := range b.n {
			b.index[o] = k
			if b.rejected[o] == nil {
				k++
			}
		}
	}
	places := make([]place, b.n*len(l.sinks))
	for i := range l.sinks {
		b.at[i] = places[i*b.n : (i+1)*b.n : (i+1)*b.n]
	}
	for o := range b.n {
		b.left[o] = uint8(len(l.sinks))
	}
	for o := range f.Len() { // one malformed event must not come to light when its key is asked for
		if id, _, err := wire.IDAndKey(f.Raw(o)); err != nil || len(id) == 0 || !utf8.Valid(id) {
			return nil, protocolError("event %d of the batch at %d cannot be read, or has no id of UTF-8: %v", o, b.first, err)
		}
	}
	l.filter(b)
	return b, nil
}

// filter settles what a sink does not want, and what its policy has given up before a crash.
func (l *Ledger) filter(b *batch) {
	var seen []Discard
	for i, s := range l.sinks {
		if s.Wants == nil && len(l.discarded) == 0 {
			continue
		}
		for o := range b.n {
			wanted := b.isRejected(o) || s.Wants == nil || s.Wants(b.raw(o)) // a rejected row cannot be filtered
			if wanted && len(l.discarded) > 0 {
				id, _ := b.name(o)
				d := Discard{i, id}
				if _, ok := l.discarded[d]; ok {
					wanted = false
					l.discarded[d] = b.seq(o)
					seen = append(seen, d)
				}
			}
			if !wanted {
				b.at[i][o] = settled
				b.left[o]--
				s.filtered++
			}
		}
	}
	if seen != nil {
		l.send(Source, SeenDiscards{seen})
	}
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

// ---- what is settled

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

// ---- the rules

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
