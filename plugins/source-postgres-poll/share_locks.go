package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/relevo-io/relevo/internal/outbox"
)

// shareKeys are the advisory locks of relays that share a table.
//
// presence is the leader's key, taken shared: a leader excludes all who share and they exclude it, and its holders are the
// list of who shares. variant is held shared beside it by those that agree on which row is whose. Each bucket is exclusive.
type shareKeys struct {
	presence, variant int64
	bucket            [outbox.Buckets]int64
	numbers           map[int64]int // of bucket
}

// newShareKeys: the keys are never to change, for the reason that lockKey gives.
func newShareKeys(table uint32, variant string) shareKeys {
	sum := sha256.Sum256(fmt.Appendf(nil, "relevo/1/%d/variant/%s", table, variant))
	k := shareKeys{presence: lockKey(table, 0), variant: int64(binary.BigEndian.Uint64(sum[:8])), numbers: map[int64]int{}}
	for b := range k.bucket {
		k.bucket[b] = lockKey(table, b+1)
		k.numbers[k.bucket[b]] = b
	}
	return k
}

// of are the keys of buckets.
func (k *shareKeys) of(s buckets) []int64 {
	keys := make([]int64, 0, s.count())
	for b := range s.each {
		keys = append(keys, k.bucket[b])
	}
	return keys
}

// stranger names a relay that shares the outbox and decides otherwise than we do which row is whose; "": there is none.
// Asked once we have entered, so that of two that enter at the same time at least one sees the other.
func (s *session) stranger(ctx context.Context, k shareKeys) (who string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	rows, err := s.conn.Query(ctx, `
		SELECT format('%s from %s, pid %s', coalesce(nullif(a.application_name, ''), 'a session'), coalesce(host(a.client_addr), 'a local socket'), l.pid)
		FROM (`+advisoryLocks+`) l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
		GROUP BY l.pid, a.application_name, a.client_addr HAVING bool_or(l.key = $2) AND NOT bool_or(l.key = $3)
		ORDER BY l.pid LIMIT 1`, []int64{k.presence, k.variant}, k.presence, k.variant)
	if err != nil {
		return "", err
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(found) == 0 {
		return "", err
	}
	return found[0], nil
}

// advisoryLocks are the granted ones of this database whose keys are in $1.
const advisoryLocks = `SELECT pid, key FROM (
	SELECT pid, (classid::int8 << 32) | objid::int8 AS key FROM pg_catalog.pg_locks
	WHERE locktype = 'advisory' AND granted AND objsubid = 1
	  AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())) AS locks
	WHERE key = ANY($1::int8[])`

// outlook looks at the locks, all at one moment.
func (s *session) outlook(ctx context.Context, k shareKeys) (*outlook, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	rows, err := s.conn.Query(ctx, advisoryLocks+` ORDER BY pid`, append(k.of(allBuckets), k.variant, k.presence))
	if err != nil {
		return nil, fmt.Errorf("look at who shares the outbox: %w", err)
	}
	o := &outlook{me: s.backend}
	here, alike := false, map[int32]bool{}
	var present []int32
	var pid int32
	var key int64
	_, err = pgx.ForEachRow(rows, []any{&pid, &key}, func() error {
		switch key {
		case k.presence:
			present = append(present, pid)
		case k.variant:
			alike[pid] = true
		default:
			o.owner[k.numbers[key]] = pid
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look at who shares the outbox: %w", err)
	}
	for _, pid := range present {
		if alike[pid] { // others give up by themselves
			o.relays = append(o.relays, pid)
			here = here || pid == s.backend
		}
	}
	if !here {
		return nil, errPooled // the locks of our session are not in our session
	}
	return o, nil
}

// tryBuckets locks those of the buckets that are free. What it locks may be read by a later statement only, see tryLock.
func (s *session) tryBuckets(ctx context.Context, k shareKeys, want buckets) (got buckets, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	rows, err := s.conn.Query(ctx, `SELECT key, pg_try_advisory_lock(key) FROM unnest($1::int8[]) AS key`, k.of(want))
	if err != nil {
		return 0, fmt.Errorf("take buckets: %w", err)
	}
	var key int64
	var ok bool
	_, err = pgx.ForEachRow(rows, []any{&key, &ok}, func() error {
		if ok {
			got |= 1 << k.numbers[key]
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("take buckets: %w", err)
	}
	return got, nil
}

func (s *session) unlockBuckets(ctx context.Context, k shareKeys, set buckets) error {
	return s.unlockAll(ctx, "pg_advisory_unlock", k.of(set))
}

func (s *session) unlockShared(ctx context.Context, keys ...int64) error {
	return s.unlockAll(ctx, "pg_advisory_unlock_shared", keys)
}
