package main

import (
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relevo-io/relevo/sdk"
)

// maxCached bounds the subjects whose stream is remembered by name; beyond it their streams' subjects are looked through.
const maxCached = 4096

// factsFresh is how long the limits of a stream are believed when they speak against an event.
const factsFresh = time.Second

// lookup finds the streams of subjects where neither the configuration nor a constant destination names one.
type lookup struct {
	cache   map[string]*outlet
	pending map[string][]*entry // by subject
	order   []string            // of pending, in the order of asking
	asking  bool                // one question at a time: its answer may answer the others
	blind   *outlet             // the API may not be asked: every subject goes here, singly
}

// route finds the outlet of an event, or has its subject looked up.
func (e *engine) route(en *entry) {
	if e.fixed != nil {
		e.assign(en, e.fixed)
		return
	}
	if o := e.known(en.Destination); o != nil {
		e.assign(en, o)
		return
	}
	l := &e.lookup
	if _, asked := l.pending[en.Destination]; !asked {
		l.order = append(l.order, en.Destination)
	}
	l.pending[en.Destination] = append(l.pending[en.Destination], en)
}

// assign sends an event to an outlet, whose own limits are checked now.
func (e *engine) assign(en *entry, o *outlet) {
	en.outlet = o
	limit := int(e.nc.MaxPayload())
	if m := o.facts.maxMessage; m > 0 {
		if en.size > m && time.Since(o.factsAt) > factsFresh {
			e.doubt(en, o)
			return
		}
		if en.size > m {
			en.verdict = permanent("message_too_large", "the message has %d bytes, max_msg_size of stream %s is %d", en.size, o.facts.name, m)
			return
		}
		limit = min(limit, m)
	}
	headers := en.size - len(en.Payload)
	en.solo = en.size+batchHeaders > limit || headers+batchHeaders > maxHeaderBlock
}

// doubt has the limits of a stream asked for again before they refuse an event for good: somebody may have raised them for
// this very event. It waits in its lane meanwhile.
func (e *engine) doubt(en *entry, o *outlet) {
	en.outlet = nil
	o.doubted = append(o.doubted, en)
}

// askLimits asks for the limits of streams that are in doubt.
func (e *engine) askLimits(now time.Time) {
	for _, o := range e.outlets {
		if len(o.doubted) > 0 && !o.asking {
			o.asking = e.question("STREAM.INFO."+o.facts.name, nil, now, func(m *nats.Msg) { e.onLimits(o, m) })
		}
	}
}

func (e *engine) onLimits(o *outlet, m *nats.Msg) {
	o.asking = false
	var info struct {
		Error  *jetstream.APIError    `json:"error"`
		Config jetstream.StreamConfig `json:"config"`
	}
	answered := m != nil && json.Unmarshal(m.Data, &info) == nil && len(m.Data) > 0
	switch {
	case answered && info.Error == nil:
		facts := factsOf(&info.Config)
		o.facts.subjects, o.facts.maxMessage = facts.subjects, facts.maxMessage
	case !answered && !e.apiDenied:
		return // asked again
	}
	// An error, or no permission to ask: what is known counts.
	o.factsAt = time.Now()
	entries := o.doubted
	o.doubted = nil
	for _, en := range entries {
		if en.place != ended {
			e.assign(en, o)
			e.proceed(en)
		}
	}
}

// known is the outlet of a subject, if that was learned before.
func (e *engine) known(subject string) *outlet {
	l := &e.lookup
	if l.blind != nil {
		return l.blind
	}
	if o := l.cache[subject]; o != nil {
		return o
	}
	for _, o := range e.outlets {
		if o.facts.captures(subject) {
			if len(l.cache) >= maxCached {
				clear(l.cache)
			}
			l.cache[subject] = o
			return o
		}
	}
	return nil
}

// forget has the subjects of an outlet looked up again.
func (e *engine) forget(o *outlet) {
	o.facts.subjects = nil
	clear(e.lookup.cache)
}

// ask asks for the stream of the subject that has waited longest.
func (e *engine) ask(now time.Time) {
	l := &e.lookup
	for !l.asking && len(l.order) > 0 {
		subject := l.order[0]
		if o := e.known(subject); o != nil {
			e.found(subject, o)
			continue
		}
		body, err := json.Marshal(map[string]string{"subject": subject})
		if err != nil {
			panic("BUG: " + err.Error())
		}
		l.asking = e.question("STREAM.NAMES", body, now, func(m *nats.Msg) { e.onName(subject, m) })
		return
	}
}

// question sends a request to the JetStream API. answer gets the response, or nil when there was none in time.
func (e *engine) question(api string, body []byte, now time.Time, answer func(*nats.Msg)) bool {
	p := e.newOp(nil, now)
	p.answer = answer
	m := &nats.Msg{Subject: apiPrefix + api, Reply: e.reply(p), Data: body}
	if err := e.nc.PublishMsg(m); err != nil {
		e.retryAt = now.Add(reconnectFirst)
		return false
	}
	e.begin(p)
	return true
}

func (e *engine) onName(subject string, m *nats.Msg) {
	var names struct {
		Error   *jetstream.APIError `json:"error"`
		Streams []string            `json:"streams"`
	}
	e.lookup.asking = false
	switch {
	case m == nil || len(m.Data) == 0:
		e.unanswered(subject)
	case json.Unmarshal(m.Data, &names) != nil:
		e.unfound(subject, invalidAck("the JetStream API gave no JSON").sdk())
	case names.Error != nil:
		e.unfound(subject, refuse(names.Error).sdk())
	case len(names.Streams) == 0:
		e.unfound(subject, noResponders(subject).sdk())
	default:
		name := names.Streams[0]
		e.lookup.asking = e.question("STREAM.INFO."+name, nil, time.Now(), func(m *nats.Msg) { e.onInfo(subject, m) })
	}
}

func (e *engine) onInfo(subject string, m *nats.Msg) {
	var info struct {
		Error  *jetstream.APIError    `json:"error"`
		Config jetstream.StreamConfig `json:"config"`
	}
	e.lookup.asking = false
	switch {
	case m == nil || len(m.Data) == 0:
		e.unanswered(subject)
	case json.Unmarshal(m.Data, &info) != nil:
		e.unfound(subject, invalidAck("the JetStream API gave no JSON").sdk())
	case info.Error != nil:
		e.unfound(subject, refuse(info.Error).sdk())
	default:
		facts := factsOf(&info.Config)
		for _, o := range e.outlets {
			if o.facts.name == facts.name {
				o.facts.subjects, o.facts.maxMessage, o.factsAt = facts.subjects, facts.maxMessage, time.Now()
				e.found(subject, o)
				return
			}
		}
		o := newOutlet(facts, e.config.Publish != publishKeySerial && e.keepsOrder)
		e.outlets = append(e.outlets, o)
		e.found(subject, o)
	}
}

// unanswered: the API gave no answer. Without permission for it everything is published singly; otherwise the subject is
// asked for again.
func (e *engine) unanswered(subject string) {
	if !e.apiDenied {
		return
	}
	o := newOutlet(streamFacts{}, false)
	e.lookup.blind = o
	e.outlets = append(e.outlets, o)
	e.found(subject, o)
}

// found lets the events of a subject go on to their outlet.
func (e *engine) found(subject string, o *outlet) {
	for _, en := range e.settle(subject) {
		e.assign(en, o)
		e.proceed(en)
	}
}

// unfound fails the events of a subject; that is a refusal of their own, others may have a stream.
func (e *engine) unfound(subject string, err *sdk.Error) {
	for _, en := range e.settle(subject) {
		en.verdict = err
		e.proceed(en)
	}
}

func (e *engine) settle(subject string) []*entry {
	l := &e.lookup
	entries := l.pending[subject]
	delete(l.pending, subject)
	l.order = l.order[1:]
	return entries
}

func (e *engine) proceed(en *entry) {
	if en.place == waiting && len(en.lane.items) > 0 && en.lane.items[0] == en {
		e.advance(en.lane)
	}
}

// verify finds out whether the one stream still exists and takes the subject. If not, the attempt ends: the host opens the
// sink again, and Open says what a person has to do. Three answers in a row, since a cluster that has just elected its
// leader may not know all of its streams for a moment.
func (e *engine) verify(subject string, now time.Time) {
	if e.verifying {
		return
	}
	o := e.fixed
	e.verifying = e.question("STREAM.INFO."+o.facts.name, nil, now, func(m *nats.Msg) {
		e.verifying = false
		var info struct {
			Error  *jetstream.APIError    `json:"error"`
			Config jetstream.StreamConfig `json:"config"`
		}
		if m == nil || len(m.Data) == 0 || json.Unmarshal(m.Data, &info) != nil {
			return
		}
		facts := factsOf(&info.Config)
		gone := info.Error != nil && info.Error.ErrorCode == codeStreamNotFound
		moved := info.Error == nil && !facts.captures(subject)
		if !gone && !moved {
			o.missing = 0
			return
		}
		if o.missing++; o.missing < 3 {
			return
		}
		if gone {
			e.fatal = streamMissing(o.facts.name)
			return
		}
		e.fatal = notCaptured(o.facts.name, subject)
	})
}
