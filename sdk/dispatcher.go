package sdk

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// dispatcher runs the work of a simple sink: up to width jobs side by side, each of up to most events, while it goes on
// reading the stream. One goroutine, run, has all its state.
type dispatcher struct {
	s     *SinkStream
	width int
	most  int
	do    func(ctx context.Context, job []*Item) (accepted int, err error)

	jobs chan []*Item
	done chan result

	backlog []*Item // not yet given to do; I7: within the window
	busy    int     // jobs that are being done

	// keys that the sink has. The host promises never to have two events of one key at a sink that does not keep order:
	// were it to break that, do would publish them in any order (I4), so it is checked.
	mu   sync.Mutex
	keys map[string]struct{}
}

// result is what became of a job.
type result struct {
	rest  []*Item // not tried
	panic *panicked
}

var errLeft = errors.New("the drain time-out is over, or the stream has ended")

// closeTimeout bounds Close when no drain bounds it.
const closeTimeout = 2 * time.Second

func newDispatcher(s *SinkStream, width, most int, do func(context.Context, []*Item) (int, error)) *dispatcher {
	return &dispatcher{
		s: s, width: width, most: most, do: do,
		jobs: make(chan []*Item),
		done: make(chan result),
		keys: map[string]struct{}{},
	}
}

// run is an attempt of a simple sink after it has connected.
func (d *dispatcher) run(ctx context.Context, drain time.Duration, closeSink func(context.Context) error) error {
	work, abandon := context.WithCancelCause(ctx)
	var workers sync.WaitGroup
	deadline := time.Time{} // of Close; zero until Stop
	crashed := true         // until the loop ends without a panic
	defer func() {
		abandon(errLeft)
		close(d.jobs)
		if crashed {
			return
		}
		if deadline.IsZero() {
			deadline = time.Now().Add(closeTimeout)
		}
		cctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
		defer cancel()
		wait(cctx, &workers)
		if err := closeSink(cctx); err != nil {
			slog.Warn("close the sink", "err", err)
		}
	}()
	if err := d.s.Opened(SinkOpened{}); err != nil {
		crashed = false
		return err
	}
	for range d.width {
		workers.Go(func() { d.work(work) })
	}
	err := d.loop(ctx, drain, &deadline)
	crashed = false
	return err
}

// loop hands out work until Stop has come and all is done, or the drain time-out is over. It sets the deadline of Close.
func (d *dispatcher) loop(ctx context.Context, drain time.Duration, deadline *time.Time) error {
	requests := d.s.Requests()
	var drained <-chan time.Time
	for deadline.IsZero() || len(d.backlog) > 0 || d.busy > 0 {
		var jobs chan []*Item
		var job []*Item
		if len(d.backlog) > 0 {
			jobs, job = d.jobs, d.backlog[:min(d.most, len(d.backlog)):min(d.most, len(d.backlog))]
		}
		select {
		case jobs <- job:
			d.busy++
			d.backlog = d.backlog[len(job):]
		case r := <-d.done:
			d.busy--
			d.ended(r)
		case r, ok := <-requests:
			switch r := r.(type) {
			case *Events:
				if err := d.arrived(r); err != nil {
					d.s.cancel(err)
					return err
				}
			case Stop:
				var stop time.Time
				stop, *deadline = drainDeadlines(time.Now(), drain)
				t := time.NewTimer(time.Until(stop))
				defer t.Stop()
				drained = t.C
			}
			if !ok {
				requests = nil
			}
		case <-drained:
			return nil // what is left has no outcome: the host repeats it
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// drainDeadlines says until when work may go on after Stop, and until when Close may take. What is left of the drain
// time-out is for Stopped to reach the host.
func drainDeadlines(now time.Time, drain time.Duration) (work, closing time.Time) {
	closing = now.Add(drain - min(drain/10, time.Second))
	return closing.Add(-min(drain/5, closeTimeout)), closing
}

// wait waits for the workers, but not for ever: a Write that ignores its context does not keep Stopped from the host.
func wait(ctx context.Context, workers *sync.WaitGroup) {
	gone := make(chan struct{})
	go func() {
		workers.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-ctx.Done():
		slog.Warn("a write goes on after its context has ended")
	}
}

func (d *dispatcher) arrived(e *Events) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range e.Items {
		it := &e.Items[i]
		if len(it.Key) > 0 {
			if _, twice := d.keys[string(it.Key)]; twice {
				return hostBug("number %d has the key of an event that has not ended, at a sink that does not keep order", it.Seq)
			}
			d.keys[string(it.Key)] = struct{}{}
		}
		d.backlog = append(d.backlog, it)
	}
	return nil
}

func (d *dispatcher) ended(r result) {
	if r.panic != nil {
		panic(r.panic)
	}
	if len(r.rest) > 0 {
		d.backlog = append(append(make([]*Item, 0, len(r.rest)+len(d.backlog)), r.rest...), d.backlog...)
	}
}

// work does jobs until there are no more.
func (d *dispatcher) work(ctx context.Context) {
	var seqs []uint64
	for job := range d.jobs {
		var r result
		r.panic = guard(func() {
			accepted, err := d.do(ctx, job)
			switch {
			case accepted < 0 || accepted > len(job):
				d.s.cancel(pluginBug("WriteBatch: accepted %d of %d events", accepted, len(job)))
				return
			case accepted < len(job) && err == nil:
				d.s.cancel(pluginBug("WriteBatch: accepted %d of %d events, without an error", accepted, len(job)))
				return
			}
			failed := accepted < len(job) && ctx.Err() == nil // else an unknown outcome: the host repeats it
			ended := job[:accepted]
			if failed {
				ended = job[:accepted+1]
			}
			seqs = d.forget(seqs[:0], ended)
			d.s.Ack(seqs[:accepted]...)
			if failed {
				d.s.Fail(job[accepted], err)
				r.rest = append([]*Item(nil), job[accepted+1:]...)
			}
			clear(job) // the backlog's array is not to keep it alive
		})
		select {
		case d.done <- r:
		case <-ctx.Done():
			if r.panic != nil {
				slog.Error("panic in a write after the sink has ended", "panic", r.panic.Error())
			}
		}
	}
}

// forget takes the keys of events that are about to end, before the host can hear of it and send the next of a key. It
// returns their numbers.
func (d *dispatcher) forget(seqs []uint64, ended []*Item) []uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, it := range ended {
		delete(d.keys, string(it.Key))
		seqs = append(seqs, it.Seq)
	}
	return seqs
}
