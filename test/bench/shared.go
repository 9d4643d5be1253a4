package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"
)

// measureShared: what does it cost, or bring, that several relays share one outbox? A whole backlog is committed at once
// beside sources that are at work; what counts is the time until it is gone. The limit is one source that leads.
func measureShared(ctx context.Context, b *bench, r *Result) error {
	limit := func(ctx context.Context) (float64, error) { return deletingBox(b).shared(ctx, 1) }
	two := func(ctx context.Context) (float64, error) { return deletingBox(b).shared(ctx, 2) }
	three := func(ctx context.Context) (float64, error) { return deletingBox(b).shared(ctx, 3) }
	return b.compare(ctx, r, limit, rate{"2 relays", 1, two}, rate{"3 relays", 1, three})
}

// shared is the rate at which relays empty the outbox together.
func (x *box) shared(ctx context.Context, relays int) (perSecond float64, err error) {
	b, n := x.b, x.b.sizes.drainRows
	if err := x.fill(ctx, 0); err != nil {
		return 0, err
	}
	config := maps.Clone(x.config)
	if relays > 1 {
		config["sharing"] = "buckets"
	}
	var all []*alone
	defer func() {
		for _, s := range all {
			err = errors.Join(err, s.fault())
			s.stop()
		}
	}()
	for range relays {
		s, err := b.startSource(ctx, config)
		if err != nil {
			return 0, err
		}
		all = append(all, s)
	}
	if err := x.settled(ctx, relays); err != nil {
		return 0, err
	}
	if err := x.insert(ctx, n); err != nil {
		return 0, err
	}
	from := time.Now()
	err = until(ctx, "the outbox is empty", time.Millisecond, func(ctx context.Context) (bool, error) {
		var left bool
		err := b.admin.QueryRow(ctx, "select exists(select from "+x.table+" where "+x.pending+")").Scan(&left)
		return !left, err
	})
	return per(n, from, time.Now()), err
}

// settled waits until the relays have their locks: one for each that leads, and all buckets in fair shares.
func (x *box) settled(ctx context.Context, relays int) error {
	return until(ctx, fmt.Sprintf("%d relays have their shares", relays), 10*time.Millisecond, func(ctx context.Context) (bool, error) {
		var owners, least, most int
		err := x.b.admin.QueryRow(ctx, `
			select count(*), coalesce(min(n), 0), coalesce(max(n), 0)
			from (select count(*) n from pg_locks where locktype = 'advisory' and mode = 'ExclusiveLock' and granted group by pid) o`).
			Scan(&owners, &least, &most)
		return owners == relays && most-least <= 1, err
	})
}
