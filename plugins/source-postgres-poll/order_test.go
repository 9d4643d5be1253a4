package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

var long = flag.Bool("long", false, "run random writers for a minute")

const insertN = `INSERT INTO outbox (aggregate_id, type, payload) VALUES ($1, 't', jsonb_build_object('n', $2::int))`

// ordersDDL are the aggregates that a correct service locks.
const ordersDDL = `CREATE TABLE orders (id bigint PRIMARY KEY, n int NOT NULL DEFAULT 0)`

// begin opens a transaction that locks an aggregate, so that its xid is taken before its number.
func begin(t testing.TB, c *pgx.Conn, key int) {
	t.Helper()
	do(t, c, "BEGIN")
	do(t, c, "UPDATE orders SET n = n + 1 WHERE id = $1", key)
}

// moveBound sends rows of another key through the relay until the bound would have passed what is open.
func moveBound(t testing.TB, d *db, r *relay, from, rounds int) int {
	t.Helper()
	for i := range rounds {
		n := len(r.all())
		d.exec(insertN, 1000, from+i)
		r.awaitGot(n + 1)
		eventually(t, "deleted", func() bool {
			return d.int(`SELECT count(*) FROM outbox WHERE aggregate_id = 1000`) == 0
		})
	}
	return from + rounds
}

// T1 locks key 7, inserts and stays open; rows of others would move a bound that follows the reading; T1 commits; T2
// locks key 7, inserts, commits. (P1, P2: the row that commits late is neither skipped nor deleted unread.)
func TestLateCommit(t *testing.T) {
	t.Parallel()
	d, _ := privateDB(t, nil, seqDDL, ordersDDL, `INSERT INTO orders SELECT generate_series(1, 9)`)
	r := startRelay(t, d.dsn, relayOptions{})
	r.awaitOpened()
	s1, s2 := d.session(), d.session()
	n := moveBound(t, d, r, 1, 5)
	begin(t, s1, 7)
	do(t, s1, insertN, 7, 1)
	moveBound(t, d, r, n, 5)
	before := len(r.all())
	do(t, s1, "COMMIT")
	begin(t, s2, 7)
	do(t, s2, insertN, 7, 2)
	do(t, s2, "COMMIT")
	gs := r.awaitGot(before + 2)
	inOrder(t, gs)
	require.Equal(t, []int{1, 2}, numbers(gs[before:]))
	r.drain()
	require.Zero(t, d.int(`SELECT count(*) FROM outbox`))
	require.Zero(t, metric(r, "rows_found_by_sweep_total"), "the bound's rule alone found it")
	require.Positive(t, metric(r, "reads_bounded_total"), "there was a bound")
}

// Tb takes xid 100, Ta takes xid 101 and seq 5 and stays open, Tb takes seq 6 and commits; two reads; Ta commits; T2 of
// Ta's key. pg_snapshot_xmax is the last id that has ended + 1, so Ta lies above it.
func TestOpenTransactionAboveXmax(t *testing.T) {
	t.Parallel()
	d, _ := privateDB(t, nil, seqDDL, ordersDDL, `INSERT INTO orders SELECT generate_series(1, 9)`)
	r := startRelay(t, d.dsn, relayOptions{})
	r.awaitOpened()
	ta, tb, t2 := d.session(), d.session(), d.session()
	n := moveBound(t, d, r, 1, 4)
	begin(t, tb, 8)
	begin(t, ta, 7)
	do(t, ta, insertN, 7, 1)
	before := len(r.all())
	do(t, tb, insertN, 8, 1)
	do(t, tb, "COMMIT")
	r.awaitGot(before + 1)
	eventually(t, "deleted", func() bool { return d.int(`SELECT count(*) FROM outbox`) == 0 })
	moveBound(t, d, r, n, 3)
	before = len(r.all())
	do(t, ta, "COMMIT")
	begin(t, t2, 7)
	do(t, t2, insertN, 7, 2)
	do(t, t2, "COMMIT")
	gs := r.awaitGot(before + 2)
	require.Equal(t, []int{1, 2}, numbers(gs[before:]))
	r.drain()
	require.Zero(t, metric(r, "rows_found_by_sweep_total"))
	require.Positive(t, metric(r, "reads_bounded_total"))
}

// The late row has 5,000 rows of others before and behind it, and reads are small.
func TestLateCommitAmongThousands(t *testing.T) {
	t.Parallel()
	d, _ := privateDB(t, nil, seqDDL, ordersDDL, `INSERT INTO orders SELECT generate_series(1, 9)`)
	many := func(s *pgx.Conn, from int) {
		do(t, s, `INSERT INTO outbox (aggregate_id, type, payload)
			SELECT 100 + i, 't', jsonb_build_object('n', $1::int + i) FROM generate_series(1, 5000) i`, from)
	}
	r := startRelay(t, d.dsn, relayOptions{
		config: map[string]any{"batch": 37}, window: &pluginv1.Window{Events: 100, Bytes: 1 << 20},
	})
	r.awaitOpened()
	s1, s2, s3 := d.session(), d.session(), d.session()
	many(s3, 0)
	begin(t, s1, 7)
	do(t, s1, insertN, 7, 1)
	many(s3, 5000)
	r.awaitGot(10_000)
	do(t, s1, "COMMIT")
	many(s3, 10_000)
	begin(t, s2, 7)
	do(t, s2, insertN, 7, 2)
	do(t, s2, "COMMIT")
	inOrder(t, r.awaitGot(15_002))
	r.drain()
	require.Zero(t, d.int(`SELECT count(*) FROM outbox`))
}

// P3: events of one aggregate come by number, never by transaction id.
func TestTransactionIDIsNoOrder(t *testing.T) {
	t.Parallel()
	d := newDB(t, seqDDL, ordersDDL, `INSERT INTO orders SELECT generate_series(1, 9)`)
	s1, s2 := d.session(), d.session()
	begin(t, s1, 1)
	begin(t, s2, 7)
	do(t, s2, insertN, 7, 1)
	do(t, s2, "COMMIT")
	do(t, s1, "UPDATE orders SET n = n + 1 WHERE id = 7")
	do(t, s1, insertN, 7, 2)
	do(t, s1, "COMMIT")
	r := startRelay(t, d.dsn, relayOptions{})
	require.Equal(t, []int{1, 2}, numbers(r.awaitGot(2)))
	r.drain()
}

// P6: a transaction that is cut by the batch limit: each event has its own id.
func TestBatchCutsTransaction(t *testing.T) {
	t.Parallel()
	d := newDB(t, seqDDL, `INSERT INTO outbox (aggregate_id, type, payload) SELECT 1, 't', jsonb_build_object('n', i) FROM generate_series(1, 10) i`)
	r := startRelay(t, d.dsn, relayOptions{config: map[string]any{"batch": 4}})
	ids := map[string]bool{}
	for _, g := range r.awaitGot(10) {
		ids[g.id()] = true
	}
	require.Len(t, ids, 10)
	r.await("batches", func() bool { return len(r.batches) >= 3 })
	require.LessOrEqual(t, r.batches[0], 4)
	r.drain()
}

// Random writers that lock correctly: savepoints, two-phase commits, long and big transactions, rollbacks. Small limits,
// so that reads are full, and random order of acks.
func TestRandomWriters(t *testing.T) {
	t.Parallel()
	length := 6 * time.Second
	if *long {
		length = time.Minute
	}
	d, _ := privateDB(t, map[string]string{"max_prepared_transactions": "50"}, seqDDL, ordersDDL,
		`INSERT INTO orders SELECT generate_series(1, 40)`)
	rnd := rand.New(rand.NewPCG(1, 2))
	r := startRelay(t, d.dsn, relayOptions{
		config: map[string]any{"batch": 23}, window: &pluginv1.Window{Events: 150, Bytes: 1 << 20},
		onBatch: func(r *relay, b []got) {
			rnd.Shuffle(len(b), func(i, j int) { b[i], b[j] = b[j], b[i] })
			for len(b) > 0 {
				n := 1 + rnd.IntN(len(b))
				r.ack(b[:n]...)
				b = b[n:]
			}
		},
	})
	r.awaitOpened()
	ctx, cancel := context.WithTimeout(context.Background(), length)
	defer cancel()
	var wg sync.WaitGroup
	for w := range 12 {
		s := d.session()
		wg.Go(func() { randomWriter(ctx, t, s, w) })
	}
	wg.Wait()
	r.await("all rows", func() bool { return d.int(`SELECT sum(n) FROM orders`) <= len(r.got) })
	want := d.int(`SELECT sum(n) FROM orders`)
	eventually(t, "all deleted", func() bool { return d.int(`SELECT count(*) FROM outbox`) == 0 })
	gs := r.all()
	require.Len(t, gs, want)
	inOrder(t, gs)
	for _, g := range gs {
		require.NotZero(t, g.n())
	}
	r.drain()
	require.Zero(t, metric(r, "rows_found_by_sweep_total"))
	require.Positive(t, metric(r, "reads_bounded_total"))
	t.Logf("%d events, %d reads, %d with a bound", want, int(metric(r, "reads_total")), int(metric(r, "reads_bounded_total")))
}

// randomWriter increments aggregates and writes an event with each new number, in transactions of many shapes.
func randomWriter(ctx context.Context, t *testing.T, c *pgx.Conn, w int) {
	rnd := rand.New(rand.NewPCG(uint64(w), 7))
	event := func(key int) {
		do(t, c, `WITH o AS (UPDATE orders SET n = n + 1 WHERE id = $1 RETURNING n)
			INSERT INTO outbox (aggregate_id, type, payload) SELECT $1, 't', jsonb_build_object('n', n) FROM o`, key)
	}
	for i := 0; ctx.Err() == nil; i++ {
		do(t, c, "BEGIN")
		rows := 1
		if rnd.IntN(40) == 0 {
			rows = 200
		}
		// Aggregates in ascending order: no deadlocks.
		key := 1 + rnd.IntN(40)
		for range rows {
			inner := rnd.IntN(4) == 0
			if inner {
				do(t, c, "SAVEPOINT s")
			}
			event(key)
			if inner && rnd.IntN(2) == 0 {
				do(t, c, "ROLLBACK TO s")
			}
			if key < 40 && rnd.IntN(3) == 0 {
				key++
			}
		}
		if rnd.IntN(20) == 0 { // a long one
			do(t, c, "SELECT pg_sleep($1)", rnd.Float64()/3)
		}
		switch rnd.IntN(10) {
		case 0:
			do(t, c, "ROLLBACK")
		case 1:
			gid := fmt.Sprintf("w%d-%d", w, i)
			do(t, c, "PREPARE TRANSACTION '"+gid+"'")
			do(t, c, "COMMIT PREPARED '"+gid+"'")
		default:
			do(t, c, "COMMIT")
		}
	}
}

// P16: a pinned snapshot keeps deleted rows from being vacuumed; reads must not slow down with them.
func TestPinnedSnapshot(t *testing.T) {
	t.Parallel()
	const rows = 100_000
	d, _ := privateDB(t, nil, seqDDL)
	d.exec(`INSERT INTO outbox (aggregate_id, type, payload) SELECT i % 500, 't', jsonb_build_object('n', i) FROM generate_series(1, $1::int) i`, rows)
	pin := d.session()
	do(t, pin, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	do(t, pin, "SELECT count(*) FROM outbox")
	var mu sync.Mutex
	var at []time.Time
	r := startRelay(t, d.dsn, relayOptions{onBatch: func(r *relay, b []got) {
		mu.Lock()
		at = append(at, time.Now())
		mu.Unlock()
		r.ack(b...)
	}})
	r.awaitGot(rows)
	r.drain()
	mu.Lock()
	defer mu.Unlock()
	n := len(at)
	first, last := at[n/5].Sub(at[0]), at[n-1].Sub(at[n-1-n/5])
	t.Logf("first fifth %s, last fifth %s", first, last)
	require.LessOrEqual(t, last, 3*first+100*time.Millisecond)
}

func metric(r *relay, name string) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.status.GetMetrics() {
		if m.GetName() == name {
			return m.GetValue()
		}
	}
	return 0
}
