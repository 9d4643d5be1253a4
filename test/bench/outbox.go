package main

import (
	"context"
	"encoding/binary"
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

// markedDDL is the same for rows that are marked, with the index that reading them needs.
const markedDDL = `
	create table marked(like outbox including all, published_at timestamptz);
	create index on marked(seq) where published_at is null`

// box is an outbox, and what happens to its published rows.
type box struct {
	b       *bench
	table   string
	pending string // what is to be published
	remove  string // what the bare loop does with published rows; $1 is their numbers
	config  conf   // what the relay is told beside dsn
}

func deletingBox(b *bench) *box {
	return &box{b: b, table: "outbox", pending: "true", remove: "delete from outbox where seq = any($1::bigint[])", config: conf{}}
}

func markingBox(b *bench) *box {
	const pending = "published_at is null"
	return &box{
		b: b, table: "marked", pending: pending, remove: "update marked set published_at = now() where seq = any($1::bigint[])",
		config: conf{"table": "marked", "pending": pending, "after_publish": conf{"set": conf{"published_at": "now()"}}},
	}
}

// columns are those that the relay reads.
const columns = "id, aggregate_id, aggregate_type, type, payload, headers, created_at, seq"

// batchRows is the relay's default.
const batchRows = 1000

func (b *bench) createOutbox(ctx context.Context) error {
	_, err := b.admin.Exec(ctx, outboxDDL+";"+markedDDL)
	return err
}

// fill makes the outbox new: n rows, vacuumed, in the cache as far as it fits, with a checkpoint behind them.
func (x *box) fill(ctx context.Context, n int) error {
	if err := x.insert(ctx, n); err != nil {
		return err
	}
	for _, sql := range []string{"vacuum (analyze, freeze) " + x.table, "checkpoint", "select count(payload) from " + x.table} {
		if _, err := x.b.admin.Exec(ctx, sql); err != nil {
			return fmt.Errorf("prepare the outbox: %w", err)
		}
	}
	return nil
}

// insert empties the outbox and puts n rows in, in one transaction.
func (x *box) insert(ctx context.Context, n int) error {
	b := x.b
	if _, err := b.admin.Exec(ctx, "truncate "+x.table+" restart identity"); err != nil {
		return err
	}
	// jsonb writes {"n": 1, "text": "…"}; what is not text takes about 30 bytes.
	_, err := b.admin.Exec(ctx, `
		insert into `+x.table+`(id, aggregate_type, aggregate_id, type, payload)
		select gen_random_uuid(), 'order', i % $2::int, 'placed',
			jsonb_build_object('n', i, 'text', left(repeat(md5(i::text), $3::int / 32 + 1), $3::int - 30))
		from generate_series(1, $1::int) i order by i`, n, b.sizes.keys, b.sizes.payload)
	if err != nil {
		return fmt.Errorf("fill the outbox: %w", err)
	}
	return nil
}

// gone is when the row with a number has been published, give or take a millisecond.
func (x *box) gone(ctx context.Context, seq int) (time.Time, error) {
	err := until(ctx, fmt.Sprintf("row %d is gone", seq), time.Millisecond, func(ctx context.Context) (bool, error) {
		var there bool
		err := x.b.admin.QueryRow(ctx, "select exists(select from "+x.table+" where seq = $1 and "+x.pending+")", seq).Scan(&there)
		return !there, err
	})
	return time.Now(), err
}

// drained is the rate at which n rows go, the first tenth left out, and their processor time per event from then on, by
// the order of groups, each of which is asked for its processes at both ends.
func (x *box) drained(ctx context.Context, n int, groups ...func() []int) (perSecond float64, cpu []float64, err error) {
	from, err := x.gone(ctx, warm(n))
	if err != nil {
		return 0, nil, err
	}
	before := make([]usage, len(groups))
	for i, g := range groups {
		before[i] = used(g()...)
	}
	to, err := x.gone(ctx, n)
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

// bareLoop is the limit of any poller: read a thousand rows in order, delete or mark them by number, again, on one session with the
// relay's settings. It keeps no order of keys, has no window and sends nothing to anybody.
func (x *box) bareLoop(ctx context.Context, n int) (perSecond, cpu float64, err error) {
	if n < 2*batchRows {
		panic("BUG: the first batch is warm-up, and nothing would be left to measure")
	}
	b := x.b
	if err := x.fill(ctx, n); err != nil {
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
		numbers, err := x.bareRead(ctx, c)
		if err != nil {
			return 0, 0, err
		}
		tag, err := c.Exec(ctx, x.remove, numbers)
		if err != nil {
			return 0, 0, err
		}
		if done += int(tag.RowsAffected()); len(numbers) == 0 || tag.RowsAffected() != int64(len(numbers)) {
			return 0, 0, fmt.Errorf("read %d rows and removed %d", len(numbers), tag.RowsAffected())
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
func (x *box) bareRead(ctx context.Context, c *pgx.Conn) (numbers []int64, err error) {
	rows, err := c.Query(ctx, "select "+columns+" from "+x.table+" where "+x.pending+" order by seq limit $1",
		pgx.QueryResultFormats{1, 1, 0, 0, 0, 0, 1, 1}, batchRows)
	if err != nil {
		return nil, err
	}
	numbers = make([]int64, 0, batchRows)
	for rows.Next() {
		numbers = append(numbers, int64(binary.BigEndian.Uint64(rows.RawValues()[7])))
	}
	return numbers, rows.Err()
}
