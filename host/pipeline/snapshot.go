package pipeline

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxShownHeld is how many failing keys the API lists.
const maxShownHeld = 100

// snapshot is the status for the API.
func (p *Pipeline) snapshot() *Status {
	w := &p.watch
	s := &Status{
		Name: p.set.Config.Name, State: w.state, Since: w.since, Reason: w.reason, Order: w.order, Held: []HeldKey{},
		Source: SourceStatus{
			Plugin: p.source.conf.Plugin, PID: p.source.pid, Attempt: p.source.attempt, Restarts: p.source.restarts,
			State: p.source.state, Text: p.source.says(), EventsRead: w.eventsRead, EventsAcked: w.eventsAcked,
			ReadRate: w.read.perSecond(), OldestUnpublishedSecond: w.source.oldest, LagBytes: w.source.lag, Backlog: w.source.queue,
			Metrics: p.source.metrics,
		},
	}
	if !w.lastSettled.IsZero() {
		t := w.lastSettled
		s.LastSettled = &t
	}
	l := p.ledger
	for i, n := range p.sinks {
		k := SinkStatus{
			Name: n.name, Plugin: n.conf.Plugin, PID: n.pid, Attempt: n.attempt, Restarts: n.restarts, State: n.state,
			Text: n.says(), SettleRate: w.settled[i].perSecond(), Metrics: n.metrics,
		}
		if l != nil {
			k.Settled, k.InFlight = l.sinks[i].acked, l.sinks[i].outstanding
			for _, la := range l.sinks[i].lanes {
				if la.fail != nil {
					k.Failing++
				}
			}
		}
		s.Sinks = append(s.Sinks, k)
	}
	if l == nil {
		return s
	}
	s.InFlightEvents, s.InFlightBytes, s.HeldKeys = l.events, l.live, len(l.held)
	s.Source.Position = printable(l.stored)
	s.Held = p.heldKeys()
	held := make([]int, len(p.sinks))
	for _, h := range l.held {
		held[h.failing.Sink]++
	}
	for i, k := range p.metricSinks {
		k.Held(held[i])
	}
	return s
}

// says is the plugin's own word, or why it is not there.
func (n *instance) says() string {
	if n.down != "" && !n.opened {
		return n.down
	}
	return n.text
}

// heldKeys lists the keys that wait behind a failed event, the oldest failure first.
func (p *Pipeline) heldKeys() []HeldKey {
	l := p.ledger
	var fs []HeldKey
	add := func(f Failing, held bool) {
		fs = append(fs, HeldKey{
			Sink: p.sinks[f.Sink].name, Key: keyText(f.Key), EventID: f.EventID, Code: f.Code, Class: className(f.Class),
			Message: f.Message, Hint: f.Hint, Since: f.Since, Attempts: f.Attempts, Held: held,
		})
	}
	for i, s := range l.sinks {
		for id, la := range s.lanes {
			if la.fail != nil {
				h := l.held[id]
				add(*la.fail, h != nil && h.failing.Sink == i)
			}
		}
	}
	for id, h := range l.held {
		if la := l.sinks[h.failing.Sink].lanes[id]; la == nil || la.fail == nil { // its head has gone back to the source
			add(h.failing, true)
		}
	}
	slices.SortFunc(fs, func(a, b HeldKey) int {
		if c := a.Since.Compare(b.Since); c != 0 {
			return c
		}
		return strings.Compare(a.Key+a.EventID, b.Key+b.EventID)
	})
	if len(fs) > maxShownHeld {
		fs = fs[:maxShownHeld]
	}
	if fs == nil {
		fs = []HeldKey{}
	}
	return fs
}

// keyText is a key for people: at most 64 bytes, hex if it is not printable UTF-8.
func keyText(key []byte) string {
	cut := key
	if len(cut) > 64 {
		cut = cut[:64]
		for len(cut) > 60 && !utf8.Valid(cut) {
			cut = cut[:len(cut)-1]
		}
	}
	return printable(cut)
}

func printable(b []byte) string {
	if !utf8.Valid(b) || strings.IndexFunc(string(b), func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
		return hex.EncodeToString(b[:min(len(b), 64)])
	}
	return string(b)
}

// ---- what the ledger says of itself

// oldest is the number that has been at the sink for longest; 0: none.
func (s *sink) oldest() uint64 {
	first := uint64(0)
	for n := range s.late {
		if first == 0 || n < first {
			first = n
		}
	}
	if first != 0 {
		return first
	}
	for k, seq := range s.ring {
		if seq != 0 {
			return s.base + uint64(k)
		}
	}
	return 0
}

// who is behind a number at a sink.
func (l *Ledger) who(i int, n uint64) (id string, key []byte) {
	b, o := l.find(l.sinks[i].seqOf(n))
	if b == nil {
		return "", nil
	}
	id, name := b.name(o)
	return id, name.key
}

func (l *Ledger) unansweredHolds() bool {
	for _, h := range l.held {
		if !h.answered {
			return true
		}
	}
	return false
}

// blocked says why nothing more is read although every plugin is well: held keys have filled their share, or failed
// events hold the source at its window.
func (l *Ledger) blocked() string {
	if l.heldFull() {
		return fmt.Sprintf("%d keys are held, the most there may be; mend what refuses their events", len(l.held))
	}
	if !l.quiet() || l.events == 0 {
		return ""
	}
	failing := 0
	for _, s := range l.sinks {
		for _, la := range s.lanes {
			if la.gate != nil {
				failing++
			}
		}
	}
	if failing > 0 && (!l.holdsKeys || l.events >= l.rules.WindowEvents/2) {
		return fmt.Sprintf("%d failing keys hold the source at its window: %d events wait", failing, l.events)
	}
	return ""
}
