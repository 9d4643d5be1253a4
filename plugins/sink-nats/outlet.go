package main

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// maxBatch is how many messages an atomic batch has at most; the server's limit is 1000, and larger ones are no
	// faster. maxBatchBytes keeps one batch from holding the connection for long.
	maxBatch      = 500
	maxBatchBytes = 4 << 20
	// firstBatch is the size after a batch was refused for a duplicate: if more are near, a small refusal is cheap.
	firstBatch = 16

	// maxWindow and minWindow bound the single messages in flight to one stream. A thousand fill the server's queue well;
	// ten times as many are its own limit.
	maxWindow      = 1000
	minWindow      = 16
	maxWindowBytes = 8 << 20

	pauseFirst = 50 * time.Millisecond
	pauseMost  = 5 * time.Second
)

// outlet is one stream as the place that events go to: what waits for it, and how it is published to.
//
// Either one batch is in flight, or single messages are, one a key. Measured on a stream with one replica, a second batch
// in flight (or staged up to its commit) gained nothing over noise, and it would need the proof that the two share no key
// (I4).
type outlet struct {
	facts   streamFacts
	factsAt time.Time // when they were learned
	doubted []*entry  // too large by facts that may have changed; waiting in their lanes
	asking  bool      // for the facts

	queue       []*entry // in order for each key; ended ones are passed over
	head        int      // of queue
	queuedCount int
	ready       []*entry // parked before, now first of their keys: sent before the queue
	open        int      // ops in flight
	openBytes   int

	singles  bool // although the stream takes batches: one was refused
	byDup    bool // it was refused for a duplicate: until the first message that is none
	suspects int  // otherwise: until each of its messages has ended
	resume   bool // no further singles; batches once none is in flight
	batchMax int
	batchCap int

	window   int
	refused  *refusal // what the stream as a whole refused with; one probe at a time until it takes something
	silent   bool     // a confirmation did not come, and nothing else did either
	pauses   int
	pausedTo time.Time
	missing  int // answers in a row that say for certain that the stream does not take the subject
}

func newOutlet(f streamFacts, atomic bool) *outlet {
	f.atomic = f.atomic && atomic
	return &outlet{facts: f, factsAt: time.Now(), batchMax: maxBatch, batchCap: maxBatch, window: maxWindow}
}

func (o *outlet) push(en *entry) {
	en.place = queued
	o.queuedCount++
	o.queue = append(o.queue, en)
}

// next takes the first live entry from the queue; nil: there is none.
func (o *outlet) next() *entry {
	for o.head < len(o.queue) {
		en := o.queue[o.head]
		o.queue[o.head] = nil
		o.head++
		if en.place == queued {
			o.queuedCount--
			en.place = ready
			return en
		}
	}
	o.queue, o.head = o.queue[:0], 0
	return nil
}

// peek is next without taking.
func (o *outlet) peek() *entry {
	for o.head < len(o.queue) {
		if en := o.queue[o.head]; en.place == queued {
			return en
		}
		o.queue[o.head] = nil
		o.head++
	}
	o.queue, o.head = o.queue[:0], 0
	return nil
}

// unshift puts entries back at the front of the queue, in the order of their numbers, together with what is parked behind
// them (I5: again in the original order, before anything newer of the key).
func (o *outlet) unshift(entries []*entry) {
	back := make([]*entry, 0, len(entries)+len(o.queue)-o.head)
	take := func(en *entry) {
		en.place = queued
		o.queuedCount++
		back = append(back, en)
	}
	for _, en := range entries {
		if en.place == ended || en.place == queued {
			continue
		}
		take(en)
		for _, behind := range en.lane.items {
			if behind.place == parked {
				take(behind)
			}
		}
	}
	slices.SortFunc(back, func(a, b *entry) int { return cmp.Compare(a.Seq, b.Seq) })
	o.queue, o.head = append(back, o.queue[o.head:]...), 0
}

// unready puts what was parked back into the queue. Nothing may be in flight.
func (o *outlet) unready() {
	if len(o.ready) > 0 {
		o.unshift(o.ready)
		o.ready = o.ready[:0]
	}
}

// batching reports whether batches are the way to publish now.
func (o *outlet) batching() bool { return o.facts.atomic && (!o.singles || o.resume) }

// probing reports whether only one message at a time is to be tried.
func (o *outlet) probing() bool { return o.refused != nil || o.silent }

// idle reports whether the outlet has nothing to do.
func (o *outlet) idle() bool { return o.open == 0 && o.queuedCount == 0 && len(o.ready) == 0 }

// pause keeps the outlet from publishing for a while that grows with each pause in a row.
func (o *outlet) pause(now time.Time) {
	d := min(pauseMost, pauseFirst<<min(o.pauses, 10))
	o.pauses++
	o.pausedTo = now.Add(d/2 + rand.N(d/2+1))
}

// alive notes that the stream has taken a message.
func (o *outlet) alive() {
	o.refused, o.silent, o.pauses, o.missing = nil, false, 0, 0
	o.window = min(maxWindow, o.window+1)
}

// throttle shrinks the window: the stream's queue is full.
func (o *outlet) throttle() { o.window = max(minWindow, o.window/2) }

// oneByOne has what a batch refused sent singly: each message then gets its own answer.
func (o *outlet) oneByOne(entries []*entry, duplicate bool) {
	o.singles, o.resume, o.byDup = true, false, duplicate
	o.batchMax = min(o.batchCap, firstBatch)
	if duplicate {
		return
	}
	for _, en := range entries {
		if en.place != ended && !en.suspect {
			en.suspect = true
			o.suspects++
		}
	}
}

// single notes how a message of the time without batches ended.
func (o *outlet) single(duplicate bool) {
	if o.singles && o.byDup && !duplicate {
		o.resume = true
	}
}
