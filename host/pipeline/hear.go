package pipeline

import (
	"context"
	"log/slog"
	"time"

	"github.com/relevo-io/relevo/internal/failpoint"
	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// heard takes one message in. An error is a *ProtocolError: the plugin's process is ended for it.
func (p *Pipeline) heard(n *instance, m any) error {
	err := p.hear(n, m)
	if err != nil {
		p.log.Error("plugin broke the protocol", "plugin", n.conf.Plugin, "instance", n.name, "pid", n.pid, "err", err)
	}
	return err
}

func (p *Pipeline) hear(n *instance, m any) error {
	switch m := m.(type) {
	case *wire.Batch:
		if !n.opened {
			return protocolError("a batch before Opened")
		}
		p.countBatch(m)
		return p.ledger.OnBatch(m)
	case *pluginv1.ReadResponse:
		return p.hearSource(n, m)
	case *pluginv1.WriteResponse:
		return p.hearSink(n, m)
	}
	return nil
}

func (p *Pipeline) hearSource(n *instance, r *pluginv1.ReadResponse) error {
	switch m := r.GetMessage().(type) {
	case *pluginv1.ReadResponse_Opened:
		if n.opened {
			return protocolError("Opened twice")
		}
		n.isOpen()
		p.watch.order = m.Opened.GetOrder()
		p.log.Info("source is open", "plugin", n.conf.Plugin, "pid", n.pid, "attempt", n.attempt, "order", m.Opened.GetOrder())
		p.ledger.OnSourceOpened(m.Opened.GetHoldsKeys(), m.Opened.GetHasPositions())
	case *pluginv1.ReadResponse_Held:
		p.ledger.OnHeld(m.Held.GetKeys(), m.Held.GetIds())
	case *pluginv1.ReadResponse_Progress:
		return p.ledger.OnProgress(m.Progress.GetPosition())
	case *pluginv1.ReadResponse_Status:
		p.sourceStatus(n, m.Status)
	default:
		return protocolError("a response without a message that this version knows")
	}
	return nil
}

func (p *Pipeline) hearSink(n *instance, r *pluginv1.WriteResponse) error {
	switch m := r.GetMessage().(type) {
	case *pluginv1.WriteResponse_Opened:
		if n.opened {
			return protocolError("Opened twice")
		}
		n.isOpen()
		p.log.Info("sink is open", "plugin", n.conf.Plugin, "instance", n.name, "pid", n.pid, "attempt", n.attempt,
			"keeps_order", m.Opened.GetKeepsOrder())
		p.ledger.OnSinkOpened(n.index, m.Opened.GetKeepsOrder())
		p.openSource()
	case *pluginv1.WriteResponse_Ack:
		failpoint.Hit(failpoint.HostAcked)
		return p.ledger.OnAck(n.index, m.Ack.GetThroughSeq(), m.Ack.GetRanges())
	case *pluginv1.WriteResponse_Failure:
		return p.ledger.OnFailure(n.index, m.Failure)
	case *pluginv1.WriteResponse_Returned:
		return p.ledger.OnReturned(n.index, m.Returned.GetRanges())
	case *pluginv1.WriteResponse_Status:
		p.sinkStatus(n, m.Status)
	default:
		return protocolError("a response without a message that this version knows")
	}
	return nil
}

func (n *instance) isOpen() {
	n.opened = true
	n.overFault()
	if n.state == "starting" || n.state == "down" {
		n.state, n.text = "open", ""
	}
}

// overFault: what ended the last stream is over.
func (n *instance) overFault() { n.down, n.fault, n.failed = "", nil, false }

// launched: a process is running.
func (n *instance) launched(pid int) {
	n.pid = pid
	n.p.triedStart(n)
}

// launchFailed: there is no process; it is tried again after delay.
func (n *instance) launchFailed(err error, delay time.Duration, failed bool) {
	n.pid, n.down, n.failed, n.state = 0, err.Error(), failed, "down"
	n.log.Error("plugin does not start", "err", err, "retry_in", delay)
	n.p.set.Metrics.Restart(n.conf.Plugin, "launch")
	n.p.triedStart(n)
}

func (p *Pipeline) triedStart(n *instance) {
	p.startTried[n] = true
	if len(p.startTried) == 1+len(p.sinks) || n != p.source && len(p.startTried) == len(p.sinks) {
		p.tried.Store(true)
	}
}

// streamEnded: the plugin ended the stream, or died. The ledger says what is to be opened again; the instance waits.
func (n *instance) streamEnded(e ending, delay time.Duration) {
	p := n.p
	n.opened, n.ended, n.queue, n.cut, n.failed, n.state = false, true, nil, nil, e.failed, "down"
	if e.fault != nil {
		n.fault, n.down = e.fault, e.fault.GetMessage()
		level := slog.LevelWarn
		if e.fault.GetClass() != pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT {
			level = slog.LevelError
		}
		n.log.Log(context.Background(), level, "plugin ended its stream", "code", e.fault.GetCode(), "class", className(e.fault.GetClass()),
			"err", e.fault.GetMessage(), "hint", e.fault.GetHint(), "retry_in", delay)
	} else {
		n.restarts++
		n.pid, n.down = 0, e.err.Error()
		n.log.Error("plugin crashed", "err", e.err, "restart_in", delay)
		p.set.Metrics.Restart(n.conf.Plugin, "crash")
	}
	if n.index == Source && p.ledger.stopSent {
		// It can't say any more whether the acks before Stop took effect; nobody else has anything to wait for.
		if !p.drained {
			p.drainErr = ErrDrainBroken
			p.stopSinks()
		}
		return
	}
	if n.index == Source {
		p.ledger.OnSourceEnded()
		epoch := p.settleEpoch
		p.timers.add(time.Now().Add(p.set.Config.Delivery.DrainTimeout), func() {
			if epoch == p.settleEpoch {
				p.ledger.OnDrainTimeout()
			}
		})
		return
	}
	if p.drained {
		p.sinkStopped()
		return
	}
	p.ledger.OnSinkEnded(n.index, e.fault == nil)
}

// hasStopped: the answer to Stop.
func (n *instance) hasStopped() {
	n.stopped = true
	if n.index == Source {
		n.p.stopSinks()
		return
	}
	n.p.sinkStopped()
}

// stopSinks follows the source's end: sinks are closed after it.
func (p *Pipeline) stopSinks() {
	p.drained = true
	for _, s := range p.sinks {
		if s.queue != nil && s.opened && !s.ended {
			s.queue.push(toSink(Stop{}))
		} else {
			s.stopped = true
		}
	}
	p.sinkStopped()
}

func (p *Pipeline) sinkStopped() {
	for _, s := range p.sinks {
		if !s.stopped && !s.ended {
			return
		}
	}
	p.finished = true
}

func className(c pluginv1.ErrorClass) string {
	switch c {
	case pluginv1.ErrorClass_ERROR_CLASS_PERMANENT:
		return "permanent"
	case pluginv1.ErrorClass_ERROR_CLASS_CONFIG:
		return "config"
	default:
		return "transient"
	}
}
