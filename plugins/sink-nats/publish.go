package main

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relevo-io/relevo/sdk"
)

// op is something that awaits an answer: a message, a batch, or a question to the API.
type op struct {
	token    uint64
	outlet   *outlet
	entries  []*entry
	one      [1]*entry // behind entries of a single message
	batch    string    // the batch's id; "": a single message
	bytes    int
	sent     time.Time
	deadline time.Time
	answer   func(*nats.Msg) // of a question; nil message: there was no answer
	over     bool
}

// pump publishes what may be published to every outlet.
func (e *engine) pump(now time.Time) {
	if now.Before(e.retryAt) || !e.nc.IsConnected() {
		return
	}
	e.ask(now)
	e.askLimits(now)
	for _, o := range e.outlets {
		e.pumpOutlet(o, now)
	}
}

func (e *engine) pumpOutlet(o *outlet, now time.Time) {
	if o.idle() || now.Before(o.pausedTo) {
		return
	}
	if o.singles && !o.byDup && o.suspects == 0 {
		o.resume = true
	}
	if !o.batching() {
		e.pumpSingles(o, now)
		return
	}
	if o.open > 0 {
		// I4: what is in flight could be refused while the next batch is accepted.
		return
	}
	if o.singles {
		o.singles, o.resume = false, false
	}
	o.unready()
	if first := o.peek(); first != nil {
		if first.solo || o.queuedCount == 1 || o.probing() {
			e.publishSingle(o, o.next(), now)
			return
		}
		e.publishBatch(o, now)
	}
}

func (e *engine) pumpSingles(o *outlet, now time.Time) {
	window := o.window
	if o.probing() {
		window = 1
	}
	for o.open < window && o.openBytes < maxWindowBytes {
		var en *entry
		if n := len(o.ready); n > 0 {
			en = o.ready[0]
			o.ready = o.ready[1:]
			if en.place != ready {
				continue
			}
		} else if en = o.next(); en == nil {
			return
		} else if en.lane.items[0] != en {
			// I4: an earlier event of the key is in flight.
			en.place = parked
			continue
		}
		if !e.publishSingle(o, en, now) {
			return
		}
	}
}

// publishSingle gives one message to the broker; false: the connection is not usable.
func (e *engine) publishSingle(o *outlet, en *entry, now time.Time) bool {
	p := e.newOp(o, now)
	p.one[0] = en
	p.entries = p.one[:]
	p.bytes = en.size
	if err := e.nc.PublishMsg(e.compose.message(en.Item, e.reply(p))); err != nil {
		if r := publishRefusal(err); r != nil {
			e.fail(en, r.sdk())
			return true
		}
		o.unshift(p.entries)
		e.retryAt = now.Add(reconnectFirst)
		return false
	}
	e.begin(p)
	return true
}

// publishBatch gives an atomic batch to the broker (ADR-50): every message but the last goes without awaiting an answer,
// the last commits, and the answer to it is for all.
func (e *engine) publishBatch(o *outlet, now time.Time) {
	p := e.newOp(o, now)
	for len(p.entries) < o.batchMax {
		en := o.peek()
		if en == nil || en.solo || (p.bytes+en.size > maxBatchBytes && len(p.entries) > 0) {
			break
		}
		p.entries = append(p.entries, o.next())
		p.bytes += en.size
	}
	if len(p.entries) == 1 {
		e.publishSingle(o, p.entries[0], now)
		return
	}
	p.batch = e.batchPrefix + strconv.FormatUint(p.token, 36)
	for i, en := range p.entries {
		commit, reply := i == len(p.entries)-1, ""
		if commit {
			reply = e.reply(p)
		}
		m := e.compose.message(en.Item, reply)
		e.compose.inBatch(m, p.batch, i+1, commit)
		if err := e.nc.PublishMsg(m); err != nil {
			e.abandon(p, i, err, now)
			return
		}
	}
	e.counts.batches++
	e.begin(p)
}

// abandon gives up a batch of which some messages have been sent. Nothing of it was committed.
func (e *engine) abandon(p *op, at int, err error, now time.Time) {
	bad := p.entries[at]
	p.outlet.unshift(p.entries)
	if publishRefusal(err) == nil {
		e.retryAt = now.Add(reconnectFirst)
		return
	}
	// On its own it is refused again, and fails.
	bad.solo = true
	if at > 0 {
		// A gap makes the server drop the batch now rather than after ten seconds.
		m := &nats.Msg{Subject: p.entries[0].Destination, Header: nats.Header{}}
		e.compose.inBatch(m, p.batch, 0, false)
		_ = e.nc.PublishMsg(m) // if it does not arrive, the ten seconds do
	}
}

func (e *engine) newOp(o *outlet, now time.Time) *op {
	e.token++
	return &op{token: e.token, outlet: o, sent: now, deadline: now.Add(e.ackTimeout)}
}

// reply is the subject that the answer to p comes to.
func (e *engine) reply(p *op) string { return e.inbox.prefix + strconv.FormatUint(p.token, 36) }

// begin enters an op that was sent.
func (e *engine) begin(p *op) {
	e.ops[p.token] = p
	e.deadlines = append(e.deadlines, p)
	if p.outlet == nil {
		return
	}
	p.outlet.open++
	p.outlet.openBytes += p.bytes
	for _, en := range p.entries {
		en.place = inflight
		if en.since == 0 {
			en.since = p.sent.UnixNano()
		}
	}
}

// finish takes an op out, whatever comes of it.
func (e *engine) finish(p *op) {
	p.over = true
	delete(e.ops, p.token)
	if p.outlet != nil {
		p.outlet.open--
		p.outlet.openBytes -= p.bytes
	}
}

// again puts back what an op had: its outcome is not known, or nothing of it was taken.
func (e *engine) again(p *op) {
	for _, en := range p.entries {
		en.resent = true
	}
	p.outlet.unshift(p.entries)
}

// failAll fails what an op had: of each key the first, the others of the key go back.
func (e *engine) failAll(p *op, err *sdk.Error) {
	for _, en := range p.entries {
		en.place = ready // no longer in flight
	}
	for _, en := range p.entries {
		if en.place != ended {
			e.fail(en, err)
		}
	}
}
