package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/relevo-io/relevo/host/telemetry"
	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// watch is what the loop remembers to say how the pipeline is doing.
type watch struct {
	state  State
	since  time.Time
	reason string
	order  string

	eventsRead, eventsAcked uint64
	read                    rate
	settled                 []rate      // per sink
	sinkSeen                []sinkSeen  // per sink
	lastSettled             time.Time   // at any sink; zero: never
	lastRead                time.Time   // the last batch, or when the source was opened
	unanswered              time.Time   // since when a Hold has no Held; zero: all have
	source                  sourceSaid  // its last Status
	told                    [][2]uint64 // per sink: acked and filtered, as told to the metrics
}

// sinkSeen is how far a sink was when it was last looked at.
type sinkSeen struct {
	oldest uint64    // the number that has been out for longest; 0: none
	since  time.Time // since when it is the oldest
}

type sourceSaid struct {
	at     time.Time
	oldest *float64
	lag    *uint64
	queue  *uint64
}

func (w *watch) init(now time.Time, sinks int) {
	w.state, w.since, w.lastRead = Starting, now, now
	w.settled, w.sinkSeen, w.told = make([]rate, sinks), make([]sinkSeen, sinks), make([][2]uint64, sinks)
}

// end notes the last state.
func (w *watch) end(s State, reason string) {
	if w.state != Failed {
		w.state, w.since, w.reason = s, time.Now(), reason
	}
}

// ---- counting, in the loop

func (p *Pipeline) countBatch(b *wire.Batch) {
	p.watch.eventsRead += uint64(b.Count)
	p.watch.lastRead = time.Now()
	p.set.Metrics.Read(b.Count, b.Bytes())
	p.set.Metrics.BatchEvents(b.Count)
}

func (p *Pipeline) countAck(a SourceAck) {
	n := uint64(0)
	for _, r := range a.Ranges {
		n += r.Last - r.First + 1
	}
	if a.ThroughSeq > 0 {
		n = a.ThroughSeq - p.ledger.ackedThrough
		p.ledger.ackedThrough = a.ThroughSeq
	}
	p.watch.eventsAcked += n
	p.set.Metrics.Acked(int(n))
}

func (p *Pipeline) countFailure(m RetryLater) {
	p.metricSinks[m.Sink].Failure(className(m.Class), m.Code)
	level := slog.LevelWarn
	if m.Class != pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT {
		level = slog.LevelError
	}
	if m.Attempts == 1 || m.Class != pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT {
		p.log.Log(context.Background(), level, "event refused; its key waits", "sink", p.sinks[m.Sink].name, "key", keyText(m.Key), "event_id", m.EventID,
			"class", className(m.Class), "code", m.Code, "err", m.Message, "hint", m.Hint, "attempts", m.Attempts)
	}
}

// ---- what plugins say of themselves

func (p *Pipeline) sourceStatus(n *instance, s *pluginv1.SourceStatus) {
	state := map[pluginv1.SourceState]string{
		pluginv1.SourceState_SOURCE_STATE_CONNECTING: "connecting", pluginv1.SourceState_SOURCE_STATE_STANDBY: "standby",
		pluginv1.SourceState_SOURCE_STATE_SNAPSHOT: "snapshot", pluginv1.SourceState_SOURCE_STATE_STREAMING: "streaming",
	}[s.GetState()]
	if state != "" && state != n.state {
		p.log.Info("source changes state", "from", n.state, "to", state, "text", s.GetText())
	}
	if state != "" {
		n.state, n.text = state, s.GetText()
	}
	if state == "standby" || state == "snapshot" {
		n.overFault() // also before Opened, which for a standby may be weeks away
	}
	said := sourceSaid{at: time.Now(), lag: s.LagBytes, queue: s.Backlog}
	if d := s.GetOldestUnpublished(); d != nil {
		v := d.AsDuration().Seconds()
		said.oldest = &v
	}
	p.watch.source = said
	n.setMetrics(s.GetMetrics())
}

func (p *Pipeline) sinkStatus(n *instance, s *pluginv1.SinkStatus) {
	state := map[pluginv1.SinkState]string{
		pluginv1.SinkState_SINK_STATE_OK: "ok", pluginv1.SinkState_SINK_STATE_SLOW: "slow", pluginv1.SinkState_SINK_STATE_DOWN: "down",
	}[s.GetState()]
	if state != "" && state != n.state {
		level := slog.LevelInfo
		if state == "down" {
			level = slog.LevelWarn
		}
		p.log.Log(context.Background(), level, "sink changes state", "sink", n.name, "from", n.state, "to", state, "text", s.GetText())
	}
	if state != "" {
		n.state, n.text = state, s.GetText()
	}
	n.setMetrics(s.GetMetrics())
}

// maxPluginMetrics bounds what is kept of a plugin's own numbers (I7).
const maxPluginMetrics = 64

func (n *instance) setMetrics(ms []*pluginv1.Metric) {
	m := make(map[string]float64, len(ms))
	for _, x := range ms[:min(len(ms), maxPluginMetrics)] {
		m[x.GetName()] = x.GetValue()
	}
	n.metrics = m
	n.p.set.Metrics.PluginMetrics(n.name, m)
}

// ---- the tick

// observe works out the state, twice a second.
func (p *Pipeline) observe(now time.Time) {
	w := &p.watch
	l := p.ledger
	for i, s := range l.sinks {
		k := p.metricSinks[i]
		k.Settled("acked", int(s.acked-w.told[i][0]))
		k.Settled("filtered", int(s.filtered-w.told[i][1]))
		if s.acked != w.told[i][0] {
			w.lastSettled = now
		}
		w.told[i] = [2]uint64{s.acked, s.filtered}
		w.settled[i].note(now, s.acked)
		if oldest := s.oldest(); oldest != w.sinkSeen[i].oldest {
			w.sinkSeen[i] = sinkSeen{oldest, now}
		}
	}
	w.read.note(now, w.eventsRead)
	for _, f := range l.finished {
		p.set.Metrics.Settled(now.Sub(f.arrived), f.events)
	}
	l.finished = l.finished[:0]
	if !l.unansweredHolds() {
		w.unanswered = time.Time{}
	} else if w.unanswered.IsZero() {
		w.unanswered = now
	}
	p.set.Metrics.InFlight(l.events, l.live)
	if p.source.state == "down" {
		w.source = sourceSaid{} // nobody measures now: the last word of a dead source looks healthy for ever
	}
	for _, n := range append([]*instance{p.source}, p.sinks...) {
		if n.state == "down" && !n.opened && len(n.metrics) > 0 {
			n.setMetrics(nil) // so do its own numbers
		}
	}
	p.set.Metrics.Waiting(telemetry.Waiting{OldestSeconds: w.source.oldest, LagBytes: w.source.lag, Events: w.source.queue})
	p.publish(now)
}

// publish makes the status that others see.
func (p *Pipeline) publish(now time.Time) {
	w := &p.watch
	state, reason, culprit := p.judge(now)
	if state != w.state {
		level := slog.LevelInfo
		switch state {
		case Retrying, Blocked:
			level = slog.LevelWarn
		case Misconfigured, Stalled, Failed:
			level = slog.LevelError
		}
		p.log.Log(context.Background(), level, "pipeline changes state", "from", w.state, "state", state, "reason", reason)
		w.state, w.since = state, now
	}
	w.reason = reason
	s := p.snapshot()
	p.status.Store(s)
	all := make([]string, len(States))
	for i, x := range States {
		all[i] = string(x)
	}
	p.set.Metrics.State(string(state), all)
	p.set.Metrics.Stalled(culprit)
}

// judge says which state the pipeline is in, and why; culprit is the kind of thing that a stall is due to.
func (p *Pipeline) judge(now time.Time) (s State, reason, culprit string) {
	w, l := &p.watch, p.ledger
	if p.finished || w.state == Stopped {
		return Stopped, w.reason, ""
	}
	if l == nil {
		return Starting, "", ""
	}
	if p.draining {
		return Draining, fmt.Sprintf("%d events in flight", l.events), ""
	}
	all := append([]*instance{p.source}, p.sinks...)
	for _, n := range all {
		if n.failed || n.fault.GetClass() == pluginv1.ErrorClass_ERROR_CLASS_PERMANENT {
			return Failed, n.why(), ""
		}
	}
	for _, n := range all {
		if n.fault.GetClass() == pluginv1.ErrorClass_ERROR_CLASS_CONFIG {
			return Misconfigured, n.why(), ""
		}
	}
	for _, n := range all {
		if n.down != "" && !n.opened {
			return Retrying, n.why(), ""
		}
		if n.state == "down" || n.state == "connecting" {
			return Retrying, fmt.Sprintf("%s: %s", n.name, n.text), ""
		}
	}
	if err := p.writer.failing(); err != "" {
		return Retrying, "state database: " + err, ""
	}
	for i, k := range p.sinks {
		if l.down(i) {
			return Retrying, fmt.Sprintf("%s: fails every event it is given", k.name), ""
		}
	}
	if p.source.state == "standby" {
		return Standby, p.source.text, ""
	}
	if reason, culprit := p.stall(now); reason != "" {
		return Stalled, reason, culprit
	}
	if !p.source.opened {
		return Starting, "", ""
	}
	if reason := l.blocked(); reason != "" {
		return Blocked, reason, ""
	}
	return Running, "", ""
}

// why it is not open.
func (n *instance) why() string {
	if h := n.fault.GetHint(); h != "" {
		return fmt.Sprintf("%s: %s (%s)", n.name, n.down, h)
	}
	return fmt.Sprintf("%s: %s", n.name, n.down)
}

// silence is how long a source may say nothing; the protocol asks for a Status every few seconds.
const silence = 30 * time.Second

// stall is the progress watchdog: work is pending, and one of these has not moved for stall_after.
func (p *Pipeline) stall(now time.Time) (reason, culprit string) {
	w, l, limit := &p.watch, p.ledger, p.set.Config.Delivery.StallAfter
	long := func(t time.Time) bool { return !t.IsZero() && now.Sub(t) > limit }
	span := func(t time.Time) time.Duration { return now.Sub(t).Round(time.Second) }
	for i, k := range p.sinks {
		if k.queue != nil && long(k.queue.blocked()) {
			return fmt.Sprintf("sink %s does not read its stream, for %s", k.name, span(k.queue.blocked())), "sink " + k.name
		}
		if seen := w.sinkSeen[i]; seen.oldest != 0 && long(seen.since) {
			id, key := l.who(i, seen.oldest)
			return fmt.Sprintf("sink %s has not answered for event %s of key %q, for %s", k.name, id, keyText(key), span(seen.since)), "sink " + k.name
		}
	}
	if t := p.writer.since(); long(t) {
		return fmt.Sprintf("the state database has not answered, for %s", span(t)), "state"
	}
	q := p.source.queue
	switch {
	case q != nil && long(q.blocked()):
		return fmt.Sprintf("source does not read its stream, for %s", span(q.blocked())), "source"
	case long(w.unanswered):
		return fmt.Sprintf("source has not answered Hold, for %s", span(w.unanswered)), "source"
	case p.source.opened && l.events == 0 && w.source.oldest != nil && *w.source.oldest > limit.Seconds() && long(w.lastRead) && len(l.held) == 0:
		return fmt.Sprintf("source has unpublished events, the oldest %.0fs old, and has sent none for %s", *w.source.oldest, span(w.lastRead)), "source"
	case p.source.opened && p.source.state == "streaming" && long(w.source.at) && now.Sub(w.source.at) > silence:
		return fmt.Sprintf("source has said nothing for %s", span(w.source.at)), "source"
	}
	for _, n := range append([]*instance{p.source}, p.sinks...) {
		// A standby opens when it leads, which may be never.
		if !n.opened && n.pid != 0 && n.attempt > 0 && n.state != "standby" && long(n.orderedAt) {
			return fmt.Sprintf("%s has not opened, for %s", n.name, span(n.orderedAt)), n.name
		}
	}
	return "", ""
}

// rate is a count over the last ten seconds.
type rate struct {
	at [20]time.Time
	n  [20]uint64
	k  int
}

func (r *rate) note(now time.Time, n uint64) {
	r.at[r.k%len(r.at)], r.n[r.k%len(r.n)] = now, n
	r.k++
}

func (r *rate) perSecond() float64 {
	if r.k < 2 {
		return 0
	}
	newest, oldest := (r.k-1)%len(r.at), 0
	if r.k > len(r.at) {
		oldest = r.k % len(r.at)
	}
	d := r.at[newest].Sub(r.at[oldest]).Seconds()
	if d <= 0 {
		return 0
	}
	return float64(r.n[newest]-r.n[oldest]) / d
}
