package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// Position is a stored position.
type Position struct {
	Value      []byte
	OwnerEpoch uint64 // of the host that stored it; 0 until several hosts share state
	UpdatedAt  time.Time
}

// Position returns the stored position of a pipeline's source (the plugin name), or nil.
func (d *DB) Position(ctx context.Context, pipeline, source string) (*Position, error) {
	var p Position
	var updated int64
	err := d.read(ctx, func(ctx context.Context) error {
		return d.stmts.position.QueryRowContext(ctx, pipeline, source).Scan(&p.Value, &p.OwnerEpoch, &updated)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read position of pipeline %q: %w", pipeline, explain(err))
	}
	p.UpdatedAt = time.UnixMicro(updated)
	return &p, nil
}

// StorePosition stores the position durably.
//
// I2: it has reached the disk when this returns nil, and only then may the source hear of the ack.
func (d *DB) StorePosition(ctx context.Context, pipeline, source string, value []byte) error {
	err := d.commit(ctx, func(ctx context.Context) error {
		_, err := d.stmts.storePosition.ExecContext(ctx, pipeline, source, blob(value), time.Now().UnixMicro())
		return err
	})
	if err != nil {
		return fmt.Errorf("store position of pipeline %q: %w", pipeline, explain(err))
	}
	return nil
}

// blob keeps an empty value from becoming NULL.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
