package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
)

// pragmas are set in this order and read back, since SQLite answers a setting that it cannot apply with another value
// and no error.
var pragmas = []struct{ name, value, want string }{
	{"busy_timeout", "0", "0"}, // a second host is told at once
	// Before the first look at the file: the WAL index then lives in this process's memory and no -shm file is made.
	{"locking_mode", "EXCLUSIVE", "exclusive"},
	{"journal_mode", "WAL", "wal"},
	// I2: a commit has reached the disk when it returns. FULL syncs the WAL at every commit; NORMAL only at checkpoints.
	{"synchronous", "FULL", "2"},
	// On darwin fsync does not reach the disk; F_FULLFSYNC does. Ignored elsewhere.
	{"fullfsync", "ON", "1"},
	{"checkpoint_fullfsync", "ON", "1"},
	{"trusted_schema", "OFF", "0"},
}

// createFile makes an empty file that only its owner can read; SQLite gives its -wal file the same mode. An existing
// file is left alone, and never opened: with POSIX locks, closing any descriptor of the file gives up every lock that
// this process has on it.
func createFile(path string) error {
	dir := filepath.Dir(path)
	switch st, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("directory %q does not exist: make it, or set state to a file elsewhere", dir)
	case err != nil:
		return err
	case !st.IsDir():
		return fmt.Errorf("%q is not a directory: set state to a file in a directory", dir)
	}
	switch st, err := os.Stat(path); {
	case err == nil && !st.Mode().IsRegular():
		return fmt.Errorf("%q is not a regular file: set state to a file", path)
	case err == nil:
		// SQLite would fall back to reading, and fail on the lock with a message about something else.
		if err := unix.Access(path, unix.R_OK|unix.W_OK); err != nil {
			return fmt.Errorf("the file must be readable and writable for the user that runs relevo: %w", err)
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil // another host was quicker: the lock decides
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), syncDir(dir))
}

// syncDir makes a new directory entry durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// connect opens the one connection, sets it up and takes the lock.
func (d *DB) connect(ctx context.Context, path string) error {
	// An OFD lock belongs to the descriptor and not to the process: no other code's open and close of the file can drop
	// it. Where there are none (darwin), POSIX locks do.
	_, err := sqlite.OFDLocking(true)
	if err != nil && !errors.Is(err, sqlite.ErrOFDLockingUnavailable) && !errors.Is(err, sqlite.ErrOFDLockingTooLate) {
		return err
	}
	// A URI, so that every character of the path is itself. rw, not rwc: the file is there, with our mode.
	dsn := (&url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: "mode=rw"}).String()
	connector, err := sqlite.NewConnector(dsn)
	if err != nil {
		return err
	}
	d.pool = sql.OpenDB(connector)
	d.pool.SetMaxOpenConns(1)
	// Held until Close: the pool would replace a connection that it takes for broken, and let go of the lock meanwhile.
	if d.conn, err = d.pool.Conn(ctx); err != nil {
		return err
	}
	for _, p := range pragmas {
		if _, err := d.conn.ExecContext(ctx, fmt.Sprintf("PRAGMA %s = %s", p.name, p.value)); err != nil {
			return fmt.Errorf("set %s: %w", p.name, err)
		}
		var got string
		if err := d.conn.QueryRowContext(ctx, "PRAGMA "+p.name).Scan(&got); err != nil {
			return fmt.Errorf("read %s: %w", p.name, err)
		}
		if got != p.want {
			return fmt.Errorf("set %s: SQLite has %q instead of %q; is the file system or the file read-only?", p.name, got, p.want)
		}
	}
	return nil
}

// checkIntegrity reads the whole database, which is small, so that damage is reported at the start and not in the
// middle of a night.
func checkIntegrity(ctx context.Context, conn *sql.Conn) error {
	var result string
	if err := conn.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&result); err != nil {
		return fmt.Errorf("check integrity: %w", err)
	}
	if result != "ok" {
		return fmt.Errorf("%w (%s)", ErrDamaged, result)
	}
	return nil
}
