package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/relevo-io/relevo/internal/failpoint"
	"github.com/relevo-io/relevo/internal/outbox"
)

// remover takes rows that were acked out of what is to be read: it deletes them, or marks them so that pending does not
// hold any more. While one statement runs acks collect, and the next one takes all of them.
type remover struct {
	e     *engine
	s     *session
	q     *queries
	log   *slog.Logger
	what  string // delete or mark, for messages
	limit int    // rows of one statement

	refs   []ref
	arrays [][]byte
	number []byte
}

// run works until reading has stopped and everything that was acked before is gone. After the stop it has drain.
func (d *remover) run(ctx context.Context, drain time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopping := d.e.stopping
	for {
		d.refs = d.e.takeAcked(d.refs)
		for rest := d.refs; len(rest) > 0; {
			n := min(len(rest), d.limit)
			if err := d.remove(ctx, rest[:n]); err != nil {
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
		case <-d.e.wakeRemove:
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

// remove removes rows and takes them out of the window. It tries again where somebody else was in the way.
func (d *remover) remove(ctx context.Context, refs []ref) error {
	f := d.begin(refs)
	if len(d.arrays) > 0 && len(d.arrays[0]) > 2 {
		wait := backoff.NewExponentialBackOff()
		wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, time.Second
		for {
			failpoint.Hit(failpoint.BeforeDelete)
			done, err := d.s.remove(ctx, d.q.remove(d.arrays))
			if err == nil {
				failpoint.Hit(failpoint.AfterDelete)
				d.committed(f, done, len(refs))
				if done.left > 0 {
					return classify(errStillPending)
				}
				break
			}
			if !again(err) {
				return lost(fmt.Errorf("%s published rows: %w", d.what, err), "connection_lost")
			}
			d.log.Warn("published rows could not be removed, trying again", "err", err)
			d.e.trouble(d.what + " published rows: " + err.Error())
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

// begin collects what identifies the rows, and returns the F of this statement (see bound): the highest number of the
// reads that have ended before it began.
func (d *remover) begin(refs []ref) int64 {
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	d.arrays = d.q.arrays(d.arrays)
	byOrder := d.q.l.HandleIsOrder()
	for _, r := range refs {
		if byOrder {
			d.number = strconv.AppendInt(d.number[:0], r.s.rows[r.i].order, 10)
			d.arrays[0] = outbox.AppendArray(d.arrays[0], d.number)
			continue
		}
		if r.s.rows[r.i].noID {
			continue // nothing to name it by; left out of later reads instead
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

func (d *remover) committed(f int64, done removal, want int) {
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	d.e.bound.removed(f, done.xid)
	d.e.removed += uint64(done.rows)
	d.e.missing += uint64(max(0, want-int(done.rows)))
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
