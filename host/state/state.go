// Package state is the host's memory: positions and discards, in SQLite with synchronous=FULL. What a method has
// returned from without error survives a crash of the machine.
//
// One connection does everything, and it has the file to itself (locking_mode=EXCLUSIVE): the lock is what keeps two
// hosts from moving the same positions. Writes that wait for the disk at the same time share one commit, so that the
// number of pipelines does not multiply the number of fsyncs.
package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
)

// DB is the open state database. Its methods may be called from several goroutines.
//
// A context ends the wait for a turn at the database, never a commit that has begun: half a commit tells the caller
// nothing, and a write that hangs in the disk cannot be called back. After an error a write may or may not have been
// stored; to store it again is safe.
type DB struct {
	path   string
	pool   *sql.DB // only ever has conn
	conn   *sql.Conn
	stmts  statements
	hostID string

	turn    chan struct{} // capacity 1: who has put a token in it has conn, and the fields down to mu
	closed  bool
	commits int // transactions that wrote, for tests

	mu      sync.Mutex
	pending []*write // what the next commit takes, in order of arrival
}

// Open opens or makes the database and locks it exclusively, for the life of the process or until Close. ErrLocked if
// another host has it, ErrDamaged if SQLite cannot read it. A newer schema than this version knows is an error that
// says so. The directory must exist; the file is made with mode 0600.
//
// Nothing else in the process may open the file for as long as it is open here.
func Open(ctx context.Context, path string) (*DB, error) {
	d := &DB{path: path, turn: make(chan struct{}, 1)}
	if err := d.open(ctx); err != nil {
		return nil, fmt.Errorf("open state database %q: %w", path, errors.Join(explain(err), d.release()))
	}
	return d, nil
}

func (d *DB) open(ctx context.Context) error {
	abs, err := filepath.Abs(d.path)
	if err != nil {
		return err
	}
	if err := createFile(abs); err != nil {
		return err
	}
	if err := d.connect(ctx, abs); err != nil {
		return err
	}
	if err := checkIntegrity(ctx, d.conn); err != nil {
		return err
	}
	if err := migrate(ctx, d.conn, migrations); err != nil {
		return err
	}
	if err := d.conn.QueryRowContext(ctx, `SELECT host_id FROM meta`).Scan(&d.hostID); err != nil {
		return fmt.Errorf("read host id: %w", err)
	}
	return d.stmts.prepare(ctx, d.conn)
}

// Close waits for the write under way and releases the database. Closing again does nothing; other calls after it
// return ErrClosed.
func (d *DB) Close() error {
	d.turn <- struct{}{}
	defer func() { <-d.turn }()
	if d.closed {
		return nil
	}
	d.closed = true
	if err := d.release(); err != nil {
		return fmt.Errorf("close state database %q: %w", d.path, err)
	}
	return nil
}

// release gives back what open has taken, however far it came.
func (d *DB) release() error {
	var errs []error
	errs = append(errs, d.stmts.close())
	if d.conn != nil {
		errs = append(errs, d.conn.Close())
	}
	if d.pool != nil {
		errs = append(errs, d.pool.Close())
	}
	return errors.Join(errs...)
}

// HostID is a random id, made once per database.
func (d *DB) HostID() string { return d.hostID }
