package state

import (
	"context"
	"fmt"
	"slices"
)

// write is one caller's part of a commit.
type write struct {
	apply func(context.Context) error // executes the statements, inside the transaction
	done  chan struct{}               // closed when err is final
	err   error
}

// commit runs apply in a transaction and returns when that is on disk. Who comes while another commit is at the disk
// waits, and the first of those to get its turn takes the others along: one fsync for all of them. Order of arrival is
// kept, so that of two positions of one pipeline the later stays.
func (d *DB) commit(ctx context.Context, apply func(context.Context) error) error {
	w := &write{apply: apply, done: make(chan struct{})}
	d.mu.Lock()
	d.pending = append(d.pending, w)
	d.mu.Unlock()

	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
		d.commitPending(context.WithoutCancel(ctx))
	case <-w.done:
	case <-ctx.Done():
		if d.withdraw(w) {
			return context.Cause(ctx)
		}
	}
	// Another caller's commit has w, or had it. It is waited for: apply reads memory of our caller.
	<-w.done
	return w.err
}

// withdraw reports whether it took w out before a commit had it.
func (d *DB) withdraw(w *write) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.Index(d.pending, w)
	if i < 0 {
		return false
	}
	d.pending = slices.Delete(d.pending, i, i+1)
	return true
}

// commitPending commits what is waiting, which may be nothing. The caller has the turn.
func (d *DB) commitPending(ctx context.Context) {
	d.mu.Lock()
	batch := d.pending
	d.pending = nil
	d.mu.Unlock()
	if len(batch) == 0 {
		return
	}

	err := d.transact(ctx, batch)
	for _, w := range batch {
		w.err = err
		if err != nil && len(batch) > 1 {
			// I10: what one pipeline cannot store is not the others' fault.
			w.err = d.transact(ctx, []*write{w})
		}
		close(w.done)
	}
}

// transact applies the writes in one transaction. The caller has the turn.
func (d *DB) transact(ctx context.Context, batch []*write) error {
	if d.closed {
		return ErrClosed
	}
	if _, err := d.stmts.begin.ExecContext(ctx); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	for _, w := range batch {
		if err := w.apply(ctx); err != nil {
			d.rollback(ctx)
			return err
		}
	}
	if _, err := d.stmts.commit.ExecContext(ctx); err != nil {
		d.rollback(ctx)
		return fmt.Errorf("commit: %w", err)
	}
	d.commits++
	return nil
}

// rollback ends a transaction that failed. Its error says only that SQLite has done so already, as it does when the
// disk is full; were the transaction still open, the next BEGIN would say it.
func (d *DB) rollback(ctx context.Context) {
	_, _ = d.stmts.rollback.ExecContext(ctx)
}

// read runs f when no transaction is open: inside one it would see what is not on disk yet.
func (d *DB) read(ctx context.Context, f func(context.Context) error) error {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if d.closed {
		return ErrClosed
	}
	return f(context.WithoutCancel(ctx))
}
