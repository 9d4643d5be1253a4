package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/relevo-io/relevo/sdk"
)

// counts are the sink's own numbers.
type counts struct {
	acks       uint64 // events confirmed
	batches    uint64 // atomic batches sent
	fallbacks  uint64 // batches refused and sent again singly
	duplicates uint64 // confirmations of ids that the stream had already
	unexpected uint64 // those of events that had not been given to the broker before
	timeouts   uint64 // confirmations that did not come in time
	late       uint64 // confirmations that came after that
	failures   uint64
}

// report tells the host how the sink is doing: when that has changed, and every few seconds.
func (e *engine) report(now time.Time) {
	if !e.statusDue && now.Before(e.statusAt) {
		return
	}
	e.statusDue = false
	state, text := e.health()
	if state != e.state || text != e.text || !now.Before(e.statusAt) {
		e.tell(now)
	}
}

func (e *engine) tell(now time.Time) {
	state, text := e.health()
	e.state, e.text, e.statusAt = state, text, now.Add(statusEvery)
	// An error means that the host has gone, which the closed channel of requests says too.
	_ = e.out.Status(sdk.SinkStatus{State: state, Text: text, OldestUnconfirmed: e.oldest(now), Metrics: e.metrics()})
}

func (e *engine) health() (sdk.SinkState, string) {
	if !e.nc.IsConnected() {
		return sdk.SinkDown, offlineText(e.config, e.seen.lastErr)
	}
	state, text := sdk.SinkOK, ""
	for _, o := range e.outlets {
		name := cmp.Or(o.facts.name, "(unknown)")
		switch {
		case o.silent:
			return sdk.SinkDown, fmt.Sprintf("stream %s: no confirmation within %v", name, e.ackTimeout)
		case o.refused != nil && !o.refused.slow:
			return sdk.SinkDown, fmt.Sprintf("stream %s: %v", name, o.refused)
		case o.refused != nil:
			state, text = sdk.SinkSlow, fmt.Sprintf("stream %s: %v", name, o.refused)
		}
	}
	return state, text
}

// offlineText says why there is no connection, with what to change where that is known.
func offlineText(c Config, err error) string {
	if err == nil {
		return "not connected"
	}
	e := connectError(err, c)
	if e.Class == sdk.ClassConfig {
		return fmt.Sprintf("not connected: %v (%s)", err, e.Hint)
	}
	return fmt.Sprintf("not connected: %v", err)
}

// oldest is the age of the oldest event that was given to the broker and is not confirmed.
func (e *engine) oldest(now time.Time) time.Duration {
	var first int64
	see := func(en *entry) {
		if en != nil && en.since != 0 && (first == 0 || en.since < first) {
			first = en.since
		}
	}
	for _, p := range e.ops {
		for _, en := range p.entries {
			see(en)
		}
	}
	for _, o := range e.outlets {
		see(o.peek())
	}
	if first == 0 {
		return 0
	}
	return max(0, now.Sub(time.Unix(0, first)))
}

func (e *engine) metrics() []sdk.Metric {
	queued, inflight := 0, 0
	for _, o := range e.outlets {
		queued += o.queuedCount
	}
	for _, p := range e.ops {
		inflight += len(p.entries)
	}
	return []sdk.Metric{
		{Name: "confirmed_total", Value: float64(e.counts.acks)},
		{Name: "duplicates_total", Value: float64(e.counts.duplicates)},
		{Name: "duplicates_unexpected_total", Value: float64(e.counts.unexpected)},
		{Name: "batches_total", Value: float64(e.counts.batches)},
		{Name: "batch_fallbacks_total", Value: float64(e.counts.fallbacks)},
		{Name: "ack_timeouts_total", Value: float64(e.counts.timeouts)},
		{Name: "late_confirmations_total", Value: float64(e.counts.late)},
		{Name: "failures_total", Value: float64(e.counts.failures)},
		{Name: "reconnects_total", Value: float64(e.nc.Stats().Reconnects)},
		{Name: "queued_events", Value: float64(queued)},
		{Name: "in_flight_events", Value: float64(inflight)},
	}
}
