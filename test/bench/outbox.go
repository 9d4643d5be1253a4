package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// outboxDDL is the table that the documentation recommends, with an order column.
const outboxDDL = `
	create table outbox(
		id uuid primary key, aggregate_type text, aggregate_id bigint, type text not null, payload jsonb, headers jsonb,
		created_at timestamptz not null default now(), seq bigint generated always as identity (cache 1));
	create unique index on outbox(seq)`

// columns are those that the relay reads.
const columns = "id, aggregate_id, aggregate_type, type, payload, headers, created_at, seq"

// batchRows is the relay's default.
const batchRows = 1000

func (b *bench) createOutbox(ctx context.Context) error {
	_, err := b.admin.Exec(ctx, outboxDDL)
	return err
}

// fill makes the outbox new: n rows, vacuumed, in the cache as far as it fits, with a checkpoint behind them.
func (b *bench) fill(ctx context.Context, n int) error {
	if _, err := b.admin.Exec(ctx, "truncate outbox restart identity"); err != nil {
		return err
	}
	// jsonb writes {"n": 1, "text": "…"}; what is not text takes about 30 bytes.
	_, err := b.admin.Exec(ctx, `
		insert into outbox(id, aggregate_type, aggregate_id, type, payload)
		select gen_random_uuid(), 'order', i % $2::int, 'placed',
			jsonb_build_object('n', i, 'text', left(repeat(md5(i::text), $3::int / 32 + 1), $3::int - 30))
		from generate_series(1, $1::int) i order by i`, n, b.sizes.keys, b.sizes.payload)
	if err != nil {
		return fmt.Errorf("fill the outbox: %w", err)
	}
	for _, sql := range []string{"vacuum (analyze, freeze) outbox", "checkpoint", "select count(payload) from outbox"} {
		if _, err := b.admin.Exec(ctx, sql); err != nil {
			return fmt.Errorf("prepare the outbox: %w", err)
		}
	}
	return nil
}

// gone is when the row with a number is deleted, give or take a millisecond.
func (b *bench) gone(ctx context.Context, seq int) (time.Time, error) {
	err := until(ctx, fmt.Sprintf("row %d is deleted", seq), time.Millisecond, func(ctx context.Context) (bool, error) {
		var there bool
		err := b.admin.QueryRow(ctx, "select exists(select from outbox where seq = $1)", seq).Scan(&there)
		return !there, err
	})
	return time.Now(), err
}

// drained is the rate at which n rows go, the first tenth left out, and their processor time per event from then on, by
// the order of groups, each of which is asked for its processes at both ends.
func (b *bench) drained(ctx context.Context, n int, groups ...func() []int) (perSecond float64, cpu []float64, err error) {
	from, err := b.gone(ctx, warm(n))
	if err != nil {
		return 0, nil, err
	}
	before := make([]usage, len(groups))
	for i, g := range groups {
		before[i] = used(g()...)
	}
	to, err := b.gone(ctx, n)
	if err != nil {
		return 0, nil, err
	}
	for i, g := range groups {
		cpu = append(cpu, used(g()...).since(before[i], n-warm(n)))
	}
	return per(n-warm(n), from, to), cpu, nil
}

// relaySettings are those of the relay's sessions that bear on speed.
var relaySettings = []string{
	"set synchronous_commit = local", "set plan_cache_mode = force_custom_plan", "set jit = off", "set enable_seqscan = off",
	"set enable_bitmapscan = off", "set enable_hashjoin = off", "set enable_mergejoin = off",
}

// bareLoop is the limit of any poller: read a thousand rows in order, delete them by id, again, on one session with the
// relay's settings. It keeps no order of keys, has no window and sends nothing to anybody.
func (b *bench) bareLoop(ctx context.Context, n int) (perSecond, cpu float64, err error) {
	if n < 2*batchRows {
		panic("BUG: the first batch is warm-up, and nothing would be left to measure")
	}
	if err := b.fill(ctx, n); err != nil {
		return 0, 0, err
	}
	c, err := b.relaySession(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer c.Close(context.WithoutCancel(ctx))
	var from time.Time
	var before usage
	done := 0
	for done < n {
		ids, err := bareRead(ctx, c)
		if err != nil {
			return 0, 0, err
		}
		tag, err := c.Exec(ctx, "delete from outbox where id = any($1::uuid[])", ids)
		if err != nil {
			return 0, 0, err
		}
		if done += int(tag.RowsAffected()); len(ids) == 0 || tag.RowsAffected() != int64(len(ids)) {
			return 0, 0, fmt.Errorf("read %d rows and deleted %d", len(ids), tag.RowsAffected())
		}
		if from.IsZero() && done >= warm(n) {
			from, before = time.Now(), used(family(b.pg.PID())...)
			n, done = n-done, 0
		}
	}
	to := time.Now()
	return per(n, from, to), used(family(b.pg.PID())...).since(before, n), nil
}

// bareRead reads rows in order and looks at each value.
func bareRead(ctx context.Context, c *pgx.Conn) (ids [][16]byte, err error) {
	rows, err := c.Query(ctx, "select "+columns+" from outbox order by seq limit $1",
		pgx.QueryResultFormats{1, 1, 0, 0, 0, 0, 1, 1}, batchRows)
	if err != nil {
		return nil, err
	}
	ids = make([][16]byte, 0, batchRows)
	for rows.Next() {
		ids = append(ids, [16]byte(rows.RawValues()[0]))
	}
	return ids, rows.Err()
}
