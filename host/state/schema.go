package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// applicationID marks the file as ours ("Rlvo"), so that a wrong path does not put our tables into the database of
// another program.
const applicationID = 0x526c766f

// migrations[n] takes the schema from version n to n+1. A released one is never changed.
var migrations = []string{
	`
	CREATE TABLE meta (
		schema_version INTEGER NOT NULL,
		host_id        TEXT NOT NULL
	) STRICT;

	CREATE TABLE position (
		pipeline    TEXT NOT NULL,
		source      TEXT NOT NULL,    -- the plugin's name: another plugin cannot read its positions
		value       BLOB NOT NULL,    -- opaque
		owner_epoch INTEGER NOT NULL, -- 0 until several hosts share state
		updated_at  INTEGER NOT NULL, -- µs since 1970
		PRIMARY KEY (pipeline, source)
	) STRICT, WITHOUT ROWID;

	CREATE TABLE discard (
		pipeline TEXT NOT NULL,
		sink     TEXT NOT NULL,
		event_id TEXT NOT NULL,
		position BLOB,             -- the source's newest when it was made; NULL: it has none
		at       INTEGER NOT NULL, -- µs since 1970, when last seen
		PRIMARY KEY (pipeline, sink, event_id)
	) STRICT, WITHOUT ROWID;

	INSERT INTO meta VALUES (0, lower(hex(randomblob(16))));
	`,
}

// migrate brings the schema to the newest version, each step in a transaction of its own. It writes even when there is
// nothing to do, which is how a disk that takes no writes is noticed at the start.
func migrate(ctx context.Context, conn *sql.Conn, steps []string) error {
	version, err := schemaVersion(ctx, conn)
	if err != nil {
		return err
	}
	if version > len(steps) {
		return fmt.Errorf("schema version %d is newer than this relevo knows (%d): start the newer relevo again, "+
			"or set state to another file", version, len(steps))
	}
	for ; version < len(steps); version++ {
		script := fmt.Sprintf("BEGIN EXCLUSIVE; %s; PRAGMA application_id = %d; UPDATE meta SET schema_version = %d; COMMIT",
			steps[version], applicationID, version+1)
		if _, err := conn.ExecContext(ctx, script); err != nil {
			return fmt.Errorf("migrate schema to version %d: %w", version+1, err)
		}
	}
	if _, err := conn.ExecContext(ctx, "UPDATE meta SET schema_version = ?", version); err != nil {
		return fmt.Errorf("try a write: %w", err)
	}
	return nil
}

// schemaVersion returns 0 for a new file.
func schemaVersion(ctx context.Context, conn *sql.Conn) (int, error) {
	var id, tables int
	if err := conn.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err != nil {
		return 0, fmt.Errorf("read application id: %w", err)
	}
	if err := conn.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
		return 0, fmt.Errorf("read schema: %w", err)
	}
	if tables == 0 {
		return 0, nil
	}
	if id != applicationID {
		return 0, errors.New("the file is the SQLite database of another program: set state to a file of relevo's own")
	}
	var version int
	if err := conn.QueryRowContext(ctx, "SELECT schema_version FROM meta").Scan(&version); err != nil {
		return 0, fmt.Errorf("read schema version: %w", err)
	}
	return version, nil
}
