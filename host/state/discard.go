package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// Discard is one event that a sink's policy has given up.
type Discard struct {
	Sink    string
	EventID string
}

// StoreDiscard remembers a discard durably. position is the source's newest position read when it was made; nil: none.
// To store it again renews it.
func (d *DB) StoreDiscard(ctx context.Context, pipeline string, x Discard, position []byte) error {
	err := d.commit(ctx, func(ctx context.Context) error {
		_, err := d.stmts.storeDiscard.ExecContext(ctx, pipeline, x.Sink, x.EventID, position, time.Now().UnixMicro())
		return err
	})
	return discardErr(err, "store discard", pipeline)
}

// Discards returns those of a pipeline.
func (d *DB) Discards(ctx context.Context, pipeline string) ([]Discard, error) {
	var xs []Discard
	err := d.read(ctx, func(ctx context.Context) (err error) {
		rows, err := d.stmts.discards.QueryContext(ctx, pipeline)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for rows.Next() {
			var x Discard
			if err := rows.Scan(&x.Sink, &x.EventID); err != nil {
				return err
			}
			xs = append(xs, x)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, discardErr(err, "read discards", pipeline)
	}
	return xs, nil
}

// SeenDiscards renews discards that have come back, so that they are not forgotten. It need not be durable at once.
// Unknown ones are ignored.
func (d *DB) SeenDiscards(ctx context.Context, pipeline string, xs []Discard) error {
	if len(xs) == 0 {
		return nil
	}
	err := d.commit(ctx, func(ctx context.Context) error {
		return each(ctx, d.stmts.seenDiscard, xs, time.Now().UnixMicro(), pipeline)
	})
	return discardErr(err, "renew discards", pipeline)
}

// ForgetDiscards deletes discards: those named (a position has passed them), and those last seen before the time.
func (d *DB) ForgetDiscards(ctx context.Context, pipeline string, xs []Discard, seenBefore time.Time) error {
	err := d.commit(ctx, func(ctx context.Context) error {
		if err := each(ctx, d.stmts.forgetDiscard, xs, pipeline); err != nil {
			return err
		}
		_, err := d.stmts.expireDiscards.ExecContext(ctx, pipeline, seenBefore.UnixMicro())
		return err
	})
	return discardErr(err, "forget discards", pipeline)
}

// each runs a statement whose last parameters are sink and event id, once for each discard.
func each(ctx context.Context, stmt *sql.Stmt, xs []Discard, before ...any) error {
	for _, x := range xs {
		if _, err := stmt.ExecContext(ctx, append(before[:len(before):len(before)], x.Sink, x.EventID)...); err != nil {
			return err
		}
	}
	return nil
}

func discardErr(err error, doing, pipeline string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s of pipeline %q: %w", doing, pipeline, explain(err))
}
