package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// counts is how far everybody is, from their own tables.
type counts struct {
	committed  int // events of committed transactions
	rolledBack int
	waiting    int // rows in the outbox
	consumers  map[string]inbox
}

// inbox is what one consumer has handled.
type inbox struct {
	handled    int
	duplicates int // came again, and were dropped
}

// delivered is the least that any consumer has handled.
func (c counts) delivered() int {
	least := c.committed
	for _, in := range c.consumers {
		least = min(least, in.handled)
	}
	return least
}

// tables reads the tables of the service and of the consumers, a connection each.
type tables struct {
	shop      *pgx.Conn
	locker    *pgx.Conn // of shop, for lockOutbox
	consumers map[string]*pgx.Conn
}

func openTables(ctx context.Context, s *system) (*tables, error) {
	t := &tables{consumers: make(map[string]*pgx.Conn)}
	var err error
	if t.shop, err = pgx.Connect(ctx, s.databaseURL("shop")); err != nil {
		return nil, err
	}
	if t.locker, err = pgx.Connect(ctx, s.databaseURL("shop")); err != nil {
		return nil, err
	}
	for _, c := range consumers {
		if t.consumers[c.name], err = pgx.Connect(ctx, s.databaseURL(c.name)); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *tables) close(ctx context.Context) {
	_ = t.shop.Close(ctx)
	_ = t.locker.Close(ctx)
	for _, c := range t.consumers {
		_ = c.Close(ctx)
	}
}

func (t *tables) count(ctx context.Context) (counts, error) {
	c := counts{consumers: make(map[string]inbox)}
	row := t.shop.QueryRow(ctx, `
		select (select coalesce(sum(version), 0) from orders), (select count(*) from rolled_back), (select count(*) from outbox)`)
	if err := row.Scan(&c.committed, &c.rolledBack, &c.waiting); err != nil {
		return c, fmt.Errorf("count in shop: %w", err)
	}
	for name, conn := range t.consumers {
		var in inbox
		row := conn.QueryRow(ctx, "select count(*), coalesce(sum(seen - 1), 0) from inbox")
		if err := row.Scan(&in.handled, &in.duplicates); err != nil {
			return c, fmt.Errorf("count in %s: %w", name, err)
		}
		c.consumers[name] = in
	}
	return c, nil
}

// lockOutbox locks the rows that wait now: they can be read, not deleted. New ones come in as ever.
func (t *tables) lockOutbox(ctx context.Context) (pgx.Tx, error) {
	tx, err := t.locker.Begin(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, "select from outbox for update"); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the outbox: %w", err), tx.Rollback(ctx))
	}
	return tx, nil
}

// endRelaySessions ends what a killed relay left behind in the database: a delete that waits for a lock would still be
// carried out once it has it, since nobody tells a waiting session that its client is gone.
func (t *tables) endRelaySessions(ctx context.Context) error {
	_, err := t.shop.Exec(ctx, "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name like 'relevo/%'")
	if err != nil {
		return fmt.Errorf("end the sessions of the killed relay: %w", err)
	}
	return nil
}

// verdict is what became of the promises, for one consumer.
type verdict struct {
	lost       int // committed, never handled
	invented   int // handled, never committed
	disordered int // handled before an earlier event of the same order
	twice      int // work done more than once, or not at all, for an event that was handled
}

func (v verdict) good() bool { return v == verdict{} }

type change struct {
	order   int64
	version int
}

// verify compares what a consumer has handled with what the service has committed, event by event.
func (t *tables) verify(ctx context.Context, name string) (v verdict, err error) {
	missing := make(map[change]bool)
	rows, err := t.shop.Query(ctx, "select id, generate_series(1, version) from orders")
	if err != nil {
		return v, err
	}
	var c change
	_, err = pgx.ForEachRow(rows, []any{&c.order, &c.version}, func() error {
		missing[c] = true
		return nil
	})
	if err != nil {
		return v, fmt.Errorf("read the orders: %w", err)
	}
	rolledBack, err := column(ctx, t.shop, "select event_id::text from rolled_back")
	if err != nil {
		return v, err
	}

	rows, err = t.consumers[name].Query(ctx, "select event_id::text, order_id, version from inbox order by arrival")
	if err != nil {
		return v, err
	}
	latest := make(map[int64]int)
	var id string
	_, err = pgx.ForEachRow(rows, []any{&id, &c.order, &c.version}, func() error {
		if !missing[c] || rolledBack[id] {
			v.invented++
		}
		delete(missing, c)
		if c.version < latest[c.order] {
			v.disordered++
		}
		latest[c.order] = max(latest[c.order], c.version)
		return nil
	})
	if err != nil {
		return v, fmt.Errorf("read the inbox of %s: %w", name, err)
	}
	v.lost = len(missing)
	row := t.consumers[name].QueryRow(ctx, `
		select count(*) from (select event_id, count(w.event_id) from inbox left join work w using (event_id)
		group by event_id having count(w.event_id) <> 1) wrong`)
	return v, row.Scan(&v.twice)
}

func column(ctx context.Context, c *pgx.Conn, sql string) (map[string]bool, error) {
	rows, err := c.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	set := make(map[string]bool, len(values))
	for _, v := range values {
		set[v] = true
	}
	return set, err
}
