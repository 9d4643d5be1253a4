package state

import (
	"errors"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

var (
	// ErrLocked means that another host has the database open.
	ErrLocked = errors.New("state database is in use by another relevo host")

	// ErrDamaged means that the file is not, or no longer, a database that SQLite can read.
	ErrDamaged = errors.New("state database is damaged: restore it from a backup, or move it and its -wal file away " +
		"and start again; sources then continue from what their database still has, events may come once more, " +
		"and discards are forgotten")

	// ErrClosed means that the method was called after Close.
	ErrClosed = errors.New("state database is closed")
)

// explain puts what a person can do about it before SQLite's words.
func explain(err error) error {
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return err
	}
	switch e.Code() & 0xff { // the low byte is the class, the rest the detail
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return fmt.Errorf("%w (%w)", ErrLocked, err)
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("%w (%w)", ErrDamaged, err)
	case sqlite3.SQLITE_FULL:
		return fmt.Errorf("the disk is full: %w", err)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return fmt.Errorf("the file or its file system is read-only: %w", err)
	case sqlite3.SQLITE_CANTOPEN:
		return fmt.Errorf("the file, or its -wal file beside it, cannot be opened for writing: %w", err)
	case sqlite3.SQLITE_IOERR:
		return fmt.Errorf("the disk, or a limit on file sizes, refuses: %w", err)
	}
	return err
}
