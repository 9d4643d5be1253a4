// Package state is the host's memory: positions and discards, in SQLite with synchronous=FULL. What a method has
// returned from without error survives a crash of the machine.
package state

import (
	"context"
	"errors"
	"time"
)

// ErrLocked means that another host has the database open.
var ErrLocked = errors.New("state database is in use by another relevo host")

// DB is the open state database. Its methods may be called from several goroutines.
type DB struct{}

// Open opens or makes the database and locks it exclusively, for the life of the process or until Close. ErrLocked if
// another host has it. A newer schema than this version knows is an error that says so.
func Open(ctx context.Context, path string) (*DB, error) { panic("TODO") }

// Close releases the database.
func (d *DB) Close() error { panic("TODO") }

// HostID is a random id, made once per database.
func (d *DB) HostID() string { panic("TODO") }

// Position is a stored position.
type Position struct {
	Value      []byte
	OwnerEpoch uint64
	UpdatedAt  time.Time
}

// Position returns the stored position of a pipeline's source (the plugin name), or nil.
func (d *DB) Position(ctx context.Context, pipeline, source string) (*Position, error) { panic("TODO") }

// StorePosition stores the position durably.
func (d *DB) StorePosition(ctx context.Context, pipeline, source string, value []byte) error {
	panic("TODO")
}

// Discard is one event that a sink's policy has given up.
type Discard struct {
	Sink    string
	EventID string
}

// StoreDiscard remembers a discard durably. position is the source's newest position read when it was made; nil: none.
func (d *DB) StoreDiscard(ctx context.Context, pipeline string, x Discard, position []byte) error {
	panic("TODO")
}

// Discards returns those of a pipeline.
func (d *DB) Discards(ctx context.Context, pipeline string) ([]Discard, error) { panic("TODO") }

// SeenDiscards renews discards that have come back, so that they are not forgotten. It need not be durable at once.
func (d *DB) SeenDiscards(ctx context.Context, pipeline string, xs []Discard) error { panic("TODO") }

// ForgetDiscards deletes discards: those named (a position has passed them), and those last seen before the time.
func (d *DB) ForgetDiscards(ctx context.Context, pipeline string, xs []Discard, seenBefore time.Time) error {
	panic("TODO")
}
