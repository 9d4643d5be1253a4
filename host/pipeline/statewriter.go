package pipeline

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relevo-io/relevo/host/state"
	"github.com/relevo-io/relevo/internal/failpoint"
)

// stateWriter makes positions and discards durable, one after the other, in its own goroutine. Its queue is bounded by
// the window: one position, and the discards of events in flight.
type stateWriter struct {
	p    *Pipeline
	more chan struct{} // capacity 1: something has been added
	busy atomic.Int64  // since when one write is under way, in Unix nanoseconds; 0: none is
	err  atomic.Pointer[string]

	mu   sync.Mutex
	jobs []func(context.Context) error // guarded by mu
}

func newStateWriter(p *Pipeline) *stateWriter {
	return &stateWriter{p: p, more: make(chan struct{}, 1)}
}

func (w *stateWriter) add(job func(context.Context) error) {
	w.mu.Lock()
	w.jobs = append(w.jobs, job)
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// position stores a position; the ledger hears of it only when it is durable (I2).
func (w *stateWriter) position(m StorePosition) {
	c := w.p.set.Config
	w.add(func(ctx context.Context) error {
		if err := w.p.set.State.StorePosition(ctx, c.Name, c.Source.Plugin, m.Position); err != nil {
			return err
		}
		failpoint.Hit(failpoint.PositionDurable)
		w.p.post(func() { w.p.ledger.OnStored(m) })
		return nil
	})
}

func (w *stateWriter) discard(m StoreDiscard) {
	p := w.p
	w.add(func(ctx context.Context) error {
		err := p.set.State.StoreDiscard(ctx, p.set.Config.Name, w.named(m.Discard), m.Position)
		if err != nil {
			return err
		}
		failpoint.Hit(failpoint.DiscardDurable)
		p.post(func() {
			p.log.Warn("event discarded by policy", "sink", p.sinks[m.Sink].name, "event_id", m.EventID)
			p.metricSinks[m.Sink].Settled("discarded", 1)
			p.ledger.OnDiscardStored(m.Discard)
		})
		return nil
	})
}

func (w *stateWriter) named(d Discard) state.Discard {
	return state.Discard{Sink: w.p.sinks[d.Sink].name, EventID: d.EventID}
}

func (w *stateWriter) list(ds []Discard) (xs []state.Discard) {
	for _, d := range ds {
		xs = append(xs, w.named(d))
	}
	return xs
}

func (w *stateWriter) seen(ds []Discard) {
	w.add(func(ctx context.Context) error {
		return w.p.set.State.SeenDiscards(ctx, w.p.set.Config.Name, w.list(ds))
	})
}

func (w *stateWriter) forget(ds []Discard) {
	w.add(func(ctx context.Context) error {
		return w.p.set.State.ForgetDiscards(ctx, w.p.set.Config.Name, w.list(ds), time.Time{})
	})
}

// run writes until ctx ends. What can't be written is tried again for ever: nothing is acked meanwhile.
func (w *stateWriter) run(ctx context.Context) {
	for n := 0; ; {
		w.mu.Lock()
		var job func(context.Context) error
		if len(w.jobs) > 0 {
			job = w.jobs[0]
		}
		w.mu.Unlock()
		if job == nil {
			select {
			case <-w.more:
				continue
			case <-ctx.Done():
				return
			}
		}
		w.busy.Store(time.Now().UnixNano())
		err := job(ctx)
		if err == nil {
			w.busy.Store(0)
			w.err.Store(nil)
			n = 0
			w.mu.Lock()
			w.jobs = w.jobs[1:]
			w.mu.Unlock()
			continue
		}
		if ctx.Err() != nil {
			return
		}
		n++
		text := err.Error()
		w.err.Store(&text)
		w.p.log.Error("state cannot be written; nothing is acked until it can", "err", err, "attempts", n)
		t := time.NewTimer(backOff(200*time.Millisecond, 10*time.Second, n))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// failing is the error of the write that is being tried again, or "".
func (w *stateWriter) failing() string {
	if e := w.err.Load(); e != nil {
		return *e
	}
	return ""
}

// since is when the write under way began; zero: none is.
func (w *stateWriter) since() time.Time {
	if n := w.busy.Load(); n != 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}
