package main

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relevo-io/relevo/sdk"
)

// pubAck is a confirmation, of a message or of a batch, or a refusal.
type pubAck struct {
	Error     *jetstream.APIError `json:"error"`
	Stream    string              `json:"stream"`
	Sequence  uint64              `json:"seq"`
	Duplicate bool                `json:"duplicate"`
	Batch     string              `json:"batch"`
	Count     int                 `json:"count"`
}

// onReply takes an answer of the server.
func (e *engine) onReply(m *nats.Msg, now time.Time) {
	token, err := strconv.ParseUint(m.Subject[len(e.inbox.prefix):], 36, 64)
	p := e.ops[token]
	if err != nil || p == nil {
		// After its time-out, or from before a reconnect: the event has been sent again under another token.
		e.counts.late++
		return
	}
	e.finish(p)
	if p.answer != nil {
		p.answer(m)
		return
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		e.onNoResponders(p, now)
		return
	}
	var a pubAck
	switch err := json.Unmarshal(m.Data, &a); {
	case err != nil:
		e.refused(p, invalidAck("it is not JSON"), now)
		return
	case a.Error != nil:
		e.answer(p)
		e.refused(p, refuse(a.Error), now)
		return
	case a.Stream == "" || a.Sequence == 0:
		e.refused(p, invalidAck("it names no stream"), now)
		return
	case p.batch != "" && (a.Batch != p.batch || a.Count != len(p.entries)):
		e.refused(p, invalidAck("it is for another batch"), now)
		return
	case e.compose.stream != "" && a.Stream != e.compose.stream:
		e.refused(p, refuse(&jetstream.APIError{ErrorCode: codeWrongStream, Description: "stored in stream " + a.Stream}), now)
		return
	}
	e.answer(p)
	e.confirmed(p, &a, now)
}

// answer notes that JetStream is answering.
func (e *engine) answer(p *op) {
	if p.sent.After(e.answered) {
		e.answered = p.sent
	}
}

func (e *engine) confirmed(p *op, a *pubAck, now time.Time) {
	o := p.outlet
	o.alive()
	e.counts.acks += uint64(len(p.entries))
	if p.batch != "" {
		o.batchMax = min(o.batchCap, 2*o.batchMax)
	} else {
		o.single(a.Duplicate)
	}
	if a.Duplicate {
		e.duplicate(p.entries[0], now)
	}
	e.ack(p.entries)
}

// duplicate notes that the stream had the id already and dropped the message. For an event that was given to the broker
// before that is what the id is for. For another it means that an event was swallowed, or that somebody else publishes
// under our name.
func (e *engine) duplicate(en *entry, now time.Time) {
	e.counts.duplicates++
	if en.Redelivered || en.resent {
		return
	}
	e.counts.unexpected++
	if now.Before(e.nextDupWarning) {
		return
	}
	e.nextDupWarning = now.Add(dupWarningEvery)
	slog.WarnContext(e.logCtx, "the stream had this id already and dropped the event: two events have one id, or two relays publish under one name",
		"event_id", en.ID, "total", e.counts.unexpected)
}

// refused does what a refusal asks for.
func (e *engine) refused(p *op, r *refusal, now time.Time) {
	o := p.outlet
	switch {
	case r.scope == scopeStream && (r.slow || o == e.fixed):
		// The stream as a whole: nothing fails, everything waits (a stream that is the only one being away is the broker
		// being away).
		e.hold(p, r, now)
	case p.batch != "" && r.scope != scopeStream:
		e.refusedBatch(p, r)
	default:
		e.failAll(p, r.sdk())
	}
	if r.scope == scopeStream && o != e.fixed && !r.slow {
		// The subjects may belong to another stream by now.
		e.forget(o)
	}
}

// refusedBatch sends what a refused batch had one by one. Nothing of it was stored.
func (e *engine) refusedBatch(p *op, r *refusal) {
	o := p.outlet
	e.counts.fallbacks++
	switch {
	case r.disabled:
		o.facts.atomic = false
		if e.config.Publish == publishBatch {
			e.fatal = atomicMissing(o.facts.name)
		}
		slog.WarnContext(e.logCtx, "the stream does not take our batches: single messages from here on", "stream", o.facts.name, "err", r.err)
		e.again(p)
	case r.small:
		o.batchCap = max(1, len(p.entries)/2)
		o.batchMax = o.batchCap
		e.again(p)
	default:
		o.oneByOne(p.entries, r.dup)
		e.again(p)
	}
}

// hold keeps what the stream as a whole refused, and tries again after a pause.
func (e *engine) hold(p *op, r *refusal, now time.Time) {
	o := p.outlet
	if r.slow {
		o.throttle()
	}
	if o.refused == nil && !now.Before(e.nextHoldWarning) {
		e.nextHoldWarning = now.Add(holdWarningEvery)
		slog.WarnContext(e.logCtx, "the stream takes nothing", "stream", o.facts.name, "code", r.code, "err", r.err)
	}
	o.refused = r
	e.again(p)
	if !now.Before(o.pausedTo) {
		// One pause for all that was in flight together.
		o.pause(now)
	}
	e.statusDue = true
}

// onNoResponders: no stream listens on the subject. The stream was deleted, or its cluster has no leader at the moment.
func (e *engine) onNoResponders(p *op, now time.Time) {
	subject := p.entries[len(p.entries)-1].Destination
	e.refused(p, noResponders(subject), now)
	if p.outlet == e.fixed && e.fixed.facts.name != "" {
		e.verify(subject, now)
	}
}

// expired is called for an op whose answer did not come in time: an unknown outcome.
func (e *engine) expired(p *op) {
	e.finish(p)
	if p.answer != nil {
		p.answer(nil)
		return
	}
	e.counts.timeouts++
	if e.answered.Sub(p.sent) > e.ackTimeout/2 {
		// What was sent well after it has been answered: it is this one. (That others were answered lately is not enough:
		// when a server wakes from a long pause it answers what it has in order, and this one may be next.)
		e.failAll(p, ackTimeout(e.ackTimeout).sdk())
		return
	}
	// The broker as a whole is silent: kept, and sent again under the same id.
	p.outlet.silent = true
	e.again(p)
	e.statusDue = true
}

// onDenied fails what was sent to subjects that the user may not publish to: there is no other answer to it. (A message of
// a batch leaves a gap in it: the batch is refused, and the message meets this when it is sent on its own.)
func (e *engine) onDenied(subjects []string) {
	for _, s := range subjects {
		api := strings.HasPrefix(s, apiPrefix)
		e.apiDenied = e.apiDenied || api
		for _, p := range e.ops {
			switch {
			case p.answer != nil && api:
				e.finish(p)
				p.answer(nil)
			case p.answer == nil && p.batch == "" && p.entries[0].Destination == s:
				e.finish(p)
				e.failAll(p, denied(s).sdk())
			}
		}
	}
}

func atomicMissing(stream string) *sdk.Error {
	return sdk.Config(errors.New("publish is batch, and the stream takes no atomic batches")).WithCode("batches_disabled").
		WithHint("nats stream edit " + stream + " --allow-batch, or set publish to auto")
}
