package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/relevo-io/relevo/internal/failpoint"
	"github.com/relevo-io/relevo/internal/outbox"
)

// deleter takes rows away that were acked. While one delete runs acks collect, and the next delete takes all of them.
type deleter struct {
	e     *engine
	s     *session
	q     *queries
	log   *slog.Logger
	limit int // rows of one statement

	refs   []ref
	arrays [][]byte
}

// run deletes until reading has stopped and everything that was acked before is gone. After the stop it has drain.
func (d *deleter) run(ctx context.Context, drain time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopping := d.e.stopping
	for {
		d.refs = d.e.takeAcked(d.refs)
		for rest := d.refs; len(rest) > 0; {
			n := min(len(rest), d.limit)
			if err := d.delete(ctx, rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
		if len(d.refs) > 0 {
			continue
		}
		if stopping == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.e.wakeDel:
		case <-stopping: // no ack comes any more: one more look, and the end
			stopping = nil
			t := time.AfterFunc(drain, func() { cancel(context.DeadlineExceeded) })
			defer t.Stop()
		}
	}
}

func (e *engine) takeAcked(buf []ref) []ref {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.flight.takeAcked(buf)
}

// delete deletes rows and takes them out of the window. It tries again where somebody else was in the way.
func (d *deleter) delete(ctx context.Context, refs []ref) error {
	f := d.begin(refs)
	if len(d.arrays) > 0 && len(d.arrays[0]) > 2 {
		wait := backoff.NewExponentialBackOff()
		wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, time.Second
		for {
			failpoint.Hit(failpoint.BeforeDelete)
			rows, xid, err := d.s.delete(ctx, d.q.delete(d.arrays))
			if err == nil {
				failpoint.Hit(failpoint.AfterDelete)
				d.committed(f, xid, len(refs), int(rows))
				break
			}
			if !again(err) {
				return lost(fmt.Errorf("delete published rows: %w", err), "connection_lost")
			}
			d.log.Warn("delete did not get through, trying again", "err", err)
			d.e.trouble("deleting published rows: " + err.Error())
			if err := pause(ctx, wait.NextBackOff()); err != nil {
				return err
			}
		}
		d.e.trouble("")
	}
	d.e.mu.Lock()
	d.e.flight.ended(refs)
	d.e.mu.Unlock()
	wake(d.e.wakeRead)
	return nil
}

// begin collects what identifies the rows, and returns the F of this delete (see bound): the highest number of the
// reads that have ended before it began.
func (d *deleter) begin(refs []ref) int64 {
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	d.arrays = d.q.arrays(d.arrays)
	for _, r := range refs {
		if r.s.rows[r.i].noID {
			continue // nothing to delete it by; left out of later reads instead
		}
		for k := range d.arrays {
			d.arrays[k] = outbox.AppendArray(d.arrays[k], d.e.flight.value(r.s, r.i, k))
		}
	}
	for k := range d.arrays {
		d.arrays[k] = append(d.arrays[k], '}')
	}
	return d.e.bound.high
}

func (d *deleter) committed(f int64, xid uint64, want, got int) {
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	d.e.bound.deleted(f, xid)
	d.e.deleted += uint64(got)
	d.e.missing += uint64(max(0, want-got))
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
