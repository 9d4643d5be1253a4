package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/relevo-io/relevo/sdk"
)

// exitCrash is the status of a crash that was asked for.
const exitCrash = 3

// settled are the numbers of events, over all streams of the process, that need not come again: all up to through, and
// some above it. One stream is open at a time.
type settled struct {
	through uint64
	some    map[uint64]bool
}

func (a *settled) add(n uint64) {
	switch {
	case n <= a.through:
		return
	case n == a.through+1: // almost always
		a.through++
	default:
		a.some[n] = true
	}
	for len(a.some) > 0 && a.some[a.through+1] {
		a.through++
		delete(a.some, a.through)
	}
}

func (a *settled) has(n uint64) bool { return n <= a.through || a.some[n] }

// sent is an event that has a number on the stream and has not ended.
type sent struct {
	event uint64
	bytes int
	ended bool
}

type source struct {
	c      config
	s      *sdk.SourceStream
	window sdk.Window
	feed   feed
	acked  *settled

	// open[i] is number first+i. With holds_keys what ended counts no more; else the distance counts, ended or not.
	open   []sent
	first  uint64
	events int // that count against the window
	bytes  int
	late   []sdk.Ack // slow_ack: not yet in effect
	lateN  int

	batch    sdk.Batch
	event    sdk.Event
	payload  []byte
	headers  []sdk.Header
	key      []byte
	produced int
}

func run(ctx context.Context, o sdk.SourceOpen[config], s *sdk.SourceStream, acked *settled) error {
	c := o.Config
	if c.OpenFault != "" {
		return fault(c.OpenFault)
	}
	k := &source{
		c: c, s: s, acked: acked, window: o.Window, first: 1,
		feed:    feed{keys: uint64(c.Keys), end: uint64(c.Count), cursor: 1, held: map[string]*stash{}},
		payload: bytes.Repeat([]byte{'x'}, int(c.Size)),
	}
	for i := range c.Headers {
		k.headers = append(k.headers, sdk.Header{Name: fmt.Sprintf("header-%d", i), Value: []byte("value")})
	}
	if err := k.resume(o); err != nil {
		return err
	}
	if err := s.Opened(sdk.SourceOpened{HoldsKeys: c.HoldsKeys, HasPositions: c.Positions, Order: "per key"}); err != nil {
		return err
	}
	if err := k.status(); err != nil {
		return err
	}
	return k.loop(ctx)
}

// resume goes on where the host, or this process, knows to be.
func (k *source) resume(o sdk.SourceOpen[config]) error {
	switch {
	case len(o.Position) > 0:
		n, err := strconv.ParseUint(string(o.Position), 10, 64)
		if err != nil {
			return sdk.Permanent(fmt.Errorf("position: %w", err)).WithCode("position_invalid")
		}
		k.feed.cursor = n + 1
	case !k.c.Positions:
		k.feed.cursor = k.acked.through + 1
	}
	for _, key := range o.HeldKeys {
		k.feed.hold(string(key))
	}
	for _, id := range o.HeldIDs {
		k.feed.hold(id)
	}
	return nil
}

// statusEvery is how often a source tells how it is doing.
const statusEvery = 2 * time.Second

func (k *source) loop(ctx context.Context) error {
	var tick <-chan time.Time
	perTick := k.c.Batch
	if k.c.Rate > 0 {
		every := max(time.Millisecond, time.Second/time.Duration(k.c.Rate))
		perTick = max(1, int(int64(k.c.Rate)*int64(every)/int64(time.Second)))
		t := time.NewTicker(every)
		defer t.Stop()
		tick = t.C
	}
	status := time.NewTicker(statusEvery)
	defer status.Stop()
	ready := make(chan struct{}) // always readable, while there is something to send
	close(ready)

	idle := false // until a request changes something
	for {
		var send <-chan struct{}
		if tick == nil && !idle {
			send = ready
		}
		select {
		case r, ok := <-k.s.Requests():
			if !ok {
				return context.Cause(ctx)
			}
			if stop, err := k.obey(ctx, r); stop || err != nil {
				return err
			}
			idle = false
			continue
		case <-status.C:
			if err := k.status(); err != nil {
				return err
			}
			continue
		case <-tick:
		case <-send:
		}
		n, err := k.produce(min(perTick, k.c.Batch))
		if err != nil {
			return err
		}
		idle = n == 0
	}
}

func (k *source) status() error {
	return k.s.Status(sdk.SourceStatus{State: sdk.StateStreaming, LagBytes: -1, Backlog: -1, OldestUnpublished: -1})
}

// produce sends one batch of at most n events, if the window allows.
func (k *source) produce(n int) (int, error) {
	var last uint64
	for k.batch.Count() < n {
		if k.events > 0 && (k.events >= k.window.Events || k.bytes >= k.window.Bytes) {
			break
		}
		e, ok := k.feed.next()
		if !ok {
			break
		}
		if !k.c.Positions && k.acked.has(e) {
			continue
		}
		last = e
		size, err := k.add(e)
		if err != nil {
			return 0, err
		}
		k.open = append(k.open, sent{event: e, bytes: size})
		k.events++
		k.bytes += size
		if !k.batch.Fits(size) {
			break
		}
	}
	count := k.batch.Count()
	if count == 0 {
		return 0, nil
	}
	var position []byte
	if k.c.Positions {
		position = strconv.AppendUint(nil, last, 10)
	}
	if _, err := k.s.Send(&k.batch, position); err != nil {
		return 0, err
	}
	k.produced += count
	if k.c.FailAfter > 0 && k.produced >= k.c.FailAfter {
		return 0, sdk.Transient(errors.New("the null source was told to fail")).WithCode("null_failed")
	}
	if k.c.CrashAfter > 0 && k.produced >= k.c.CrashAfter {
		k.crash()
	}
	return count, nil
}

// add encodes an event, or rejects its row. It returns what it takes of the byte window.
func (k *source) add(n uint64) (int, error) {
	if k.c.RejectEvery > 0 && n%uint64(k.c.RejectEvery) == 0 {
		r := sdk.Rejected{ID: idOf(n), Code: "null_rejected", Message: "the null source was told to reject this row"}
		if k.c.Keys > 0 {
			r.Key = []byte(keyOf(n, uint64(k.c.Keys)))
		}
		k.batch.Reject(r)
		return 1, nil
	}
	k.fill(n)
	return k.event.Size(), k.batch.Add(&k.event)
}

// fill writes event n.
func (k *source) fill(n uint64) {
	k.event = sdk.Event{
		ID:            idOf(n),
		Type:          "NullMade",
		AggregateType: "null",
		ContentType:   "application/octet-stream",
		Headers:       k.headers,
		Payload:       k.payload,
	}
	if k.c.Keys > 0 {
		k.key = appendKey(k.key[:0], n, uint64(k.c.Keys))
		k.event.Key = k.key
	}
}

func (k *source) crash() {
	if k.c.CrashOnce != "" {
		f, err := os.OpenFile(k.c.CrashOnce, os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return
		}
		_ = f.Close()
	}
	os.Exit(exitCrash)
}

// obey does what the host asks. stop: it was the last.
func (k *source) obey(ctx context.Context, r sdk.Request) (stop bool, err error) {
	switch r := r.(type) {
	case sdk.Ack:
		if !k.c.SlowAck {
			k.ack(r)
			return false, nil
		}
		k.late = append(k.late, r)
		for _, g := range r.Ranges {
			k.lateN += int(g.Last - g.First + 1)
		}
		if k.c.Positions || k.lateN >= k.window.Events/2 || k.events >= k.window.Events || k.bytes >= k.window.Bytes {
			k.applyLate()
		}
	case sdk.Hold:
		for _, key := range r.Keys {
			k.feed.hold(string(key))
		}
		for _, id := range r.IDs {
			k.feed.hold(id)
		}
		for _, g := range r.Returned {
			for n := g.First; n <= g.Last; n++ {
				if e, ok := k.end(n); ok {
					k.feed.giveBack(e)
				}
			}
		}
		k.trim()
		if len(r.Keys)+len(r.IDs) > 0 {
			return false, k.s.Held(r.Keys, r.IDs)
		}
	case sdk.Release:
		for _, key := range r.Keys {
			k.feed.release(string(key))
		}
		for _, id := range r.IDs {
			k.feed.release(id)
		}
	case sdk.Window:
		k.window = r
	case sdk.Stop:
		k.applyLate()
		if k.c.HangOnStop {
			<-ctx.Done()
			return true, context.Cause(ctx)
		}
		return true, nil
	}
	return false, nil
}

func (k *source) applyLate() {
	for _, a := range k.late {
		k.ack(a)
	}
	k.late, k.lateN = nil, 0
}

func (k *source) ack(a sdk.Ack) {
	if k.c.Positions {
		for n := k.first; n <= a.ThroughSeq && n-k.first < uint64(len(k.open)); n++ {
			k.end(n)
		}
	}
	for _, g := range a.Ranges {
		for n := g.First; n <= g.Last; n++ {
			if e, ok := k.end(n); ok {
				k.acked.add(e)
			}
		}
	}
	k.trim()
}

// end ends a number and returns its event. False: it was not open.
func (k *source) end(n uint64) (uint64, bool) {
	if n < k.first || n-k.first >= uint64(len(k.open)) || k.open[n-k.first].ended {
		return 0, false
	}
	o := &k.open[n-k.first]
	o.ended = true
	if k.c.HoldsKeys {
		k.events--
		k.bytes -= o.bytes
	}
	return o.event, true
}

// trim forgets the prefix that has ended.
func (k *source) trim() {
	i := 0
	for i < len(k.open) && k.open[i].ended {
		if !k.c.HoldsKeys {
			k.events--
			k.bytes -= k.open[i].bytes
		}
		i++
	}
	k.open = slices.Delete(k.open, 0, i)
	k.first += uint64(i)
}

func fault(class string) error {
	err := errors.New("the null source was told not to open")
	switch class {
	case "transient":
		return sdk.Transient(err).WithCode("null_refused")
	case "config":
		return sdk.Config(err).WithCode("null_refused").WithHint("take the option out")
	}
	return sdk.Permanent(err).WithCode("null_refused")
}
