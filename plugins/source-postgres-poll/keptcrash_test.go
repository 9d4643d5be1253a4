package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// Where a life of the relay ends.
type keptCrash int

const (
	crashBeforeSettling keptCrash = iota // a batch has come, and no sink has it
	crashBeforeStoring                   // the sinks have it, the position is not stored
	crashBeforeAck                       // the position is durable, the source has not heard
	crashAfterAck
	crashKinds
)

// keptWriters commits and aborts transactions of every kind beside each other until stop is called, which returns what was
// committed. An event is numbered under the lock of its aggregate.
func keptWriters(t *testing.T, d *db, writers int) (stop func() []int) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed of the writers: %d", seed)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var mu sync.Mutex
	var committed []int
	for w := range writers {
		c := d.session()
		rnd := rand.New(rand.NewPCG(seed, uint64(w)))
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				got, err := keptTransaction(c, rnd, fmt.Sprintf("p%d_%d", w, i))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				committed = append(committed, got...)
				mu.Unlock()
			}
		})
	}
	end := func() []int {
		cancel()
		wg.Wait()
		return committed
	}
	t.Cleanup(func() { end() })
	return end
}

// keptTransaction runs one transaction, and returns the events that it has committed: key * 1,000,000 + n, with n counting
// the events of the key.
func keptTransaction(c *pgx.Conn, rnd *rand.Rand, gid string) (events []int, err error) {
	ctx := context.Background()
	key := rnd.IntN(8)
	do := func(sql string) {
		if err == nil {
			_, err = c.Exec(ctx, sql)
		}
	}
	insert := func() (n int) {
		if err == nil {
			err = c.QueryRow(ctx, `WITH a AS (UPDATE agg SET n = n + 1 WHERE id = $1 RETURNING n)
				INSERT INTO outbox (aggregate_id, payload) SELECT $1::bigint, jsonb_build_object('n', $1::bigint * 1000000 + n) FROM a RETURNING (payload->>'n')::int`, key).Scan(&n)
		}
		return n
	}
	do(`BEGIN`)
	if rnd.IntN(3) == 0 {
		do(`INSERT INTO other VALUES (1)`) // has its id before it has the lock
		do(fmt.Sprintf(`SELECT pg_sleep(%f)`, rnd.Float64()/200))
	}
	for range 1 + rnd.IntN(4) {
		saved := rnd.IntN(2) == 0
		if saved {
			do(`SAVEPOINT s`)
		}
		n := insert()
		if saved && rnd.IntN(3) == 0 {
			do(`ROLLBACK TO s`)
			continue
		}
		if saved && rnd.IntN(2) == 0 {
			do(`RELEASE s`)
		}
		events = append(events, n)
	}
	if rnd.IntN(10) == 0 {
		do(fmt.Sprintf(`SELECT pg_sleep(%f)`, rnd.Float64()/10)) // a long one
	}
	end := []string{`COMMIT`, `COMMIT`, `COMMIT`, `ROLLBACK`}[rnd.IntN(4)]
	if rnd.IntN(5) == 0 {
		do(`PREPARE TRANSACTION '` + gid + `'`)
		do(fmt.Sprintf(`SELECT pg_sleep(%f)`, rnd.Float64()/50))
		end += ` PREPARED '` + gid + `'`
	}
	do(end)
	if strings.HasPrefix(end, "ROLLBACK") {
		events = nil
	}
	return events, err
}

// Random transactions, and a relay that ends between any two steps and goes on from the last stored position: every
// committed event is in exactly one of the batches whose position was stored, and first deliveries are in order.
func TestKeepCrashes(t *testing.T) {
	t.Parallel()
	d, _ := privateDB(t, map[string]string{"max_prepared_transactions": "20"}, keptDDL, keptTxIndex,
		`CREATE TABLE agg (id bigint PRIMARY KEY, n int NOT NULL DEFAULT 0)`, `INSERT INTO agg SELECT generate_series(0, 7)`, `CREATE TABLE other (n int)`)
	stop := keptWriters(t, d, 6)
	seed := rand.Uint64()
	t.Logf("seed of the crashes: %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	const window = 60
	var covered, delivered []int
	var position []byte
	var committed []int
	repeats := 0
	const lives = 40
	for life := range lives + 1 {
		crash, left := keptCrash(rnd.IntN(int(crashKinds))), 1+rnd.IntN(12)
		last := life == lives
		if last {
			committed = stop()
		}
		crashed := make(chan struct{})
		h := startKept(t, d.dsn, keptOptions{
			config: keeping("batch", 1+rnd.IntN(40), "poll_interval", "10ms"), position: position,
			window: &pluginv1.Window{Events: window, Bytes: 1 << 20},
			on: func(h *keptHost, through uint64) {
				if !last && left <= 0 {
					return // it has ended; the stream will
				}
				left-- // a batch, or a position without one
				dies := !last && left <= 0
				if dies {
					defer h.tell()
					defer close(crashed)
				}
				if dies && (crash == crashBeforeSettling || crash == crashBeforeStoring) {
					return
				}
				stored := h.store(through)
				if stored && !(dies && crash == crashBeforeAck) {
					h.ack()
				}
			},
		})
		if last {
			h.await("everything", func() bool { return len(covered)+int(h.covered) >= len(committed) && h.covered == uint64(len(h.got)) })
			h.stop()
		} else {
			h.await("the crash", func() bool {
				select {
				case <-crashed:
					return true
				default:
					return false
				}
			})
			h.kill()
		}
		ns := numbers(h.all())
		require.LessOrEqual(t, len(ns)-int(h.covered), window)
		require.LessOrEqual(t, h.most, window)
		covered = append(covered, ns[:h.covered]...)
		delivered = append(delivered, ns...)
		repeats += len(ns) - int(h.covered)
		position = h.stored
	}
	require.ElementsMatch(t, committed, covered, "each committed event in exactly one stored batch")
	seen := map[int]bool{}
	high := map[int]int{}
	for _, n := range delivered {
		if seen[n] {
			continue
		}
		seen[n] = true
		require.Greater(t, n, high[n/1_000_000], "the first deliveries of a key are in order")
		high[n/1_000_000] = n
	}
	t.Logf("%d events, %d repeated by %d crashes", len(committed), repeats, lives)
	require.Greater(t, len(committed), 100)
}

// The server crashes, and gives the id of a transaction that had aborted to another one. A position must not have counted
// that id as ended: the second transaction's event would be left out.
func TestKeepServerCrash(t *testing.T) {
	t.Parallel()
	d, pg := privateDB(t, map[string]string{"autovacuum": "off"}, keptDDL, keptTxIndex, insertKept(1, 3))
	h := startKept(t, d.dsn, keptOptions{})
	h.awaitGot(3)
	h.stop()
	stored := h.stored

	// What is written behind the last commit stays in memory: the server's process that would flush it is stopped.
	writer := d.int(`SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'`)
	require.NoError(t, syscall.Kill(writer, syscall.SIGSTOP))
	d.exec(insertKept(4, 4))
	d.exec(`BEGIN`)
	aborted := d.int(`SELECT pg_current_xact_id()::text::bigint`)
	d.exec(`ROLLBACK`)
	h = startKept(t, d.dsn, keptOptions{position: stored})
	h.await("the event waits for the disk", func() bool { return strings.Contains(h.status.GetText(), "disk") })
	require.Empty(t, h.all())
	pg.Crash()
	h.await("the end of the session", func() bool { return h.fault != nil || h.err != nil })
	require.Equal(t, stored, h.stored)
	pg.Restart()

	d = useDB(t, d.dsn)
	d.exec(insertKept(5, 5))
	require.Equal(t, aborted, d.int(`SELECT max(tx::text::bigint) FROM outbox`), "the test has what it is about: an id was given twice")
	h = startKept(t, d.dsn, keptOptions{position: h.stored})
	gs := numbers(h.awaitGot(2))
	h.stop()
	slices.Sort(gs)
	require.Equal(t, []int{4, 5}, gs)
}

// What waits for the disk comes as soon as it has reached it; and a host that says stop is not kept waiting.
func TestKeepWaitsForDisk(t *testing.T) {
	t.Parallel()
	d, _ := privateDB(t, map[string]string{"autovacuum": "off"}, keptDDL, keptTxIndex, insertKept(1, 3))
	writer := d.int(`SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'`)
	require.NoError(t, syscall.Kill(writer, syscall.SIGSTOP))
	defer func() { _ = syscall.Kill(writer, syscall.SIGCONT) }()
	d.exec(`BEGIN; SELECT pg_current_xact_id(); ROLLBACK`)
	waits := func(h *keptHost) bool { return strings.Contains(h.status.GetText(), "disk") }
	h := startKept(t, d.dsn, keptOptions{})
	h.await("the events wait for the disk", func() bool { return waits(h) })
	h.stop()
	require.Empty(t, h.all())
	h = startKept(t, d.dsn, keptOptions{window: &pluginv1.Window{Events: 3, Bytes: 1 << 20}})
	h.await("the events wait for the disk", func() bool { return waits(h) })
	d.exec(insertKept(4, 5)) // its commit brings all before it to the disk
	require.ElementsMatch(t, sequence(1, 5), numbers(h.awaitGot(5)))
	h.stop()
}
