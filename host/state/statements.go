package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// statements are prepared once, on the one connection.
type statements struct {
	begin, commit, rollback *sql.Stmt

	position, storePosition *sql.Stmt

	discards, storeDiscard, seenDiscard, forgetDiscard, expireDiscards *sql.Stmt
}

func (s *statements) prepare(ctx context.Context, conn *sql.Conn) error {
	for _, p := range []struct {
		stmt **sql.Stmt
		text string
	}{
		{&s.begin, `BEGIN IMMEDIATE`},
		{&s.commit, `COMMIT`},
		{&s.rollback, `ROLLBACK`},
		{&s.position, `SELECT value, owner_epoch, updated_at FROM position WHERE pipeline = ? AND source = ?`},
		{&s.storePosition, `
			INSERT INTO position (pipeline, source, value, owner_epoch, updated_at) VALUES (?, ?, ?, 0, ?)
			ON CONFLICT DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at`},
		{&s.discards, `SELECT sink, event_id FROM discard WHERE pipeline = ? ORDER BY sink, event_id`},
		{&s.storeDiscard, `
			INSERT INTO discard (pipeline, sink, event_id, position, at) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET position = excluded.position, at = excluded.at`},
		{&s.seenDiscard, `UPDATE discard SET at = ? WHERE pipeline = ? AND sink = ? AND event_id = ?`},
		{&s.forgetDiscard, `DELETE FROM discard WHERE pipeline = ? AND sink = ? AND event_id = ?`},
		{&s.expireDiscards, `DELETE FROM discard WHERE pipeline = ? AND at < ?`},
	} {
		var err error
		if *p.stmt, err = conn.PrepareContext(ctx, p.text); err != nil {
			return fmt.Errorf("prepare %q: %w", p.text, err)
		}
	}
	return nil
}

func (s *statements) close() error {
	var errs []error
	for _, stmt := range []*sql.Stmt{
		s.begin, s.commit, s.rollback,
		s.position, s.storePosition,
		s.discards, s.storeDiscard, s.seenDiscard, s.forgetDiscard, s.expireDiscards,
	} {
		if stmt != nil {
			errs = append(errs, stmt.Close())
		}
	}
	return errors.Join(errs...)
}
