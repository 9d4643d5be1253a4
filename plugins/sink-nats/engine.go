package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relevo-io/relevo/sdk"
)

const (
	statusEvery     = 2 * time.Second
	dupWarningEvery = time.Minute
	// holdWarningEvery keeps a stream that refuses now and then from filling the log.
	holdWarningEvery = 10 * time.Second

	// maxReplies is what may wait in the channel of answers. nats.go drops what does not fit, which would be an ack
	// time-out for each; in flight there is never more than a window or a batch for each stream, and a question.
	maxReplies = 16 << 10
	// maxTake is how many answers are taken before new events and the clock have a turn.
	maxTake = 512
)

// answers is what the engine says to the host; *sdk.SinkStream is one.
type answers interface {
	Ack(seqs ...uint64)
	Fail(it *sdk.Item, err error)
	Return(seqs ...uint64)
	Failed(it *sdk.Item) bool
	Status(st sdk.SinkStatus) error
}

// engine publishes: it owns every event from its arrival to its end. One goroutine runs it and owns all of its fields.
//
// nats.go's own asynchronous publishing is not used: its futures hang when the connection closes, its retries reorder,
// and a goroutine for each would be needed to see them end. What is left of it is an inbox and a map.
type engine struct {
	config     Config
	ackTimeout time.Duration
	keepsOrder bool
	out        answers
	link       *link
	nc         *nats.Conn
	logCtx     context.Context //nolint:containedctx // carries what slog adds, nothing else

	compose     *composer
	inbox       inbox
	batchPrefix string

	fixed   *outlet // takes every event; nil: each subject's stream is looked up
	outlets []*outlet
	lookup  lookup
	lanes   map[string]*lane
	open    int // events that have not ended

	apiDenied bool // the user may not ask the JetStream API
	verifying bool

	token     uint64
	ops       map[uint64]*op
	deadlines []*op     // in the order of their deadlines; those that are over are passed over
	answered  time.Time // when the newest of the ops was sent that JetStream has answered
	retryAt   time.Time // publishing failed on the connection itself
	seen      linkNews

	fatal     error // ends the attempt
	draining  bool
	drainEnd  time.Time
	statusDue bool
	statusAt  time.Time
	state     sdk.SinkState
	text      string

	counts          counts
	nextDupWarning  time.Time
	nextHoldWarning time.Time
	seqs            []uint64 // reused
}

// loop runs until Stop has come and every event has ended, or the drain time-out is over (both nil), or the attempt
// cannot go on (an error with its class).
func (e *engine) loop(ctx context.Context, requests <-chan sdk.Request, drain time.Duration) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		e.takeReplies() // what has been answered has not expired
		now := time.Now()
		e.expire(now)
		e.pump(now)
		e.report(now)
		if e.fatal != nil {
			return e.fatal
		}
		if e.draining && (e.open == 0 || !now.Before(e.drainEnd)) {
			e.tell(now) // the last figures
			return nil
		}
		timer.Reset(max(0, e.wake(now).Sub(now)))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case r, ok := <-requests:
			if !ok && !e.draining {
				return nil // the host has gone
			}
			if !ok {
				requests = nil
				continue
			}
			e.onRequest(r, drain)
		case m := <-e.inbox.replies:
			e.onReply(m, time.Now())
		case <-e.link.notify:
			e.onLink()
		case <-timer.C:
		}
	}
}

func (e *engine) onRequest(r sdk.Request, drain time.Duration) {
	switch r := r.(type) {
	case *sdk.Events:
		e.onEvents(r)
	case sdk.Stop:
		// Nothing here depends on the broker being alive: an answer that does not come ends the wait at drainEnd, whatever
		// the connection is doing. A tenth is left for the way back to the host.
		e.draining = true
		e.drainEnd = time.Now().Add(drain - min(drain/10, time.Second))
	case sdk.Window: // the host keeps to it; ours are the limits of outlet
	}
}

func (e *engine) onEvents(b *sdk.Events) {
	limit := int(e.nc.MaxPayload())
	entries := make([]entry, len(b.Items))
	for i := range b.Items {
		en := &entries[i]
		en.Item = &b.Items[i]
		if e.keepsOrder && e.out.Failed(en.Item) {
			// An event of the key has failed after this one was handed over.
			e.out.Return(en.Seq)
			continue
		}
		e.admit(en, limit)
	}
}

// takeReplies handles the answers that have come.
func (e *engine) takeReplies() {
	now := time.Now()
	for range maxTake {
		select {
		case m := <-e.inbox.replies:
			e.onReply(m, now)
		default:
			return
		}
	}
}

// onLink looks at what the connection reports.
func (e *engine) onLink() {
	n := e.link.look()
	e.onDenied(n.denied)
	if n.disconnects != e.seen.disconnects {
		// What was in flight may have been stored or not. Some of it may have been sent after a reconnect that we hear of
		// only now; sending that again is harmless too, it has the same id.
		e.lost()
	}
	if n.reconnects != e.seen.reconnects {
		e.retryAt = time.Time{}
		for _, o := range e.outlets {
			o.silent, o.pausedTo = false, time.Time{}
		}
	}
	if n.closed && e.fatal == nil {
		// The server has ended the connection for good. A new attempt makes a new one, with the limits of today.
		e.fatal = sdk.Transient(fmt.Errorf("the connection was closed: %w", cmp.Or(n.lastErr, nats.ErrConnectionClosed))).WithCode("connection_closed")
	}
	e.seen = n
	e.statusDue = true
}

// lost puts back everything in flight: outcome unknown.
func (e *engine) lost() {
	flying := make(map[*outlet][]*entry)
	for _, p := range e.deadlines {
		if p.over {
			continue
		}
		e.finish(p)
		if p.answer != nil {
			p.answer(nil)
			continue
		}
		for _, en := range p.entries {
			en.resent = true
		}
		flying[p.outlet] = append(flying[p.outlet], p.entries...)
	}
	e.deadlines = e.deadlines[:0]
	for o, entries := range flying {
		o.unshift(entries)
	}
}

// expire ends what has waited too long for its answer.
func (e *engine) expire(now time.Time) {
	n := 0
	for n < len(e.deadlines) {
		p := e.deadlines[n]
		if !p.over {
			if now.Before(p.deadline) {
				break
			}
			e.expired(p)
		}
		n++
	}
	e.deadlines = slices.Delete(e.deadlines, 0, n)
	// I7: one op that waits long must not keep all those alive that were answered behind it.
	if len(e.deadlines) > 2*len(e.ops)+maxWindow {
		e.deadlines = slices.DeleteFunc(e.deadlines, func(p *op) bool { return p.over })
	}
}

// wake is when the clock alone is a reason to look again.
func (e *engine) wake(now time.Time) time.Time {
	at := e.statusAt
	sooner := func(t time.Time) {
		if t.After(now) && t.Before(at) {
			at = t
		}
	}
	if len(e.deadlines) > 0 {
		sooner(e.deadlines[0].deadline)
	}
	if e.draining {
		sooner(e.drainEnd)
	}
	sooner(e.retryAt)
	for _, o := range e.outlets {
		sooner(o.pausedTo)
	}
	return at
}
