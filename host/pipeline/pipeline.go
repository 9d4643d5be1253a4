package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relevo-io/relevo/host/config"
	"github.com/relevo-io/relevo/host/state"
	"github.com/relevo-io/relevo/host/telemetry"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// Times that are not configurable.
const (
	holdAfter      = 5 * time.Second // a key that has been failing for so long is held
	permanentRetry = time.Minute     // how often the head of a permanently refused key is tried again
	tick           = 500 * time.Millisecond
	closeTimeout   = 5 * time.Second // for a plugin to exit, after its stream has stopped
	discardMemory  = 7 * 24 * time.Hour
	downAfter      = 4 // keys in a row that a sink without keeps_order fails before it counts as down
)

// ErrDrainTimeout means that a drain was cut short: what was in flight will be repeated.
var ErrDrainTimeout = errors.New("drain timed out")

// ErrDrainBroken means that the source ended before it had answered Stop: what it had not released upstream yet will be
// repeated.
var ErrDrainBroken = errors.New("source ended before its drain was done")

// Settings of a Pipeline.
type Settings struct {
	Config     *config.Pipeline
	State      *state.DB
	HostID     string
	RuntimeDir string // see plugin.RuntimeDir
	Log        *slog.Logger
	Metrics    *telemetry.Pipeline
}

// Pipeline moves events from one source to its sinks. One goroutine, the loop, owns the ledger and everything about it;
// the goroutines of the plugin instances and of the state writer tell it what happens and carry out what it says.
type Pipeline struct {
	set     Settings
	log     *slog.Logger
	sinks   []*instance
	source  *instance
	writer  *stateWriter
	inbox   chan func()
	done    chan struct{} // closed when the loop has ended
	drain   chan struct{} // closed by Drain
	drainMu sync.Once
	status  atomic.Pointer[Status]
	tried   atomic.Bool // every plugin had its first start attempt

	// Everything below belongs to the loop.
	ledger      *Ledger
	timers      timers
	waitSource  *OpenSource // ordered, until every sink is open
	settleEpoch int
	draining    bool
	drained     bool // the source has stopped; sinks are being stopped
	finished    bool
	drainErr    error // why the drain was not complete
	watch       watch
	metricSinks []*telemetry.Sink
	startTried  map[*instance]bool
}

// New makes a pipeline; Run starts it.
func New(s Settings) *Pipeline {
	p := &Pipeline{
		set: s, log: s.Log.With("pipeline", s.Config.Name), inbox: make(chan func()), done: make(chan struct{}),
		drain: make(chan struct{}), startTried: map[*instance]bool{},
	}
	p.source = p.instance(Source, &s.Config.Source, "source")
	for i := range s.Config.Sinks {
		k := &s.Config.Sinks[i]
		p.sinks = append(p.sinks, p.instance(i, &k.Plugin, k.Name))
		p.metricSinks = append(p.metricSinks, s.Metrics.Sink(k.Name))
	}
	s.Metrics.Window(s.Config.Delivery.MaxInFlightEvents, s.Config.Delivery.MaxInFlightBytes)
	p.watch.init(time.Now(), len(p.sinks))
	p.publish(time.Now())
	return p
}

func (p *Pipeline) instance(index int, c *config.Plugin, name string) *instance {
	return &instance{
		p: p, index: index, conf: c, name: name, orders: make(chan order, 1), state: "starting",
		log: p.log.With("plugin", c.Plugin, "instance", name),
	}
}

// Drain asks for the end in good order: Run returns once everything in flight is settled, or after the drain time-out.
func (p *Pipeline) Drain() { p.drainMu.Do(func() { close(p.drain) }) }

// Status is how the pipeline is doing, at most half a second old.
func (p *Pipeline) Status() Status { return *p.status.Load() }

// Tried reports whether every plugin had its first start attempt.
func (p *Pipeline) Tried() bool { return p.tried.Load() }

// Run moves events until ctx ends, which abandons what is in flight at once, or until Drain is done. Nil: drained.
// ErrDrainTimeout, ErrDrainBroken: not everything, or not in time. The end of ctx is its cause. Every process that it started has ended then.
func (p *Pipeline) Run(ctx context.Context) error {
	position, discards, err := p.load(ctx)
	if err != nil {
		close(p.done)
		return err
	}
	rules, err := p.rules()
	if err != nil {
		close(p.done)
		return err
	}
	p.ledger = NewLedger(rules, position, discards)

	// Two contexts: live says go on, closing bounds the end of the processes.
	live, stop := context.WithCancel(context.WithoutCancel(ctx))
	closing, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	var wg sync.WaitGroup
	p.writer = newStateWriter(p)
	wg.Go(func() { p.writer.run(live) })
	for _, n := range append([]*instance{p.source}, p.sinks...) {
		wg.Go(func() { n.run(live, closing) })
	}
	p.log.Info("pipeline starts", "source", p.source.conf.Plugin, "sinks", len(p.sinks), "position_stored", position != nil)
	err = p.loop(ctx)
	close(p.done)
	timer := time.AfterFunc(closeTimeout, cut)
	if ctx.Err() != nil {
		cut()
	}
	stop()
	wg.Wait()
	timer.Stop()
	return err
}

// load reads what is durable.
func (p *Pipeline) load(ctx context.Context) (position []byte, discards []Discard, err error) {
	name := p.set.Config.Name
	pos, err := p.set.State.Position(ctx, name, p.set.Config.Source.Plugin)
	if err != nil {
		return nil, nil, fmt.Errorf("read position of pipeline %s: %w", name, err)
	}
	if pos != nil {
		position = pos.Value
	}
	if err := p.set.State.ForgetDiscards(ctx, name, nil, time.Now().Add(-discardMemory)); err != nil {
		return nil, nil, fmt.Errorf("forget old discards of pipeline %s: %w", name, err)
	}
	ds, err := p.set.State.Discards(ctx, name)
	if err != nil {
		return nil, nil, fmt.Errorf("read discards of pipeline %s: %w", name, err)
	}
	for _, d := range ds {
		for i, s := range p.sinks {
			if s.name == d.Sink {
				discards = append(discards, Discard{i, d.EventID})
			}
		}
	}
	return position, discards, nil
}

// post runs f in the loop. False: the loop has ended.
func (p *Pipeline) post(f func()) bool {
	select {
	case p.inbox <- f:
		return true
	case <-p.done:
		return false
	}
}

// loop is the one goroutine that touches the ledger.
func (p *Pipeline) loop(ctx context.Context) error {
	p.carryOut()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	due := time.NewTimer(time.Hour)
	defer due.Stop()
	drain := p.drain
	for {
		if at, ok := p.timers.next(); ok {
			due.Reset(time.Until(at))
		}
		select {
		case f := <-p.inbox:
			p.ledger.Clock(time.Now())
			f()
		case now := <-due.C:
			p.ledger.Clock(now)
			p.timers.run(now)
		case now := <-ticker.C:
			p.observe(now)
		case <-drain:
			drain = nil
			p.startDrain()
		case <-ctx.Done():
			p.log.Warn("pipeline aborted: what is in flight will be repeated", "in_flight", p.ledger.events)
			p.watch.end(Stopped, "aborted")
			p.publish(time.Now())
			return context.Cause(ctx)
		}
		p.carryOut()
		if p.finished {
			p.watch.end(Stopped, "")
			p.publish(time.Now())
			return p.drainErr
		}
	}
}

// startDrain begins the end in good order.
func (p *Pipeline) startDrain() {
	p.draining = true
	p.log.Info("pipeline drains", "in_flight", p.ledger.events)
	p.timers.add(time.Now().Add(p.set.Config.Delivery.DrainTimeout), func() {
		p.log.Warn("drain timed out: what is in flight will be repeated", "in_flight", p.ledger.events)
		p.drainErr, p.finished = ErrDrainTimeout, true
	})
	p.ledger.OnStop()
	p.publish(time.Now())
}

// carryOut does what the ledger asks for.
func (p *Pipeline) carryOut() {
	for {
		outs := p.ledger.Take()
		if len(outs) == 0 {
			return
		}
		for _, o := range outs {
			p.do(o)
		}
	}
}

func (p *Pipeline) do(o Out) {
	switch m := o.Msg.(type) {
	case Deliver, Stop, SourceAck, Hold:
		p.tell(o.To, m)
	case Release:
		p.tell(o.To, m)
	case OpenSink:
		n := p.sinks[o.To]
		n.order(order{sink: n.sinkOpen(p.set.Config.Sinks[o.To])})
	case OpenSource:
		p.settleEpoch++
		p.waitSource = &m
		p.openSource()
	case StorePosition:
		p.writer.position(m)
	case StoreDiscard:
		p.writer.discard(m)
	case SeenDiscards:
		p.writer.seen(m.Discards)
	case ForgetDiscards:
		p.writer.forget(m.Discards)
	case RetryLater:
		p.retryLater(m)
	case HeldBack:
		p.timers.add(time.Now().Add(p.retryDelay(m.Failing)), func() { p.ledger.OnHeldRetryDue(m.Lane) })
	case ProbeLater:
		e := p.set.Config.Errors
		p.timers.add(time.Now().Add(backOff(e.RetryInitial, e.RetryMax, m.Probes+1)), func() { p.ledger.OnProbeDue(m.Sink) })
	case Drained:
		p.stopSinks()
	default:
		panic(fmt.Sprintf("BUG: the ledger says %T", m))
	}
}

// tell sends a message of the ledger down a plugin's stream.
func (p *Pipeline) tell(to int, m any) {
	n, msg := p.source, any(nil)
	if to == Source {
		msg = toSource(m)
		if a, ok := m.(SourceAck); ok {
			p.countAck(a)
		}
	} else {
		n, msg = p.sinks[to], toSink(m)
	}
	if n.queue != nil {
		n.queue.push(msg)
	}
}

// openSource orders the source's stream once every sink is open: a host whose sinks are not ready must not take the
// outbox from one whose are.
func (p *Pipeline) openSource() {
	if p.waitSource == nil || p.draining {
		return
	}
	for _, s := range p.sinks {
		if !s.opened {
			return
		}
	}
	m := p.waitSource
	p.waitSource = nil
	n := p.source
	n.order(order{source: &pluginv1.SourceOpen{
		Config: n.conf.Config, Instance: n.instanceProto(), Window: n.windowProto(), DrainTimeout: n.drainProto(),
		Position: m.Position, HeldKeys: m.HeldKeys, HeldIds: m.HeldIDs,
	}})
}

func (n *instance) sinkOpen(k config.Sink) *pluginv1.SinkOpen {
	open := &pluginv1.SinkOpen{
		Config: n.conf.Config, Instance: n.instanceProto(), Window: n.windowProto(), DrainTimeout: n.drainProto(),
	}
	if k.To != nil {
		if c, ok := k.To.Constant(); ok {
			open.ConstantDestination = &c
		}
	}
	return open
}

// retryLater schedules what a failure asks for.
func (p *Pipeline) retryLater(m RetryLater) {
	p.countFailure(m)
	now := time.Now()
	delay := p.retryDelay(m.Failing)
	p.timers.add(now.Add(delay), func() {
		p.metricSinks[m.Sink].Retry(1)
		p.ledger.OnRetryDue(m.Sink, m.Lane, m.Attempts)
	})
	p.timers.add(later(now, m.Since.Add(holdAfter)), func() { p.ledger.OnFailingLong(m.Sink, m.Lane, m.Attempts) })
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// retryDelay is how long a failing head waits.
func (p *Pipeline) retryDelay(f Failing) time.Duration {
	if f.Class == pluginv1.ErrorClass_ERROR_CLASS_PERMANENT {
		return permanentRetry
	}
	return backOff(p.set.Config.Errors.RetryInitial, p.set.Config.Errors.RetryMax, f.Attempts)
}
