package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/relevo-io/relevo/host/config"
	"github.com/relevo-io/relevo/host/plugin"
	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// instance is one place of a plugin in the pipeline: it keeps a process running and opens streams as the loop orders.
// The loop owns all its fields but orders; its own goroutine (run) tells the loop what happens through post.
type instance struct {
	p      *Pipeline
	index  int // of the sink; Source
	conf   *config.Plugin
	name   string // of the sink; "source"
	log    *slog.Logger
	orders chan order // capacity 1: only the newest counts

	// The loop's view.
	attempt   uint64     // of the newest order
	orderedAt time.Time  // of the newest order
	queue     *sendQueue // of the newest order's stream; nil until it is open
	cut       context.CancelFunc
	opened    bool // the plugin has answered Opened
	ended     bool // the stream of the newest order has ended
	stopped   bool // the plugin has answered Stopped
	pid       int
	restarts  int
	down      string // why it is not open: what the last launch or stream said
	fault     *pluginv1.Fault
	failed    bool // crashed too often
	state     string
	text      string
	metrics   map[string]float64
}

// order is the loop's word to open a stream, after the end of any other.
type order struct {
	attempt uint64
	source  *pluginv1.SourceOpen
	sink    *pluginv1.SinkOpen
}

// ending is how a stream ended.
type ending struct {
	fault   *pluginv1.Fault // the plugin's own reason
	crashed bool            // no reason given: the process is gone, or the stream was
	err     error
	failed  bool // crashed too often: the pipeline has FAILED
}

// order replaces what was ordered before.
func (n *instance) order(o order) {
	n.attempt++
	o.attempt, n.orderedAt = n.attempt, time.Now()
	n.opened, n.ended, n.stopped, n.queue = false, false, false, nil
	if n.cut != nil {
		n.cut()
		n.cut = nil
	}
	for {
		select {
		case n.orders <- o:
			return
		case <-n.orders:
		}
	}
}

// run keeps the process until ctx ends, then ends it within the time that closing leaves.
func (n *instance) run(ctx, closing context.Context) {
	var (
		proc      *plugin.Process
		started   time.Time
		crashes   plugin.Backoff
		faults    int
		notBefore time.Time
		next      order
		pending   bool
	)
	defer func() {
		if proc != nil {
			proc.Close(closing)
		}
	}()
	for {
		if !pending {
			select {
			case next = <-n.orders:
				pending = true
			case <-ctx.Done():
				return
			}
		}
		// The back-off goes on through newer orders.
		for wait := time.Until(notBefore); wait > 0; wait = time.Until(notBefore) {
			t := time.NewTimer(wait)
			select {
			case next = <-n.orders:
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return
			}
			t.Stop()
		}
		if proc != nil {
			select {
			case <-proc.Done():
				proc.Kill()
				proc = nil
			default:
			}
		}
		if proc == nil {
			var err error
			if proc, err = plugin.Launch(ctx, n.settings()); err != nil {
				if ctx.Err() != nil {
					return
				}
				delay, failed := crashes.Next(time.Now(), 0)
				notBefore = time.Now().Add(delay)
				n.post(next.attempt, func() { n.launchFailed(err, delay, failed) })
				continue // the order stands
			}
			started = time.Now()
			pid := proc.PID()
			n.p.post(func() { n.launched(pid) })
		}
		pending = false
		end, newer, ok := n.stream(ctx, proc, next)
		if ok {
			next, pending = newer, true
		}
		switch {
		case ctx.Err() != nil:
			return
		case end.fault != nil:
			faults++
			limit := n.p.set.Config.Errors.RetryMax
			delay := backOff(n.p.set.Config.Errors.RetryInitial, limit, faults)
			if end.fault.GetClass() == pluginv1.ErrorClass_ERROR_CLASS_CONFIG {
				delay = limit
			}
			if end.fault.GetClass() == pluginv1.ErrorClass_ERROR_CLASS_PERMANENT {
				delay = 1 << 62 // a person must decide; a restart of the host is how
			}
			notBefore = time.Now().Add(delay)
			n.post(next.attempt, func() { n.streamEnded(end, delay) })
		case end.crashed:
			ran := time.Since(started)
			end = n.bury(proc, end)
			proc = nil
			var delay time.Duration
			delay, end.failed = crashes.Next(time.Now(), ran)
			notBefore = time.Now().Add(delay)
			n.post(next.attempt, func() { n.streamEnded(end, delay) })
		default: // superseded, or stopped in good order
			faults = 0
		}
	}
}

// bury makes sure that the process is gone, and says how it ended.
func (n *instance) bury(proc *plugin.Process, end ending) ending {
	grace := time.NewTimer(time.Second) // the stream breaks a moment before the process is reaped
	defer grace.Stop()
	select {
	case <-proc.Done():
		exit := proc.Exit()
		switch {
		case exit.Hung:
			end.err = errors.New("process hung: its health checks went unanswered, so it was killed")
		case exit.Err != nil:
			end.err = fmt.Errorf("process ended: %w", exit.Err)
		default:
			end.err = errors.New("process ended by itself with exit status 0")
		}
		if len(exit.LastLogs) > 0 {
			end.err = fmt.Errorf("%w; its last words: %s", end.err, exit.LastLogs[len(exit.LastLogs)-1])
		}
	case <-grace.C:
	}
	proc.Kill() // always, or go-plugin's goroutines stay
	return end
}

func (n *instance) settings() plugin.Settings {
	return plugin.Settings{
		Kind: n.conf.Kind, Name: n.conf.Plugin, Path: n.conf.Path, Pipeline: n.p.set.Config.Name, Instance: n.name,
		StartTimeout: n.conf.StartTimeout, Env: n.conf.Env, RuntimeDir: n.p.set.RuntimeDir,
		MaxMessageBytes: int(n.conf.Describe.GetMaxMessageBytes()), Log: n.log,
	}
}

// stream is one attempt. It returns when the stream has ended, or with a newer order, after which nothing of the old
// stream is posted any more.
func (n *instance) stream(ctx context.Context, proc *plugin.Process, o order) (end ending, newer order, superseded bool) {
	sctx, cut := context.WithCancel(ctx)
	defer cut()
	queue := newSendQueue()
	var (
		recv func() (any, error)
		send func(any) error
	)
	if o.source != nil {
		s, err := proc.Read(sctx, o.source)
		if err != nil {
			return ending{crashed: true, err: err}, order{}, false
		}
		recv = func() (any, error) {
			b, r, err := s.Recv()
			if b != nil {
				return b, err
			}
			return r, err
		}
		send = func(m any) error { return s.Send(m.(*pluginv1.ReadRequest)) }
	} else {
		s, err := proc.Write(sctx, o.sink)
		if err != nil {
			return ending{crashed: true, err: err}, order{}, false
		}
		recv = func() (any, error) { return s.Recv() }
		send = func(m any) error {
			if f, ok := m.(*wire.Frame); ok {
				return s.SendFrame(f)
			}
			return s.Send(m.(*pluginv1.WriteRequest))
		}
	}
	n.post(o.attempt, func() { n.queue, n.cut = queue, cut })
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		queue.run(sctx.Done(), send)
	}()
	ended := make(chan ending, 1)
	go func() { ended <- n.receive(sctx, o.attempt, recv) }()
	select {
	case end = <-ended:
	case newer = <-n.orders:
		superseded = true
		cut()
		<-ended
		end = ending{}
	}
	cut()
	<-sending
	return end, newer, superseded
}

// receive posts what the plugin says until the stream ends.
func (n *instance) receive(ctx context.Context, attempt uint64, recv func() (any, error)) ending {
	for {
		m, err := recv()
		switch {
		case ctx.Err() != nil:
			return ending{}
		case errors.Is(err, io.EOF):
			return ending{crashed: true, err: errors.New("plugin ended the stream without a reason")}
		case err != nil:
			return ending{crashed: true, err: err}
		}
		switch m := m.(type) {
		case *pluginv1.ReadResponse:
			if f := m.GetFault(); f != nil {
				return ending{fault: f}
			}
			if m.GetStopped() != nil {
				n.post(attempt, func() { n.hasStopped() })
				return ending{}
			}
		case *pluginv1.WriteResponse:
			if f := m.GetFault(); f != nil {
				return ending{fault: f}
			}
			if m.GetStopped() != nil {
				n.post(attempt, func() { n.hasStopped() })
				return ending{}
			}
		}
		broken := make(chan error, 1)
		if !n.post(attempt, func() { broken <- n.p.heard(n, m) }) {
			return ending{}
		}
		select {
		case err := <-broken:
			if err != nil {
				return ending{crashed: true, err: err}
			}
		case <-ctx.Done():
			return ending{}
		}
	}
}

// post runs f in the loop, unless a newer stream has been ordered by then. False: the loop has ended.
func (n *instance) post(attempt uint64, f func()) bool {
	return n.p.post(func() {
		if n.attempt == attempt {
			f()
		}
	})
}

func (n *instance) instanceProto() *pluginv1.Instance {
	return &pluginv1.Instance{
		HostId: n.p.set.HostID, Pipeline: n.p.set.Config.Name, Name: n.name, Attempt: n.attempt + 1,
	}
}

func (n *instance) windowProto() *pluginv1.Window {
	d := n.p.set.Config.Delivery
	return &pluginv1.Window{Events: uint64(d.MaxInFlightEvents), Bytes: uint64(d.MaxInFlightBytes)}
}

func (n *instance) drainProto() *durationpb.Duration {
	return durationpb.New(n.p.set.Config.Delivery.DrainTimeout)
}
