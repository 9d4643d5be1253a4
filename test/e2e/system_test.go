package e2e

import (
	"context"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/natstest"
	"github.com/relevo-io/relevo/internal/pgtest"
)

const (
	// patience is for what takes milliseconds on a quiet machine.
	patience = 60 * time.Second
	// window of every pipeline, unless a test has its reasons.
	window = 500
	stream = "ORDERS"
	// forgetful is how soon the streams forget ids: the least that JetStream takes.
	forgetful = 100 * time.Millisecond
)

var streamConfig = jetstream.StreamConfig{
	Name: stream, Subjects: []string{"orders.>"}, Duplicates: forgetful, AllowAtomicPublish: true,
}

type conf map[string]any

// system is an outbox, a stream, and what a pipeline file says about the way from one to the other.
type system struct {
	t    *testing.T
	dir  string // pipeline files, state, logs; short, for sockets
	db   string // DSN for the service and for looking, never through a proxy
	js   jetstream.JetStream
	pipe conf   // the pipeline file; tests change it before they start a host
	left string // SQL: a row of the outbox is not published
}

// schema is the article's outbox with an order column, a row to lock for each aggregate, and a journal that is written in
// the same transaction: what stands in it is what was committed.
const schema = `
	create table account(id bigint primary key, n bigint not null default 0);
	create table outbox(
		id uuid primary key, aggregate_id bigint, type text not null, payload jsonb,
		created_at timestamptz not null default now(), seq bigint generated always as identity (cache 1));
	create unique index on outbox(seq);
	create table journal(event uuid primary key, key bigint, n bigint);
	create function emit(k bigint, padding int) returns uuid language plpgsql as $$
	declare
		e uuid := gen_random_uuid();
		c bigint;
	begin
		-- The lock, and with it the transaction's id, comes before the number of the row.
		update account set n = n + 1 where id = k returning n into c;
		insert into outbox(id, aggregate_id, type, payload)
			values (e, k, 'moved', jsonb_build_object('key', k, 'n', c, 'padding', repeat('x', padding)));
		insert into journal values (e, k, c);
		return e;
	end $$;`

// parts of a system that a test brings; what it leaves out is made for it alone.
type parts struct {
	db      string // DSN of the database
	relayDB string // DSN as the relay sees it, through a proxy; defaults to db
	nats    string // URL of the server
	relay   string // URL as the relay sees it; defaults to nats
	options []nats.Option
}

// newSystem makes a system with a fresh outbox. Only its hosts are missing.
func newSystem(t *testing.T, p parts) *system {
	t.Helper()
	require.NoError(t, build()) // before anything waits for it
	if p.db == "" {
		p.db = pgtest.DB(t)
	}
	if p.relayDB == "" {
		p.relayDB = p.db
	}
	if p.nats == "" {
		p.nats = natstest.Start(t).URL()
	}
	if p.relay == "" {
		p.relay = p.nats
	}
	s := &system{t: t, left: "true", dir: natstest.Dir(t), db: p.db, js: natstest.JetStream(t, p.nats, p.options...)}
	s.query(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, schema)
		return err
	})
	natstest.Stream(t, s.js, streamConfig)
	s.pipe = conf{
		"version": 1, "name": "orders",
		"source": conf{"plugin": "postgres-poll", "config": conf{"dsn": p.relayDB}},
		"sinks": []conf{{
			"plugin": "nats", "to": "orders.{type}",
			"config": conf{"servers": []string{p.relay}, "stream": stream, "ack_timeout": "2s"},
		}},
		"delivery": conf{"max_in_flight": conf{"events": window}, "drain_timeout": "10s"},
		"errors":   conf{"transient": conf{"initial": "50ms", "max": "1s"}},
	}
	return s
}

func (s *system) source() conf { return s.pipe["source"].(conf) }
func (s *system) sink() conf   { return s.pipe["sinks"].([]conf)[0] }

// marks has published rows marked instead of deleted.
func (s *system) marks() {
	s.t.Helper()
	s.left = "published_at is null"
	s.exec("alter table outbox add published_at timestamptz; create index on outbox(seq) where " + s.left)
	c := s.source()["config"].(conf)
	c["pending"], c["after_publish"] = s.left, conf{"set": conf{"published_at": "now()"}}
}

// write writes a pipeline file and returns its path. JSON is YAML, and needs no quoting by hand.
func (s *system) write(name string, pipe conf) string {
	s.t.Helper()
	b, err := json.MarshalIndent(pipe, "", "  ")
	require.NoError(s.t, err)
	path := filepath.Join(s.dir, name)
	require.NoError(s.t, os.WriteFile(path, b, 0o600))
	return path
}

// query runs f on a connection of its own.
func (s *system) query(f func(context.Context, *pgx.Conn) error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), patience)
	defer cancel()
	c, err := pgx.Connect(ctx, s.db)
	require.NoError(s.t, err)
	defer c.Close(ctx)
	require.NoError(s.t, f(ctx, c))
}

// emit commits one event.
func (s *system) emit(key int64) (id string) {
	s.t.Helper()
	s.query(func(ctx context.Context, c *pgx.Conn) error {
		if _, err := c.Exec(ctx, "insert into account values ($1) on conflict do nothing", key); err != nil {
			return err
		}
		return c.QueryRow(ctx, "select emit($1, 10)::text", key).Scan(&id)
	})
	return id
}

// rows counts what the outbox holds.
func (s *system) rows(where string) (n int) {
	s.t.Helper()
	s.query(func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "select count(*) from outbox where "+where).Scan(&n)
	})
	return n
}

// awaitEmpty waits until every row has been published and removed.
func (s *system) awaitEmpty() {
	s.t.Helper()
	s.awaitEmptyWithin(patience)
}

func (s *system) awaitEmptyWithin(d time.Duration) {
	s.t.Helper()
	eventually(s.t, "the outbox is empty", d, func() bool { return s.rows(s.left) == 0 })
}

// limit sets the largest message that the stream takes; −1: any.
func (s *system) limit(bytes int32) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	c := streamConfig
	c.MaxMsgSize = bytes
	_, err := s.js.UpdateStream(ctx, c)
	require.NoError(s.t, err)
}

// emitSizes commits events of one key with such paddings, in one transaction.
func (s *system) emitSizes(key int64, paddings ...int) (ids []string) {
	s.t.Helper()
	s.query(func(ctx context.Context, c *pgx.Conn) error {
		if _, err := c.Exec(ctx, "insert into account values ($1) on conflict do nothing", key); err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			for _, p := range paddings {
				var id string
				if err := tx.QueryRow(ctx, "select emit($1, $2)::text", key, p).Scan(&id); err != nil {
					return err
				}
				ids = append(ids, id)
			}
			return nil
		})
	})
	return ids
}

// poison commits, for each of n keys from first on, an event with such a padding and some small ones behind it.
func (s *system) poison(first int64, n, padding, behind int) {
	s.t.Helper()
	s.query(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "insert into account select generate_series($1::bigint, $2::bigint)", first, first+int64(n)-1)
		if err != nil {
			return err
		}
		_, err = c.Exec(ctx, `select emit(k, case i when 0 then $3::int else 10 end)
			from generate_series($1::bigint, $2::bigint) k, generate_series(0, $4::int) i`, first, first+int64(n)-1, padding, behind)
		return err
	})
}

// emitMany commits n events of one key with numbers that follow each other.
func (s *system) emitMany(key int64, n int) {
	s.t.Helper()
	s.query(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, `
			with locked as (update account set n = n + $2 where id = $1 returning n - $2 as n),
			e as (select gen_random_uuid() as id, locked.n + g as n from locked, generate_series(1, $2::bigint) g),
			o as (insert into outbox(id, aggregate_id, type, payload)
				select id, $1, 'moved', jsonb_build_object('key', $1::bigint, 'n', n) from e order by n)
			insert into journal select id, $1, n from e`, key, n)
		return err
	})
}

// through is a DSN with another address in it.
func through(t *testing.T, dsn, addr string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	u.Host = addr
	return u.String()
}

// addressOf is the host:port of a DSN.
func addressOf(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	return u.Host
}

// eventually polls what other processes do, and fails the test when it does not come to be.
func eventually(t *testing.T, what string, within time.Duration, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("not within %s: %s", within, what)
		case <-tick.C:
		}
	}
}
