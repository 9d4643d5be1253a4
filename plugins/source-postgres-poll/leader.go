package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"
)

// standbyPoll is how often a standby asks for the lock. It asks rather than waits in pg_advisory_lock: a statement that
// waits for hours holds a snapshot for hours, and with it the vacuuming of the whole database; and lock_timeout and
// statement_timeout would have to go. Four tiny statements a second cost less, and a leader that ends is followed after
// a quarter of a second at most.
const standbyPoll = 250 * time.Millisecond

// lockKey is the key of the advisory lock: who holds it may read this bucket of this table. It is never to change, or a
// new version and an old one would both lead.
func lockKey(table uint32, bucket int) int64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "relevo/1/%d/%d", table, bucket))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// tryLock asks for the lock once. What is read afterwards must be a statement of its own: this one's snapshot is older
// than the lock, and shows rows that the last leader has deleted.
func (s *session) tryLock(ctx context.Context, key int64) (ok bool, err error) {
	return s.try(ctx, "pg_try_advisory_lock", key)
}

// tryLockShared asks for it beside others that have it shared.
func (s *session) tryLockShared(ctx context.Context, key int64) (ok bool, err error) {
	return s.try(ctx, "pg_try_advisory_lock_shared", key)
}

func (s *session) try(ctx context.Context, function string, key int64) (ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var pid int32
	err = s.conn.QueryRow(ctx, `SELECT `+function+`($1), pg_backend_pid()`, key).Scan(&ok, &pid)
	if err == nil && pid != s.backend {
		err = errPooled
	}
	return ok, err
}

// unlock gives the lock back. That it was not ours means that the session was not one.
func (s *session) unlock(ctx context.Context, key int64) error {
	return s.unlockAll(ctx, "pg_advisory_unlock", []int64{key})
}

func (s *session) unlockAll(ctx context.Context, function string, keys []int64) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var all bool
	err := s.conn.QueryRow(ctx, `SELECT coalesce(bool_and(`+function+`(key)), true) FROM unnest($1::int8[]) AS key`, keys).Scan(&all)
	if err != nil {
		return fmt.Errorf("give the lock back: %w", err)
	}
	if !all {
		return errUnlockedElsewhere
	}
	return nil
}

// probePooler looks for a transaction pooler between us and the server. Comparing backend pids is not enough while
// nothing else happens: an idle pooler gives the same process each time. So the other session keeps one in a
// transaction: if that is the very process that serves the first session, or the first one is served by another now,
// there are no sessions. Nothing is set in them yet, also not the search path.
func probePooler(ctx context.Context, a, b *session) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	tx, err := b.conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("look for a pooler: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	var other, own int32
	if err := tx.QueryRow(ctx, `SELECT pg_catalog.pg_backend_pid()`).Scan(&other); err != nil {
		return fmt.Errorf("look for a pooler: %w", err)
	}
	if err := a.conn.QueryRow(ctx, `SELECT pg_catalog.pg_backend_pid()`).Scan(&own); err != nil {
		return fmt.Errorf("look for a pooler: %w", err)
	}
	if own != a.backend || other == a.backend || other != b.backend {
		return errPooled
	}
	return nil
}
