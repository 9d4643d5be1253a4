package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/relevo-io/relevo/sdk"
)

// keptLockWait is how long another relay's session may still be there: that of a host which has vanished ends after 8 s.
const keptLockWait = 15 * time.Second

// lockKept takes the lock that relays of every kind take. It does not stand by for ever: another host has a position of
// its own, and what that one has published would all be published again by this one.
func (k *kept) lockKept(ctx context.Context, s *session, key int64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, k.lockWait, errInUse)
	defer cancel()
	err := k.standBy(ctx, s, key)
	if !errors.Is(err, errInUse) {
		return err
	}
	who, e := lockHolder(context.WithoutCancel(ctx), s.conn, key)
	if e != nil {
		return lost(e, "connection_lost")
	}
	return sdk.Config(fmt.Errorf("%w: %s", errInUse, who)).WithCode("outbox_in_use").
		WithHint("with after_publish: keep one relay reads a table, because the position is in one host's state: stop the other one; it is tried again")
}

var errInUse = errors.New("another relay reads this outbox")

// lockHolder says who has an advisory lock.
func lockHolder(ctx context.Context, conn *pgx.Conn, key int64) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var who string
	err := conn.QueryRow(ctx, `
		SELECT concat_ws(', ', nullif(a.application_name, ''), 'from ' || coalesce(host(a.client_addr), 'a local socket'), 'pid ' || l.pid)
		FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
		WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.classid = $1::int8::oid AND l.objid = $2::int8::oid
		  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())`,
		int64(uint64(key)>>32), int64(uint64(key)&math.MaxUint32)).Scan(&who)
	if errors.Is(err, pgx.ErrNoRows) {
		return "it has just ended", nil
	}
	if err != nil {
		return "", fmt.Errorf("look who reads the outbox: %w", err)
	}
	return who, nil
}
