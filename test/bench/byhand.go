package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// byHand is a relay as one would write it for this very table and broker, in one process with no plugins: it reads the next
// rows while it publishes, and deletes behind. It is the limit on a machine whose processors are shared by the database,
// the relay and the broker. It is not a correct relay: its cursor passes rows that commit late, and it ends at the
// first error.
func (b *bench) byHand(ctx context.Context, p publisher) error {
	reading, err := b.relaySession(ctx)
	if err != nil {
		return err
	}
	defer reading.Close(context.WithoutCancel(ctx))
	deleting, err := b.relaySession(ctx)
	if err != nil {
		return err
	}
	defer deleting.Close(context.WithoutCancel(ctx))

	read, published := make(chan []event, 2), make(chan []event, 2) // one is worked on, one waits
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(read)
		return readAhead(ctx, reading, read)
	})
	g.Go(func() error {
		defer close(published)
		var before []event
		for chunk := range read {
			if err := p.publish(ctx, chunk); err != nil {
				return err
			}
			if len(chunk) < batchRows { // the last
				if err := p.finish(ctx); err != nil {
					return err
				}
			}
			// A whole chunk has every key, so by now all of the chunk before it is confirmed.
			if err := hand(ctx, published, before); err != nil {
				return err
			}
			before = chunk
		}
		if err := p.finish(ctx); err != nil {
			return err
		}
		return hand(ctx, published, before)
	})
	g.Go(func() error {
		for chunk := range published {
			if err := deleteEvents(ctx, deleting, chunk); err != nil {
				return err
			}
		}
		return nil
	})
	return g.Wait()
}

// relaySession is a session with the relay's settings.
func (b *bench) relaySession(ctx context.Context) (*pgx.Conn, error) {
	c, err := pgx.Connect(ctx, b.pg.DSN())
	if err != nil {
		return nil, err
	}
	for _, sql := range relaySettings {
		if _, err := c.Exec(ctx, sql); err != nil {
			_ = c.Close(ctx)
			return nil, err
		}
	}
	return c, nil
}

func readAhead(ctx context.Context, c *pgx.Conn, out chan<- []event) error {
	for last := 0; ; last += batchRows { // numbers have no gaps here
		chunk, err := readEvents(c.Query(ctx, "select "+eventColumns+" from outbox where seq > $1 order by seq limit $2", last, batchRows))
		if err != nil {
			return fmt.Errorf("read ahead: %w", err)
		}
		if len(chunk) == 0 {
			return nil
		}
		if err := hand(ctx, out, chunk); err != nil {
			return err
		}
	}
}

func hand(ctx context.Context, to chan<- []event, chunk []event) error {
	select {
	case to <- chunk:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func deleteEvents(ctx context.Context, c *pgx.Conn, chunk []event) error {
	ids := make([]string, len(chunk))
	for i := range chunk {
		ids[i] = chunk[i].ID
	}
	tag, err := c.Exec(ctx, "delete from outbox where id = any($1::uuid[])", ids)
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	if tag.RowsAffected() != int64(len(ids)) {
		return fmt.Errorf("deleted %d rows of %d", tag.RowsAffected(), len(ids))
	}
	return nil
}
